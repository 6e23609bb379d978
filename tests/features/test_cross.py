"""Cross fields: against a plain loop over stamps, in any order of assets, and live as in the
history.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from reference import extra_fields as reference
from vaiom.features.asset_state import AssetState
from vaiom.features.cross import cross_columns
from vaiom.features.fields import ANY_MASK, BLOCK_ROWS, CROSS_FIELDS, has_flag
from vaiom.features.rows import bars_of, rows_of, stored
from vaiom.features.typing import Columns
from vaiom.market.folder import read_bars

SYMBOLS = ("EURJPY", "EURUSD", "USDCHF", "USDJPY", "XAUUSD")


@st.composite
def markets(draw: st.DrawFn) -> dict[str, Columns]:
    """Assets with rows at some of the same stamps, some of them masked."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    assets = {}
    for symbol in draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True)):
        stamps = np.flatnonzero(rng.random(30) < draw(st.sampled_from([0.2, 0.9])))
        assets[symbol] = {
            "timestamp": (stamps * 3600).astype(np.uint32),
            "ret_z": (rng.standard_t(2, len(stamps)) * 3).astype(np.float32),
            "relative_log_vol": rng.normal(0, 0.3, len(stamps)).astype(np.float32),
            "flags": (rng.integers(0, 128, len(stamps)) * (rng.random(len(stamps)) < 0.2)).astype(
                np.uint8
            ),
        }
    return assets


def columns_of(bars: pl.DataFrame) -> Columns:
    return stored(rows_of(bars_of(bars), AssetState.empty(None))[0])


def require_reference(assets: dict[str, Columns], block: int = BLOCK_ROWS) -> None:
    frames = {
        symbol: pd.DataFrame(
            {
                "ret_z": columns["ret_z"].astype(float),
                "relative_log_vol": columns["relative_log_vol"].astype(float),
                "mask_any": has_flag(columns["flags"], ANY_MASK),
            },
            index=columns["timestamp"],
        )
        for symbol, columns in assets.items()
    }
    ours, theirs = cross_columns(assets, block_stamps=block), reference.cross_fields(frames)
    for symbol in assets:
        for name in CROSS_FIELDS:
            assert ours[symbol][name].dtype == np.float16
            values = ours[symbol][name].astype(float)
            assert_allclose(
                values, theirs[symbol][name], rtol=6e-4, atol=1e-6, err_msg=f"{symbol} {name}"
            )


@given(markets(), st.sampled_from([1, 3, 1 << 15]))
def test_any_market_gives_what_the_reference_gives(assets: dict[str, Columns], block: int) -> None:
    require_reference(assets, block)


def test_real_bars(shared_data: Path) -> None:
    bars = read_bars(shared_data / "bars_1h")
    require_reference({symbol: columns_of(frame.tail(1000)) for symbol, frame in bars.items()})


def test_the_order_of_assets_does_not_matter() -> None:
    """Values whose sum depends on the order of its terms."""
    wildness = {"EURJPY": 0.0, "EURUSD": 1e16, "USDCHF": 1.0, "USDJPY": -1e16}
    assets = {
        symbol: {
            "timestamp": np.zeros(1, np.uint32),
            "ret_z": np.ones(1, np.float32),
            "relative_log_vol": np.array([value], np.float32),
            "flags": np.zeros(1, np.uint8),
        }
        for symbol, value in wildness.items()
    }
    made = {
        cross_columns({name: assets[name] for name in order})["EURJPY"]["cross_vol"][0]
        for order in permutations(assets)
    }
    assert len(made) == 1


@given(markets())
def test_a_live_stamp_gives_the_bits_of_the_history(assets: dict[str, Columns]) -> None:
    history = cross_columns(assets)
    for stamp in np.unique(np.concatenate([columns["timestamp"] for columns in assets.values()])):
        present = {
            symbol: {
                name: column[columns["timestamp"] == stamp] for name, column in columns.items()
            }
            for symbol, columns in assets.items()
            if (columns["timestamp"] == stamp).any()
        }
        now = cross_columns(present)
        for symbol in present:
            row = int((assets[symbol]["timestamp"] == stamp).argmax())
            for name in CROSS_FIELDS:
                assert_array_equal(now[symbol][name], history[symbol][name][[row]], name)
