"""The start of a service on many stored bars: `python -m benchmarks.restart [ASSETS] [BARS]`.

Enters: numbers of made-up assets and of hourly bars of each. Leaves on stdout as JSON: seconds of a
first start, which stores a bar folder; of a restart, which computes the state from the stored bars;
of the first forecast of every asset after it; and the peak memory.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.folder_peak import peak_mib
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import write_symbol
from vaiom.serve.answers import describe_assets
from vaiom.serve.bar_store import Store
from vaiom.serve.state import LiveAssets

MODEL = "fx-1h"
START = datetime(2010, 1, 4)


def make_bars(folder: Path, assets: int, bars: int) -> None:
    """A folder of random walks: the model's own assets first, then others."""
    draw = np.random.default_rng(0)
    known = Forecaster.pretrained(MODEL).symbols
    others = [f"ASSET{number:03d}" for number in range(assets)]
    hours = pl.datetime_range(
        START, START + timedelta(hours=bars - 1), "1h", time_unit="us", eager=True
    )
    for symbol in [*known, *others][:assets]:
        close = np.exp(np.cumsum(1e-3 * draw.standard_normal(bars)))
        opened = np.concatenate([[1.0], close[:-1]])
        spread = 1 + 3e-4 * draw.random(bars)
        frame = pl.DataFrame(
            {
                "Datetime": hours,
                "Open": opened,
                "High": np.maximum(opened, close) * spread,
                "Low": np.minimum(opened, close) / spread,
                "Close": close,
                "Volume": draw.random(bars),
            }
        )
        write_symbol(folder, symbol, frame)


def measure(assets: int, bars: int) -> dict[str, float]:
    """Seconds of each part of a start."""
    seconds = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "bars"
        state = Path(name) / "state"
        make_bars(folder, assets, bars)
        forecaster = Forecaster.pretrained(MODEL)
        for part, source in (("first_start_seconds", folder), ("restart_seconds", None)):
            began = time.perf_counter()
            live = LiveAssets(forecaster, Store(state, forecaster.card.sha256), 0.0, folder=source)
            seconds[part] = time.perf_counter() - began
            if source:
                live.store.close()
        began = time.perf_counter()
        describe_assets(live)
        seconds["first_forecasts_seconds"] = time.perf_counter() - began
        live.store.close()
    return {"assets": assets, "bars": bars, **seconds, "peak_mib": peak_mib()}


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:] or ("100", "60000")))))
