"""The tables of what was found: likelihood and how sure it is, calibration, risk, latent states, seeds.

Enters: the contents of a run. Leaves: `Table`s; the first ones are the paper's headline in full.
Paper: Results, main Test table; Appendices on period results, tail buckets and the asset-month block bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence

from vaiom.evaluation.backtests import TailTest
from vaiom.evaluation.calibration import Calibration, Scores
from vaiom.evaluation.evaluate import Against, Evaluation
from vaiom.evaluation.events_file import MODEL
from vaiom.evaluation.mixture import MixtureReport
from vaiom.evaluation.rivals import SeedSummary
from vaiom.report.contents import RunContents, Split
from vaiom.report.numbers import bits, count, interval, p_value, percent, percents, share_of, signed
from vaiom.report.tables import Cell, Column, Table, facts, number, words

_EMPTY = Cell("")
_GAIN = "Baseline minus model, bits per event: positive favours the model"
_MONTHS = "Whole months as blocks, so that assets of one month may move together"


def headline_tables(contents: RunContents) -> list[Table]:
    """What the report rests on: two tables per split, and all test splits together."""
    out = []
    for split in contents.splits:
        out += [likelihood(split), sureness(split)]
    together = all_tests(contents)
    return [*out, together] if together else out


def likelihood(split: Split) -> Table:
    """Bits of every predictor, best first, and the model's gain over it with its asset-month interval."""
    found = split.evaluation
    against = {each.baseline: each for each in found.against}
    order = sorted(found.bits, key=lambda name: found.bits[name])
    rows = [
        [
            words(name),
            number(bits(found.bits[name]), found.bits[name]),
            *(_gain_cells(against[name]) if name in against else [_EMPTY] * 5),
        ]
        for name in order
    ]
    columns = [
        Column(name="predictor", words=True),
        Column(name="bits/event", about="Mean of minus log2 of the probability given to the bucket that came"),
        *_gain_columns(),
    ]
    return Table(
        caption=f"{split.name} ({split.period}), {count(found.num_events)} events: bits per event and paired gain",
        columns=columns,
        rows=rows,
        strong=frozenset({order.index(MODEL)}),
    )


def sureness(split: Split) -> Table:
    """What stands behind the gains: tails, months, and the tests that see one series in time."""
    found = split.evaluation
    in_set = found.confidence_set.p_values if found.confidence_set else {}
    rows = []
    for each in _by_gain(found):
        gain, test = each.gain, each.diebold_mariano
        rows.append(
            [
                words(each.baseline),
                *(number(signed(tail.gain_bits), tail.gain_bits) for tail in gain.tails.values()),
                number(share_of(gain.months.block_wins, gain.months.num_blocks), gain.months.win_rate),
                number(interval(gain.months.interval), gain.gain_bits),
                number(p_value(test.p_value), test.p_value),
                number(p_value(in_set.get(each.baseline)), in_set.get(each.baseline)),
            ]
        )
    columns = [
        Column(name="against", words=True),
        Column(name="low tail", about="Mean gain over events that ended in buckets 1 to 4"),
        Column(name="high tail", about="Mean gain over events that ended in buckets 13 to 16"),
        Column(name="both tails"),
        Column(name="months won"),
        Column(name="by months, 95%", about=_MONTHS),
        Column(name="DM p", about="Diebold-Mariano, two-sided, Newey-West variance"),
        Column(name="MCS p", about="Model confidence set: small when the baseline was beaten by some predictor"),
    ]
    return Table(caption=f"{split.name} ({split.period}): tails, months and tests", columns=columns, rows=rows)


def all_tests(contents: RunContents) -> Table | None:
    """The paired gains over every test split together, where all were scored."""
    together = next((s.evaluation.all_tests for s in reversed(contents.splits) if s.evaluation.all_tests), None)
    if not together:
        return None
    rows = [
        [
            words(each.baseline),
            number(count(each.gain.num_events), each.gain.num_events),
            *_gain_cells(each),
            number(interval(each.gain.months.interval), each.gain.gain_bits),
        ]
        for each in sorted(together, key=lambda each: each.gain.gain_bits)
    ]
    columns = [Column(name="against", words=True), Column(name="events"), *_gain_columns()]
    return Table(
        caption="All test splits together: paired gain",
        columns=[*columns, Column(name="by months, 95%", about=_MONTHS)],
        rows=rows,
    )


def calibration_summary(split: Split) -> Table:
    found: Calibration = split.evaluation.calibration
    overall = found.overall
    rows = [
        [words("randomised transform uniform (Kuiper)"), words(f"p {p_value(found.pit.p_value)}")],
        [words("largest mean error of a bucket"), words(percent(max(each.error for each in found.buckets), 2))],
        [words("largest mean error up to an edge"), words(percent(max(each.error for each in found.cumulative), 2))],
        *(
            [
                words(f"{tail.outcome} tail{'s' if tail.outcome == 'both' else ''}: forecast, came"),
                words(f"{percent(tail.predicted, 2)}, {percent(tail.observed, 2)}"),
            ]
            for tail in found.tails
        ),
        [words("Brier score"), words(bits(overall.brier))],
        [words("ranked probability score"), words(bits(overall.ranked_probability_score))],
        [words("sharpness (entropy of the forecasts)"), words(f"{bits(overall.entropy_bits)} bits")],
    ]
    return facts(f"{split.name} ({split.period}): calibration of the model", rows)


