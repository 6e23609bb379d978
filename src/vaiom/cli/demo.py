"""`vaiom demo`: the whole job on the built-in simulated market."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaiom.cli.console import Device, note, progress_bar, show
from vaiom.cli.train import training_report
from vaiom.report import data_tables
from vaiom.report.tables import Column, Table, bits, signed
from vaiom.run import CONFIG_NAME, Run

if TYPE_CHECKING:
    from vaiom.baselines.base import Baseline, Progress

FOLDER = Path("runs/demo")
EXPERIMENT = "demo"
BASELINES = ("frequency", "markov", "hour_of_week", "ewma_t", "garch_t", "lightgbm")


def demo(
    out: Annotated[Path, typer.Option(help="Where everything goes; an earlier demo is replaced.")] = FOLDER,
    seed: Annotated[int, typer.Option(min=0, help="Of the market and of the model.")] = 17,
    device: Device = "auto",
) -> None:
    """Run the whole job on a market whose best reachable score is known: data, corpus, model, baselines, report."""
    from vaiom.baselines.store import FITS_FOLDER
    from vaiom.evaluation.evaluate import evaluate_run
    from vaiom.evaluation.predictor import score_baselines
    from vaiom.evaluation.simulated import compare_with_oracle
    from vaiom.events.build import build_corpus
    from vaiom.events.corpus import split_quality
    from vaiom.events.splits import VALIDATION
    from vaiom.experiments.registry import experiment
    from vaiom.market.check import check_folder
    from vaiom.report.page import write_report
    from vaiom.report.results import verdict
    from vaiom.simulate.market import MarketConfig, simulate, write_market
    from vaiom.training.loop import train

    bars, run, baselines, config = out / "bars", out / "run", out / "baselines", MarketConfig(seed=seed)
    with progress_bar("1/6 simulating a market") as progress:
        write_market(simulate(config, progress), config, bars, overwrite=True)
    with progress_bar("2/6 checking its prices") as progress:
        quality = check_folder(bars, progress)
    with progress_bar("3/6 building the corpus") as progress:
        corpus = build_corpus(bars, out / "corpus", overwrite=True, progress=progress)
    show(*data_tables.price_quality(quality), data_tables.split_quality(split_quality(corpus)))
    show(*data_tables.corpus_tables(corpus))

    for folder, mark in ((run, CONFIG_NAME), (baselines, FITS_FOLDER)):
        if (folder / mark).exists():  # an earlier demo; anything else there stops the work
            shutil.rmtree(folder)
    chosen = experiment(EXPERIMENT).with_changes(seed=seed)
    with training_report("4/6 training a small model", run) as report_step:
        result = train(corpus, chosen, run, device=device, report=report_step)

    def bar_of(name: str) -> AbstractContextManager[Progress]:
        return progress_bar(f"5/6 {name}")

    for split in (VALIDATION, *corpus.splits.test_names):
        score_baselines(corpus, BASELINES, baselines, split, chosen.model.history, bar_of, _quick_baseline)
        with progress_bar(f"6/6 judging the model on {split}") as progress:
            evaluate_run(run, corpus, split, baselines=baselines, device=device, progress=progress)
    found = write_report(run)

    scores = compare_with_oracle(corpus, bars, run, device)
    columns = [Column("predictor"), Column("bits/event", bits), Column("gain over Frequency", signed)]
    rows = [[name, value, scores.bits["frequency"] - value] for name, value in scores.bits.items()]
    caption = f"Validation, best checkpoint (step {result.best_step})"
    show(Table(caption, columns, rows), "", *verdict(found))
    note(
        f"\nThe model closed {100 * scores.share_closed:.0f}% of the distance between Frequency and the true "
        f"distribution, in {result.seconds:.0f} s of training. LightGBM is a quick fit here: `vaiom baselines` makes "
        "the full one."
        f"\nThe report is {Run(run).report}: open it in any browser."
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
