"""The figures that the pandas reference finds in the real bars."""

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
