"""`vaiom demo`: the whole job on the built-in simulated market."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vaiom.cli.console import note, progress_bar


def demo(
    out: Annotated[Path, typer.Option(help="Where everything goes; an earlier demo there is replaced.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the simulated market.")] = 17,
) -> None:
    """Run the whole job on a market whose best reachable score is known."""
    from vaiom.baselines.frequency import Frequency
    from vaiom.baselines.markov import Markov
    from vaiom.cli.tables import print_corpus, print_price_quality, print_scores, print_split_quality
    from vaiom.evaluation.likelihood import event_bits
    from vaiom.evaluation.oracle import Oracle
    from vaiom.events.build import build_corpus
    from vaiom.events.quality import split_quality
    from vaiom.events.splits import TRAIN, VALIDATION
    from vaiom.market.check import check_folder
    from vaiom.market.synthetic import MarketConfig, simulate, write_market

    bars, config = out / "bars", MarketConfig(seed=seed)
    with progress_bar("1/3 simulating a market") as progress:
        write_market(simulate(config, progress), config, bars, overwrite=True)
    with progress_bar("2/3 checking its prices") as progress:
        report = check_folder(bars, progress)
    with progress_bar("3/3 building the corpus") as progress:
        corpus = build_corpus(bars, out / "corpus", overwrite=True, progress=progress)
    print_price_quality(report)
    print_split_quality(split_quality(corpus))
    print_corpus(corpus)

    train, rows = corpus.endpoints(TRAIN), corpus.endpoints(VALIDATION)
    predictors = (Frequency().fit(corpus, train), Markov().fit(corpus, train), Oracle.beside(bars))
    bits = {
        each.name: float(event_bits(each.predict_proba(corpus, rows), corpus.target_return[rows]).mean())
        for each in predictors
    }
    scores = [(name, value, bits["frequency"] - value) for name, value in bits.items()]
    print_scores("Validation: what baselines reach, and what the true law would", scores)
    note(f"\nThe corpus is in {out / 'corpus'}; `vaiom corpus show {out / 'corpus'}` prints it again.")
