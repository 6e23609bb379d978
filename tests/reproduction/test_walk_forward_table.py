"""The table of the walk-forward: its gain is over the strongest baseline, whatever the order of the
baselines.
"""

from __future__ import annotations

import pytest

from reproduction.findings import Records
from reproduction.page import tables_of
from reproduction.records import WALK, YEAR, Record, SplitScores
from vaiom.evaluation.inference import BlockBootstrap, PairedGain

NONE = BlockBootstrap(
    num_blocks=2, block_wins=1, win_rate=0.5, interval=None, win_rate_interval=None
)


def walked(year: int, bits: dict[str, float]) -> Record:
    gains = {
        name: PairedGain(
            num_events=10, gain_bits=value - bits["model"], asset_months=NONE, months=NONE, tails={}
        )
        for name, value in bits.items()
        if name != "model"
    }
    scored = {YEAR: SplitScores(bits=bits, gains=gains)}
    return Record(kind=WALK, key="", name="main", timeframe="1h", year=year, scored=scored)


@pytest.mark.parametrize("order", [("trees", "markov"), ("markov", "trees")])
def test_the_gain_is_over_the_baseline_with_the_fewest_bits(order: tuple[str, str]) -> None:
    # One year alone would say markov.
    years = {
        2021: {"model": 3.1, "trees": 3.2, "markov": 3.3},
        2022: {"model": 3.1, "trees": 3.26, "markov": 3.25},
    }
    records = [
        walked(year, {name: bits[name] for name in ("model", *order)})
        for year, bits in years.items()
    ]
    [(table, note)] = tables_of("walk-forward", Records(records))
    assert "gain over trees" in [column.name for column in table.columns]
    assert "ahead of trees in 2 of 2 years" in note