def calibration_by(split: Split, by: str) -> Table:
    """Scores of the model by what is known before the return."""
    found: Sequence[Scores] = split.evaluation.calibration_by[by]
    rows = [
        [
            _group(each.group),
            number(count(each.num_events), each.num_events),
            number(bits(each.brier), each.brier),
            number(bits(each.ranked_probability_score), each.ranked_probability_score),
            number(bits(each.entropy_bits), each.entropy_bits),
            number(percent(each.tails_predicted), each.tails_predicted),
            number(percent(each.tails_observed), each.tails_observed),
            number(p_value(each.pit_p_value), each.pit_p_value),
        ]
        for each in found
    ]
    names = ["events", "Brier", "RPS", "entropy", "tails forecast", "tails came", "uniform p"]
    return Table(
        caption=f"{split.name} ({split.period}): calibration by {_label(by)}",
        columns=[Column(name=_label(by), words=True), *(Column(name=name) for name in names)],
        rows=rows,
    )


def backtests(split: Split, tests: Sequence[TailTest], by: str | None = None) -> Table:
    """Value at risk and expected shortfall, after the fact."""
    rows = []
    for test in tests:
        row = [
            words(test.side),
            number(percent(test.level, 0), test.level),
            number(count(test.num_events), test.num_events),
            number(percent(test.undefined_share), test.undefined_share),
            number(percent(test.exceedance_rate, 2), test.exceedance_rate),
            *(number(p_value(p), p) for p in (test.kupiec_p, test.independence_p, test.conditional_coverage_p)),
            number(signed(test.shortfall_z2), test.shortfall_z2),
            number(p_value(test.shortfall_p), test.shortfall_p),
        ]
        rows.append([_group(test.group), *row] if by else row)
    columns = [
        Column(name="side", words=True, about="Long loses in the lower tail, short in the upper"),
        Column(name="level"),
        Column(name="events"),
        Column(
            name="left out",
            about="Events whose quantile lies in an outermost bucket, where the grid does not define it",
        ),
        Column(name="exceeded", about="Should equal the level"),
        Column(name="Kupiec p", about="Whether the limit is exceeded as often as its level says"),
        Column(name="Christoffersen p", about="Whether exceedances come in clusters"),
        Column(name="both p"),
        Column(
            name="shortfall Z",
            about="Acerbi and Szekely's second statistic: positive when losses were worse than forecast",
        ),
        Column(name="Z p", about="One-sided"),
    ]
    if by:
        columns.insert(0, Column(name=_label(by), words=True))
    what = f" by {_label(by)}" if by else ""
    return Table(
        caption=f"{split.name} ({split.period}): value at risk and expected shortfall{what}", columns=columns, rows=rows
    )


def states(split: Split, mixture: MixtureReport) -> Table:
    """Use and separation of the latent states of one split."""
    num = len(mixture.mean_weight)
    rows = [
        [
            number(str(state + 1), state + 1),
            number(percent(mixture.mean_weight[state]), mixture.mean_weight[state]),
            number(percent(mixture.heaviest_share[state]), mixture.heaviest_share[state]),
            *(
                _EMPTY if other == state else number(bits(value), value)
                for other, value in enumerate(mixture.pair_separation_bits[state])
            ),
        ]
        for state in range(num)
    ]
    columns = [
        Column(name="state"),
        Column(name="mean weight"),
        Column(name="heaviest", about="Share of events in which the state has the largest weight"),
        *(Column(name=f"from {state + 1}", about="Jensen-Shannon divergence in bits") for state in range(num)),
    ]
    return Table(caption=f"{split.name} ({split.period}): latent states", columns=columns, rows=rows)


def seeds(split: Split, by_baseline: dict[str, SeedSummary]) -> Table:
    """Chance of training apart from chance of the sample."""
    rows = [
        [
            words(name),
            number(str(len(each.bits)), len(each.bits)),
            number(bits(each.mean_bits), each.mean_bits),
            number(bits(each.seed_sd_bits), each.seed_sd_bits),
            number(signed(each.mean_gain_bits), each.mean_gain_bits),
            number(bits(each.sampling_error_bits), each.sampling_error_bits),
            number(interval(each.average.interval), each.mean_gain_bits),
            number(share_of(each.seeds_that_win, len(each.bits)), each.seeds_that_win),
        ]
        for name, each in by_baseline.items()
    ]
    names = ["seeds", "mean bits", "SD over seeds", "mean gain", "sampling error", "95% interval", "seeds won"]
    return Table(
        caption=f"{split.name} ({split.period}): seeds together",
        columns=[Column(name="against", words=True), *(Column(name=name) for name in names)],
        rows=rows,
    )


def _gain_columns() -> list[Column]:
    return [
        Column(name="gain", about=_GAIN),
        Column(name="95% interval", about="Percentile bootstrap over asset-months, the paper's blocks"),
        Column(name="blocks won", about="Asset-months with a positive mean gain"),
        Column(name="win-rate"),
        Column(name="its interval"),
    ]


def _gain_cells(each: Against) -> list[Cell]:
    gain, blocks = each.gain.gain_bits, each.gain.asset_months
    return [
        number(signed(gain), gain),
        number(interval(blocks.interval), gain),
        number(share_of(blocks.block_wins, blocks.num_blocks), blocks.win_rate),
        number(percent(blocks.win_rate), blocks.win_rate),
        number(percents(blocks.win_rate_interval), blocks.win_rate),
    ]


def _by_gain(found: Evaluation) -> list[Against]:
    """The strongest baseline first."""
    return sorted(found.against, key=lambda each: each.gain.gain_bits)


def _group(label: str) -> Cell:
    return Cell(label, float(label)) if label.isdigit() else Cell(label)


def _label(by: str) -> str:
    return {"vol_regime": "volatility regime"}.get(by, by)
