"""The simulated market resembles real bars as much as it promises."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from simulated_market import Market

from tools.compare_markets import GAIN, GAIN_RANGE_BITS, MAX_DISTANCE, compare_markets
from vaiom.corpus.build import build_corpus

REAL = {
    "tail_share": 0.0687,
    "abs_ret_z_autocorrelation_lag_1": 0.0694,
    "abs_ret_z_autocorrelation_lag_24": 0.0818,
    "frequency_bits": 3.2776,
    "markov_bits": 3.2693,
}
"""Of eleven real assets, by an independent computation."""


def test_the_default_market_meets_every_demand_beside_real_bars(market: Market) -> None:
    table = {
        row.measure: row for row in compare_markets(market.corpus, market.oracle, market.corpus)
    }
    assert all(row.real is None or row.real == row.simulated for row in table.values())
    assert all(math.isfinite(row.simulated) for row in table.values())
    for name, limit in MAX_DISTANCE.items():
        assert abs(table[name].simulated - REAL[name]) <= limit
    assert GAIN_RANGE_BITS[0] <= table[GAIN].simulated <= GAIN_RANGE_BITS[1]
    assert {row.measure for row in table.values() if row.met} == {*MAX_DISTANCE, GAIN}


@pytest.mark.slow
def test_real_bars_have_these_measures(market: Market, shared_data: Path, tmp_path: Path) -> None:
    real = build_corpus(shared_data / "bars_1h", tmp_path / "real")
    table = {row.measure: row for row in compare_markets(market.corpus, market.oracle, real)}
    assert {name: table[name].real for name in REAL} == pytest.approx(REAL, abs=5e-5)
    assert all(row.met for row in table.values() if row.demand)
