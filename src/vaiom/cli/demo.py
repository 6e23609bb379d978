"""`vaiom demo`: the whole job on the built-in simulated market."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from vaiom.cli.console import note, progress_bar

EXPERIMENT = "demo"


def demo(
    out: Annotated[Path, typer.Option(help="Where everything goes; an earlier demo there is replaced.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the market and of the model.")] = 17,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Run the whole job on a market whose best reachable score is known: data, corpus, baselines, model."""
    from vaiom.cli.tables import print_corpus, print_price_quality, print_scores, print_split_quality
    from vaiom.cli.train import training_report
    from vaiom.evaluation.comparison import compare_on_validation
    from vaiom.events.build import build_corpus
    from vaiom.events.quality import split_quality
    from vaiom.experiments.registry import experiment
    from vaiom.market.check import check_folder
    from vaiom.market.synthetic import MarketConfig, simulate, write_market
    from vaiom.training.loop import CONFIG_NAME, train

    bars, run, config = out / "bars", out / "run", MarketConfig(seed=seed)
    with progress_bar("1/4 simulating a market") as progress:
        write_market(simulate(config, progress), config, bars, overwrite=True)
    with progress_bar("2/4 checking its prices") as progress:
        report = check_folder(bars, progress)
    with progress_bar("3/4 building the corpus") as progress:
        corpus = build_corpus(bars, out / "corpus", overwrite=True, progress=progress)
    print_price_quality(report)
    print_split_quality(split_quality(corpus))
    print_corpus(corpus)

    if (run / CONFIG_NAME).exists():  # an earlier demo; anything else there stops the training
        shutil.rmtree(run)
    with training_report("4/4 training a small model", run) as report_step:
        result = train(corpus, experiment(EXPERIMENT).with_changes(seed=seed), run, device=device, report=report_step)
    scores = compare_on_validation(corpus, bars, run, device)
    print_scores(f"Validation, best checkpoint (step {result.best_step})", scores.bits)
    note(
        f"\nThe model closed {100 * scores.share_closed:.0f}% of the distance between Frequency and the true law, "
        f"in {result.seconds:.0f} s of training."
        f"\nThe corpus is in {out / 'corpus'}, the run in {run}. Next, your own prices: `vaiom data import --help`."
    )
