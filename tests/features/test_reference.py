"""Features, masks, targets, fit sets and edges against the pandas reference, which shares no code
with the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from benchmarks import events_pandas as reference
from strategies import frame_of, price_pairs, random_bars
from vaiom.corpus.build import CorpusConfig, corpus_in_memory
from vaiom.corpus.split_quality import count_events
from vaiom.corpus.splits import TRAIN, SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.features.asset_state import AssetState
from vaiom.features.fields import ANY_MASK, MASK_BITS, has_flag
from vaiom.features.rows import RowColumns, bars_of, rows_of
from vaiom.market.folder import read_bars

TOLERANCE = 1e-12
# Of order one, and some of them differences that may cancel to nothing: absolute and relative.
# Scales: relative alone.
DIMENSIONLESS = ("ret_z", "gap_z", "relative_log_vol")
SCALES = ("sigma20", "log_ret")
TASKS = {"return": "ret_z_next", "gap": "gap_z_next", "vol_regime": "relative_log_vol_next"}
TRAIN_END = datetime(2023, 12, 1)


def require_close(ours: object, theirs: object, name: str, absolute: float = 0.0) -> None:
    """Close, and undefined in the same places."""
    assert_allclose(ours, theirs, rtol=TOLERANCE, atol=absolute, equal_nan=True, err_msg=name)


def require_same_rows(ours: RowColumns, theirs: pd.DataFrame) -> None:
    for name in DIMENSIONLESS:
        require_close(ours[name], theirs[name], name, absolute=TOLERANCE)
    for name in SCALES:
        require_close(ours[name], theirs[name], name)
    for name, bit in {**MASK_BITS, "any": ANY_MASK}.items():
        assert_array_equal(has_flag(ours["flags"], bit), theirs[f"mask_{name}"], name)


def require_same_corpus(
    corpus: Corpus, bars: Mapping[str, pl.DataFrame]
) -> Mapping[str, pd.DataFrame]:
    """Targets, fit sets and edges; returns what the reference makes of the bars."""
    made = reference.events({symbol: frame.to_pandas() for symbol, frame in bars.items()})
    fitted_on = reference.fit_sets(made, pd.Timestamp(corpus.splits.train_end))
    edges = reference.fit_edges(fitted_on)
    assert {name: len(values) for name, values in corpus.edges.items()} == {
        k: len(v) for k, v in edges.items()
    }
    for task, values in edges.items():
        require_close(corpus.edges[task], values, f"edges of {task}", absolute=TOLERANCE)

    everything = pd.concat(made.values(), ignore_index=True)
    require_close(corpus.log_ret_next, everything["log_ret_next"], "log_ret_next")
    require_close(corpus.sigma20, everything["sigma20"].fillna(0.0), "sigma20")
    assert_array_equal(
        corpus.target_timestamps, everything["target_timestamp"].to_numpy("datetime64[s]")
    )
    for name in ("mask_any", "target_bad"):
        assert_array_equal(getattr(corpus, name), everything[name], name)
    valid = everything["valid_return"] & ~everything["mask_any"]
    assert_array_equal(corpus.valid_base, valid)

    train = ~corpus.mask_any & (corpus.split_codes == corpus.splits.code(TRAIN))
    for task, column in TASKS.items():
        target = getattr(corpus, f"target_{task}")
        assert_array_equal(target > 0, everything[f"valid_{task}"], f"validity of {task}")
        ids = reference.bucket(everything[column], everything[f"valid_{task}"], corpus.edges[task])
        # Values that differ in their last bit may fall on both sides of an edge; an exact zero is
        # the same for both.
        values = everything[column].to_numpy()
        distance = np.abs(values[:, None] - corpus.edges[task][1:-1]).min(axis=1)
        unsure = (values != 0) & (distance <= TOLERANCE)
        assert ((target == ids) | unsure).all(), f"buckets of {task}"
        assert_array_equal(everything[column][train & (target > 0)], fitted_on[task], task)
    return made


@given(price_pairs())
def test_rows_of_any_series(prices: tuple[np.ndarray, np.ndarray]) -> None:
    bars = frame_of(*prices)
    require_same_rows(
        rows_of(bars_of(bars), AssetState.empty(None))[0], reference.features(bars.to_pandas())
    )


@settings(max_examples=40)
@given(st.lists(price_pairs(), max_size=3), st.integers(0, 1000))
def test_a_corpus_of_any_series(unkind: list[tuple[np.ndarray, np.ndarray]], seed: int) -> None:
    """One kind asset gives edges to fit; the others, among them one of a single row, may be
    anything.
    """
    bars = {"AUDUSD": random_bars(900, seed), "EURUSD": random_bars(1, seed)}
    bars |= {f"X{number}": frame_of(*prices) for number, prices in enumerate(unkind)}
    config = CorpusConfig(splits=SplitConfig().shifted_to(TRAIN_END))
    require_same_corpus(corpus_in_memory(bars, config), bars)


def test_the_real_bars(shared_data: Path) -> None:
    bars = read_bars(shared_data / "bars_1h")
    assert len(bars) == 11
    corpus = corpus_in_memory(shared_data / "bars_1h")
    for symbol, features in require_same_corpus(corpus, bars).items():
        require_same_rows(rows_of(bars_of(bars[symbol]), AssetState.empty(None))[0], features)
    counts = {split: sum(of_assets.values()) for split, of_assets in count_events(corpus).items()}
    assert (counts["train"], counts["validation"], counts["test-h1"]) == (1_128_594, 33_878, 33_174)
    inside = {
        name: [round(edge, 4) for edge in edges[1:-1] if abs(edge) < 2]
        for name, edges in corpus.edges.items()
    }
    assert inside == {
        "return": [-0.9975, -0.6146, -0.2646, 0.0145, 0.2835, 0.6321, 1.0119],
        "gap": [-0.6439, -0.2994, -0.0290, 0.0, 0.0401, 0.3174, 0.6672],
        "vol_regime": [-0.2637, -0.1375, -0.0281, 0.1042],
    }
