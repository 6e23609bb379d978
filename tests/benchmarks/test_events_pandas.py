"""The pandas reference itself: rules on bars written by hand, and the figures known of the real
bars.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import events_pandas as reference
from vaiom.market.folder import read_bars

SPLITS = {
    "train": (None, pd.Timestamp("2024-01-01")),
    "validation": (pd.Timestamp("2024-07-01"), pd.Timestamp("2025-01-01")),
    "test-h1": (pd.Timestamp("2025-01-01"), pd.Timestamp("2025-07-01")),
}


def bars_of(opens: list[float | None], closes: list[float | None]) -> pd.DataFrame:
    stamps = pd.date_range("2023-01-02", periods=len(closes), freq="h")
    return pd.DataFrame({"Datetime": stamps, "Open": opens, "Close": closes}).astype(
        {"Open": float, "Close": float}
    )


def test_masks_of_bars_written_by_hand() -> None:
    # good, missing open, stale, missing close, no previous close, crash, non-positive open
    rows = reference.features(
        bars_of([1.0, None, 1.0, 1.0, 1.0, 1.0, 0.0], [1.0, 1.1, 1.1, None, 1.2, 0.1, 0.11]),
    )
    assert rows["mask_missing"].tolist() == [False, True, False, True, False, False, True]
    assert rows["mask_stale"].tolist() == [False, False, True, False, False, False, False]
    assert rows["mask_bad_data"].tolist() == [False, False, False, False, False, True, False]
    assert rows["log_ret"].isna().tolist() == [True, False, False, True, True, False, False]
    # No return is clean here, so no scale is ever defined.
    assert rows["sigma20"].isna().all()
    assert rows["mask_scale_zero"].all()
    assert rows["mask_any"].all()


def test_history_scale_and_targets_of_alternating_returns() -> None:
    closes = [1.0 if row % 2 == 0 else float(np.exp(0.01)) for row in range(30)]
    rows = reference.features(bars_of(closes, closes))
    target = reference.targets(rows)
    assert rows["mask_insufficient_history"].tolist() == [row < 21 for row in range(30)]
    assert rows["mask_scale_zero"].tolist() == [row < 2 for row in range(30)]
    np.testing.assert_allclose(rows["sigma20"][1:], 0.01)
    np.testing.assert_allclose(rows["ret_z"][2:].abs(), 1.0)
    np.testing.assert_allclose(target["ret_z_next"][1:-1], rows["ret_z"][2:])
    assert target["target_bad"].tolist() == [False] * 29 + [True]
    assert not target[["valid_return", "valid_gap", "valid_vol_regime"]].iloc[-1].any()


def test_a_scale_decays_across_a_missing_return() -> None:
    closes = [1.0, np.exp(0.01), np.exp(0.01), np.exp(0.03)]
    sigma = reference.features(bars_of(closes, closes))["sigma20"]
    alpha = 2 / 21
    old = (1 - alpha) ** 2
    expected = np.sqrt((old * 0.01**2 + alpha * 0.02**2) / (old + alpha))
    assert sigma[2] == sigma[1]
    np.testing.assert_allclose(sigma[3], expected, rtol=1e-12)


def test_edges_collapse_and_values_on_an_edge_fall_below_it() -> None:
    half_zero = np.concatenate([np.zeros(60), np.linspace(-1, 1, 41), [-9.0, 2.0]])
    edges = reference.fit_edges({"return": half_zero, "gap": half_zero, "vol_regime": half_zero})
    interior = edges["return"][5:-5]
    assert (interior == 0).sum() == 1
    assert (np.abs(interior) < 1).all()
    z = pd.Series([-8.0, -7.9, 0.0, 8.0, 9.0, np.nan])
    ids = reference.bucket(z, z.notna(), edges["return"])
    at_zero = 5 + int((interior < 0).sum())
    last = len(edges["return"]) - 1
    assert ids.tolist() == [1, 2, at_zero, last - 1, last, 0]


def test_counts_and_edges_of_the_real_bars(shared_data: Path) -> None:
    bars = {
        symbol: frame.to_pandas() for symbol, frame in read_bars(shared_data / "bars_1h").items()
    }
    made = reference.events(bars)
    counts = {
        split: sum(len(reference.endpoints(frame, start, end)) for frame in made.values())
        for split, (start, end) in SPLITS.items()
    }
    assert counts == {"train": 1_128_594, "validation": 33_878, "test-h1": 33_174}
    edges = reference.fit_edges(reference.fit_sets(made))
    expected = {
        "return": [-0.9975, -0.6146, -0.2646, 0.0145, 0.2835, 0.6321, 1.0119],
        "gap": [-0.6439, -0.2994, -0.0290, 0.0, 0.0401, 0.3174, 0.6672],
        "vol_regime": [-0.2637, -0.1375, -0.0281, 0.1042],
    }
    for task, interior in expected.items():
        inside = edges[task][np.abs(edges[task]) < 2]
        assert inside.round(4).tolist() == pytest.approx(interior, abs=1e-12)
