"""On the simulated market, whose distribution over several bars is known by simulation, horizons
come near to it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from horizon_oracle import compare_horizons

from vaiom.corpus.build import build_corpus
from vaiom.experiments.refit import fit_horizons
from vaiom.experiments.registry import experiment
from vaiom.simulation.market import MarketConfig, write_market
from vaiom.training.loop import train

LEAST_SHARE = 0.7


@pytest.mark.gpu
def test_horizons_close_most_of_the_distance_to_the_truth(tmp_path: Path) -> None:
    """`best` without teachers: from Frequency, which knows the scale and the clock, to the true
    distribution.
    """
    bars, run, config = tmp_path / "bars", tmp_path / "run", MarketConfig()
    write_market(config, bars)
    corpus = build_corpus(bars, tmp_path / "corpus")
    train(
        corpus,
        experiment("best").with_changes(teachers=0, teacher_share=0.0, steps=3_000),
        run,
        device="cuda",
    )
    fit_horizons(run, corpus, device="cuda")
    for number, bits in compare_horizons(corpus, bars, run, device="cuda").items():
        share = (bits["frequency"] - bits["model"]) / (bits["frequency"] - bits["oracle"])
        print(f"{number} bars: {share:.0%} closed, {bits}")
        assert share >= LEAST_SHARE
