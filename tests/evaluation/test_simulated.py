"""The simulated market resembles real bars as much as it promises."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from simulated_market import Market

from tools.compare_markets import compare_markets
from vaiom.events.build import build_corpus


def test_the_default_market_meets_every_demand_beside_real_bars(
    market: Market, shared_data: Path, tmp_path: Path
) -> None:
    real = build_corpus(shared_data / "bars_1h", tmp_path / "real")
    table = {row.measure: row for row in compare_markets(market.corpus, market.oracle, real)}
    demands = {name: row.met for name, row in table.items() if row.demand}
    assert demands == {
        "tail_share": True,
        "abs_ret_z_autocorrelation_lag_1": True,
        "oracle_gain_over_frequency_bits": True,
    }
    # The real column agrees with an independent computation on the same bars.
    assert table["tail_share"].real == pytest.approx(0.0687, abs=5e-5)
    assert table["abs_ret_z_autocorrelation_lag_1"].real == pytest.approx(0.0694, abs=5e-5)
    assert table["abs_ret_z_autocorrelation_lag_24"].real == pytest.approx(0.0818, abs=5e-5)
    assert table["frequency_bits"].real == pytest.approx(3.2776, abs=5e-5)
    assert table["markov_bits"].real == pytest.approx(3.2693, abs=5e-5)
    assert all(math.isfinite(row.simulated) for row in table.values())


def test_a_market_beside_itself_is_no_distance_away(market: Market) -> None:
    for row in compare_markets(market.corpus, market.oracle, market.corpus):
        assert row.real is None or row.real == row.simulated
