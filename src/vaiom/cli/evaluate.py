"""`vaiom evaluate`: a run judged on a held-out split, beside baselines on the same events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaiom.cli.console import note, print_json, progress_bar

if TYPE_CHECKING:
    from rich.console import Group

    from vaiom.evaluation.backtests import TailTest
    from vaiom.evaluation.bootstrap import BlockInference
    from vaiom.evaluation.evaluate import Against, Evaluation


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with a selected model.")],
    split: Annotated[str, typer.Option(help="validation, test-h1, test-h2; a look at a test is recorded.")],
    corpus: Annotated[
        Path | None, typer.Option(help="The corpus it was trained on, or that one grown; else where it was.")
    ] = None,
    baselines: Annotated[
        Path | None, typer.Option(help="What `vaiom baselines` stored; else Frequency and Markov.")
    ] = None,
    seed_run: Annotated[
        list[Path] | None, typer.Option(help="Another seed of the experiment, evaluated before; may be repeated.")
    ] = None,
    unseal: Annotated[str | None, typer.Option(help="Must say `sealed` for --split sealed.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")] = False,
) -> None:
    """Score a run on held-out events: bits, gains with intervals, calibration; the figures are kept in the run."""
    from vaiom.evaluation.evaluate import evaluate_run, evaluation_path
    from vaiom.events.corpus import open_corpus
    from vaiom.training.loop import corpus_of_run

    with progress_bar(f"scoring {split}") as progress:
        result = evaluate_run(
            run,
            open_corpus(corpus or corpus_of_run(run)),
            split,
            baselines=baselines,
            other_seeds=seed_run or [],
            unseal=unseal,
            device=device,
            progress=progress,
        )
    if json:
        print_json(asdict(result))
        return
    print_evaluation(result)
    note(f"\nEverything else is in {evaluation_path(run, split)}, the loss of each event beside it.")


def print_evaluation(result: Evaluation) -> None:
    from vaiom.cli.tables import percent, show

    title = (
        f"{result.split}: {result.num_events:,} events, {result.experiment} seed {result.seed}, step {result.step:,}"
    )
    show(
        _headline(title, result.bits, result.against),
        _by_asset(result),
        _gain_by_month(result),
        *_seed_tables(result),
        _calibration(result),
        _backtests(result.backtests),
    )
    if result.all_tests:
        show(_inference("All test splits together", result.all_tests))
    note(
        "\nEvery figure is conditional on a non-zero next return; "
        f"{percent(result.zero_share)} of the next returns in this split were zero."
    )
    for caveat in result.caveats:
        note(caveat)
    if result.looks is not None:
        times = "once, now" if result.looks == 1 else f"{result.looks} times, this one included"
        note(f"This split of this corpus was looked at {times}.")


def _headline(title: str, bits: dict[str, float], against: Sequence[Against]) -> Group:
    from rich.console import Group

    from vaiom.cli.tables import table

    body = [[name, f"{value:.4f}", f"{value - bits['model']:+.4f}"] for name, value in bits.items()]
    body[0][2] = ""
    return Group(
        table(title, ["predictor", "bits/event", "model's gain"], body),
        "",
        _inference("Paired gain in bits/event, baseline minus model: positive favours the model", against),
    )


def _inference(title: str, against: Sequence[Against]) -> Group:
    from vaiom.cli.tables import table

    rows = []
    for each in against:
        gain, p_value = each.gain, each.diebold_mariano.p_value
        rows.append(
            [
                each.baseline,
                f"{gain.num_events:,}",
                gain.asset_months.num_blocks,
                f"{gain.gain_bits:+.4f}",
                _interval(gain.asset_months.interval),
                *_wins(gain.asset_months),
                *(_signed(tail.gain_bits) for tail in gain.tails.values()),
                f"{gain.months.block_wins}/{gain.months.num_blocks}",
                _interval(gain.months.interval),
                "-" if p_value is None else f"{p_value:.2g}",
            ]
        )
    columns = [
        "against",
        "events",
        "blocks",
        "mean_gain",
        "95%_interval",
        "block_wins",
        "win-rate",
        "win-rate_interval",
    ]
    columns += ["negative_tail", "positive_tail", "both_tails", "months_won", "month-clustered_interval", "DM_p"]
    return table(title, columns, rows)


def _by_asset(result: Evaluation) -> Group:
    from vaiom.cli.tables import table

    names = list(result.bits)
    rows = [[g.group, f"{g.num_events:,}", *(f"{g.bits[name]:.4f}" for name in names)] for g in result.by["asset"]]
    return table("Bits/event by asset", ["asset", "events", *names], rows)


def _gain_by_month(result: Evaluation) -> Group:
    from vaiom.cli.tables import table

    rivals = [name for name in result.bits if name != "model"]
    rows = [
        [g.group, f"{g.num_events:,}", *(f"{g.bits[name] - g.bits['model']:+.4f}" for name in rivals)]
        for g in result.by["month"]
    ]
    return table("Gain over each baseline by month of the target", ["month", "events", *rivals], rows)


def _seed_tables(result: Evaluation) -> list[Group]:
    from vaiom.cli.tables import table

    if not result.seeds:
        return []
    rows = [
        [
            name,
            len(seeds.bits),
            f"{seeds.mean_bits:.4f}",
            f"{seeds.seed_sd_bits:.4f}",
            f"{seeds.mean_gain_bits:+.4f}",
            f"{seeds.sampling_error_bits:.4f}",
            _interval(seeds.average.interval),
            f"{seeds.seeds_that_win}/{len(seeds.bits)}",
        ]
        for name, seeds in result.seeds.items()
    ]
    columns = ["against", "seeds", "mean_bits", "SD_over_seeds", "mean_gain", "sampling_error", "95%_interval"]
    return [table("Seeds together: chance of training apart from chance of the sample", [*columns, "seeds_won"], rows)]


def _calibration(result: Evaluation) -> Group:
    from vaiom.cli.tables import percent, table

    overall, pit = result.calibration.overall, result.calibration.pit
    tails = {tail.outcome: tail for tail in result.calibration.tails}
    rows = [
        ["transform uniform (Kuiper)", f"p = {pit.p_value:.2g}"],
        ["largest reliability error of a bucket", f"{max(b.error for b in result.calibration.buckets):.4f}"],
        *(
            [f"{name} tail, forecast and observed", f"{percent(tail.predicted)}  {percent(tail.observed)}"]
            for name, tail in tails.items()
            if name != "both"
        ),
        ["Brier score", f"{overall.brier:.4f}"],
        ["ranked probability score", f"{overall.ranked_probability_score:.4f}"],
        ["sharpness (entropy)", f"{overall.entropy_bits:.4f} bits"],
    ]
    if result.mixture:
        mixture = result.mixture
        persistence = "-" if mixture.persistence is None else f"{mixture.persistence:.2f}"
        rows += [
            ["latent states, effective number", f"{mixture.effective_states:.2f} of {len(mixture.mean_weight)}"],
            ["their separation", f"{mixture.separation_bits:.4f} bits"],
            ["their persistence, and by chance", f"{persistence}  {mixture.persistence_if_independent:.2f}"],
        ]
    if result.confidence_set:
        rows.append(["model confidence set, 90%", ", ".join(result.confidence_set.included)])
    return table("Calibration of the model", ["what", "value"], rows)


def _backtests(tests: Sequence[TailTest]) -> Group:
    from vaiom.cli.tables import percent, table

    def p(value: float | None) -> str:
        return "-" if value is None else f"{value:.2g}"

    rows = [
        [
            test.side,
            percent(test.level),
            f"{test.num_events:,}",
            "-" if test.exceedance_rate is None else f"{100 * test.exceedance_rate:.2f}%",
            p(test.kupiec_p),
            p(test.independence_p),
            p(test.conditional_coverage_p),
            _signed(test.shortfall_z2),
            p(test.shortfall_p),
        ]
        for test in tests
    ]
    columns = ["side", "level", "events", "exceeded", "Kupiec_p", "Christoffersen_p", "both_p", "shortfall_Z2", "Z2_p"]
    return table("Value at risk and expected shortfall, after the fact", columns, rows)


def _wins(blocks: BlockInference) -> list[str]:
    rates = blocks.win_rate_interval
    shown = "undefined" if rates is None else f"[{100 * rates[0]:.1f}%, {100 * rates[1]:.1f}%]"
    return [f"{blocks.block_wins}/{blocks.num_blocks}", f"{100 * blocks.win_rate:.1f}%", shown]


def _interval(interval: tuple[float, float] | None) -> str:
    return "undefined" if interval is None else f"[{interval[0]:+.4f}, {interval[1]:+.4f}]"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"
