"""A live bar to its forecast where layers see a window of rows: one row, against a pass over its
whole window.

Enters: nothing; the best model with random weights, which cost the same as trained ones, and a
simulated market whose assets read each other. Leaves: a `Measurement` of taking a bar and
forecasting, on one thread, in its processor time, which a busy machine spoils least. `extra` has
the spread of that time, and how much faster all Validation events are scored in stretches than
window by window on the same threads. Both ways must give the same probabilities.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from benchmarks.predict import card
from benchmarks.race import Measurement
from vaiom.corpus.build import corpus_in_memory
from vaiom.corpus.splits import VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.errors import VaiomError
from vaiom.experiments.registry import experiment
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.torch_backend import TorchBackend
from vaiom.market.folder import read_bars
from vaiom.model.config import ModelConfig
from vaiom.model.vaiom import Vaiom
from vaiom.simulation.market import MarketConfig, write_market
from vaiom.training.windows import DeviceCorpus, Scorer

MARKET = MarketConfig(assets=6, bars=20_000)
PUSHED_BARS = 600
SCORED_WINDOWS = 128
TOLERANCE = 1e-5


def run(_bars: Path | None = None, _corpus: Path | None = None) -> Measurement:
    """The benchmark with `best`."""
    return measure(experiment("best").model)


def measure(
    config: ModelConfig,
    market: MarketConfig = MARKET,
    pushed: int = PUSHED_BARS,
    scored: int = SCORED_WINDOWS,
) -> Measurement:
    """Take bars one by one, as they come in a live hour; then forecast from the windows that they
    left.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_market(market, Path(folder) / "bars")
        assets = read_bars(Path(folder) / "bars")
        corpus = corpus_in_memory(Path(folder) / "bars")
    torch.manual_seed(0)
    model = Vaiom(config, corpus.tokenizer.vocabulary_sizes).eval()
    forecaster = Forecaster(TorchBackend(model, threads=1), card(config, corpus.tokenizer))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    worst, ours, windows = _race(assets, forecaster, pushed)
    torch.set_num_threads(before)
    return Measurement(
        name="stream",
        input=f"a bar of one of {len(assets)} assets that are read together, one thread",
        ours_seconds=float(np.median(ours)),
        reference_seconds=float(np.median(windows)),
        equal=f"probabilities of {pushed} forecasts, to {worst:.0e}",
        extra={
            **{
                f"live_p{level}_ms": round(1e3 * float(np.percentile(ours, level)), 3)
                for level in (50, 99)
            },
            **_score(corpus, model, scored),
        },
    )


def _race(
    bars: dict[str, pl.DataFrame], forecaster: Forecaster, pushed: int
) -> tuple[float, list[float], list[float]]:
    """The largest difference, the seconds of a bar with its forecast, and of a forecast from its
    whole window.
    """
    live = -(-pushed // len(bars))  # bars of each asset, rounded up
    kept = 2 * forecaster.context + live
    online = forecaster.online()
    worst = 0.0
    online.extend_many({symbol: frame.tail(kept).head(-live) for symbol, frame in bars.items()})
    reference = online.copy()
    for symbol in bars:
        online.forecast(symbol)
    later = pl.concat(
        [frame.tail(live).with_columns(symbol=pl.lit(symbol)) for symbol, frame in bars.items()]
    )
    pushes = [
        (bar.pop("symbol"), bar)
        for bar in later.sort("Datetime", "symbol").head(pushed).iter_rows(named=True)
    ]
    ours = []
    theirs = []
    dists = []
    for symbol, bar in pushes:
        start = time.thread_time()
        dist = online.push(symbol, bar)
        ours.append(time.thread_time() - start)
        dists.append(dist)
    for (symbol, bar), dist in zip(pushes, dists, strict=True):
        reference.push(symbol, bar, forecast=False)
        start = time.thread_time()
        expected = forecaster.forecast([reference.window(symbol)])[symbol]
        theirs.append(time.thread_time() - start)
        assert dist is not None
        worst = max(worst, float(np.abs(dist.probs - expected.probs).max()))
    if not worst <= TOLERANCE:
        raise VaiomError(f"the stream differs from the window by {worst:.2g} in a probability")
    return worst, ours, theirs


def _score(corpus: Corpus, model: Vaiom, windows: int) -> dict[str, Any]:
    """All Validation events in stretches; some of them window by window, which takes the same time
    for each.
    """
    cpu = torch.device("cpu")
    data = DeviceCorpus(corpus, model.config, cpu)
    rows = corpus.endpoints(VALIDATION, model.config.context)
    start = time.perf_counter()
    answers = Scorer(model, data, torch.float32).predict(rows)
    seconds = time.perf_counter() - start
    few = np.linspace(0, len(rows) - 1, windows).astype(np.int64)
    start = time.perf_counter()
    with torch.inference_mode():
        expected = torch.cat(
            [model.log_probs(*data.inputs(torch.from_numpy(rows[[one]]))) for one in few]
        )
    per_window = (time.perf_counter() - start) / len(few)
    worst = (answers[few] - expected).abs().max().item()
    if not worst <= 10 * TOLERANCE:
        raise VaiomError(f"stretches differ from windows by {worst:.2g} in a log-probability")
    return {
        "scored_events": len(rows),
        "score_seconds": round(seconds, 2),
        "score_ratio": round(per_window * len(rows) / seconds, 1),
        "score_threads": torch.get_num_threads(),
    }
