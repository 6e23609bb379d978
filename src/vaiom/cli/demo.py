"""`vaiom demo`: the whole job on the built-in simulated market."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaiom.cli.console import note, progress_bar

if TYPE_CHECKING:
    from vaiom.baselines.base import Baseline, Progress

EXPERIMENT = "demo"
BASELINES = ("frequency", "markov", "hour_of_week", "ewma_t", "garch_t", "lightgbm")


def demo(
    out: Annotated[Path, typer.Option(help="Where everything goes; an earlier demo there is replaced.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the market and of the model.")] = 17,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Run the whole job on a market whose best reachable score is known: data, corpus, model, baselines, report."""
    from vaiom.baselines.store import FITS_FOLDER
    from vaiom.cli.tables import print_corpus, print_price_quality, print_scores, print_split_quality
    from vaiom.cli.train import training_report
    from vaiom.evaluation.baseline_scores import score_baselines
    from vaiom.evaluation.comparison import compare_on_validation
    from vaiom.evaluation.evaluate import evaluate_run
    from vaiom.events.build import build_corpus
    from vaiom.events.quality import split_quality
    from vaiom.events.splits import VALIDATION
    from vaiom.experiments.registry import experiment
    from vaiom.market.check import check_folder
    from vaiom.report.page import REPORT_NAME, write_report
    from vaiom.report.verdict import verdict
    from vaiom.simulate.market import MarketConfig, simulate, write_market
    from vaiom.training.loop import CONFIG_NAME, train

    bars, run, rivals, config = out / "bars", out / "run", out / "baselines", MarketConfig(seed=seed)
    with progress_bar("1/6 simulating a market") as progress:
        write_market(simulate(config, progress), config, bars, overwrite=True)
    with progress_bar("2/6 checking its prices") as progress:
        quality = check_folder(bars, progress)
    with progress_bar("3/6 building the corpus") as progress:
        corpus = build_corpus(bars, out / "corpus", overwrite=True, progress=progress)
    print_price_quality(quality)
    print_split_quality(split_quality(corpus))
    print_corpus(corpus)

    for folder, mark in ((run, CONFIG_NAME), (rivals, FITS_FOLDER)):
        if (folder / mark).exists():  # an earlier demo; anything else there stops the work
            shutil.rmtree(folder)
    chosen = experiment(EXPERIMENT).with_changes(seed=seed)
    with training_report("4/6 training a small model", run) as report_step:
        result = train(corpus, chosen, run, device=device, report=report_step)
    for split in (VALIDATION, *corpus.splits.test_names):
        score_baselines(
            corpus,
            BASELINES,
            rivals,
            split,
            chosen.model.context,
            lambda name: progress_bar(f"5/6 {name}"),
            _quick_baseline,
        )
        with progress_bar(f"6/6 judging the model on {split}") as progress:
            evaluate_run(run, corpus, split, baselines=rivals, device=device, progress=progress)
    found = write_report(run)

    scores = compare_on_validation(corpus, bars, run, device)
    print_scores(f"Validation, best checkpoint (step {result.best_step})", scores.bits)
    print()
    for sentence in verdict(found):
        print(sentence)
    note(
        f"\nThe model closed {100 * scores.share_closed:.0f}% of the distance between Frequency and the true law, "
        f"in {result.seconds:.0f} s of training. LightGBM is a quick fit here: `vaiom baselines` makes the full one."
        f"\nThe report is {run / REPORT_NAME}: open it in any browser."
        f"\nForecast with it: `vaiom predict {run} --bars {bars}`, or serve it: `vaiom serve {run} --bars {bars}`."
        f"\nThe corpus is in {out / 'corpus'}, the run in {run}. Next, your own prices: `vaiom data import --help`."
    )


def _quick_baseline(name: str, progress: Progress | None) -> Baseline:
    """A baseline by name; the paper's trees in seconds, with fewer events and larger steps."""
    from vaiom.baselines.lightgbm import LightGBM, TreeConfig
    from vaiom.baselines.registry import baseline

    if name != "lightgbm":
        return baseline(name, progress)
    return LightGBM(name, TreeConfig(rounds=80, learning_rate=0.1, patience=10, max_events=200_000), progress)
