"""One forecast of the main model from a full window, against a plain pass over all its positions.

Enters: nothing; weights are random, which costs the same as trained ones. Leaves: a `Measurement`
of one forecast by PyTorch, inputs and distribution included, on one thread. `extra` has the same
for ONNX Runtime where it is installed, both on more threads, and the time of taking a live bar. All
backends must give the same probabilities.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.race import Measurement
from vaiom.corpus.build import CorpusConfig, corpus_in_memory
from vaiom.corpus.tokenizer import Tokenizer
from vaiom.errors import ConfigError, VaiomError
from vaiom.features.inputs import inputs_of
from vaiom.forecast.backend import TOLERANCE, Backend
from vaiom.forecast.export import to_onnx
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.onnx_backend import OnnxBackend
from vaiom.forecast.torch_backend import TorchBackend
from vaiom.forecast.window import Window
from vaiom.market.folder import read_bars
from vaiom.model.checkpoint import Checkpoint, ModelCard, Provenance
from vaiom.model.config import ModelConfig
from vaiom.model.heads import return_log_probs
from vaiom.model.vaiom import Vaiom
from vaiom.simulation.market import MarketConfig, simulate, write_market

REPEATS = 60
THREADS = (1, 2)
PUSHED_BARS = 200


def run(_bars: Path | None = None, _corpus: Path | None = None) -> Measurement:
    """The benchmark with the main model."""
    return measure(ModelConfig())


def measure(config: ModelConfig, repeats: int = REPEATS) -> Measurement:
    """Race all ways to one forecast in turns."""
    forecaster, window = _forecaster(config)
    ways: dict[str, Callable[[], Any]] = {"plain": lambda: plain_probs(forecaster, window)}
    exported = _exported(forecaster)
    for threads in THREADS:
        backends: dict[str, Backend] = {"torch": TorchBackend(_model(forecaster), threads=threads)}
        if exported is not None:
            backends["onnxruntime"] = OnnxBackend(exported, threads)
        for name, backend in backends.items():
            ways[f"{name}_{threads}"] = partial(
                _probs, Forecaster(backend, forecaster.card), window
            )
    equal = require_equal({name: way() for name, way in ways.items()})
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            seconds[name].append(_seconds(way))
    middle = {name: float(np.median(taken)) for name, taken in seconds.items()}
    others = {name: each for name, each in middle.items() if name not in ("plain", "torch_1")}
    return Measurement(
        name="predict",
        input=f"one window of {config.context} rows, one thread",
        ours_seconds=middle["torch_1"],
        reference_seconds=middle["plain"],
        equal=equal,
        extra={
            **{f"ratio_{name}": round(middle["plain"] / each, 3) for name, each in others.items()},
            **{
                f"p99_ms_{name}": round(1e3 * float(np.quantile(s, 0.99)), 2)
                for name, s in seconds.items()
            },
            "push_ms": round(1e3 * push_seconds(forecaster, window), 3),
        },
    )


def plain_probs(forecaster: Forecaster, window: Window) -> Any:
    """A full pass as one would write it first: every position, of which the last is kept."""
    meta = forecaster.tokenizer.meta(window.symbol)
    events = inputs_of(forecaster.config, window.columns, meta)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        logits = _model(forecaster)(torch.from_numpy(events)[None], torch.from_numpy(meta)[None])
    torch.set_num_threads(before)
    return return_log_probs(logits)[0, -1].double().exp().numpy()


def require_equal(answers: dict[str, Any]) -> str:
    """All ways must give the probabilities of the plain one; says how nearly they do."""
    worst = max(float(np.abs(answer - answers["plain"]).max()) for answer in answers.values())
    if not worst <= TOLERANCE:
        raise VaiomError(
            f"the backends differ: {worst:.2g} in a probability, {TOLERANCE:g} is allowed"
        )
    return f"probabilities of {len(answers)} ways, to {worst:.0e}"


def push_seconds(forecaster: Forecaster, window: Window) -> float:
    """The median time of taking a live bar, model apart, once the window is full."""
    bars = next(
        iter(simulate(MarketConfig(assets=1, bars=forecaster.context + PUSHED_BARS)).values())
    ).bars
    online = forecaster.online()
    online.extend(window.symbol, bars.head(forecaster.context))
    live = bars.tail(PUSHED_BARS).iter_rows(named=True)
    taken = [_seconds(partial(online.push, window.symbol, bar, forecast=False)) for bar in live]
    return float(np.median(taken))


def _forecaster(config: ModelConfig) -> tuple[Forecaster, Window]:
    """A forecaster with random weights, and a window of simulated bars."""
    market = MarketConfig(assets=2, bars=20_000)
    with tempfile.TemporaryDirectory() as folder:
        write_market(market, Path(folder) / "bars")
        assets = read_bars(Path(folder) / "bars")
        tokenizer = corpus_in_memory(Path(folder) / "bars", CorpusConfig()).tokenizer
    torch.manual_seed(0)
    model = Vaiom(config, tokenizer.vocabulary_sizes).eval()
    forecaster = Forecaster(TorchBackend(model), card(config, tokenizer))
    symbol, bars = next(iter(assets.items()))
    return forecaster, forecaster.windows({symbol: bars})[0]


def card(config: ModelConfig, tokenizer: Tokenizer) -> ModelCard:
    origin = Provenance(
        vaiom_version="",
        corpus_sha256="",
        inputs=[],
        splits={},
        experiment="bench",
        train={},
        seed=0,
        step=0,
        validation_bits=None,
    )
    return ModelCard(config=config, tokenizer=tokenizer, provenance=origin, sha256="")


def _model(forecaster: Forecaster) -> Vaiom:
    """The network of a forecaster that runs in PyTorch."""
    assert isinstance(forecaster.backend, TorchBackend)
    return forecaster.backend.model


def _exported(forecaster: Forecaster) -> bytes | None:
    """The model as ONNX; None where the libraries are not installed."""
    try:
        return to_onnx(Checkpoint(**vars(forecaster.card), model=_model(forecaster)))
    except ConfigError:
        return None


def _probs(forecaster: Forecaster, window: Window) -> Any:
    """Probabilities after a window."""
    return forecaster.forecast([window])[window.symbol].probs


def _seconds(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
