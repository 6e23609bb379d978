"""Two tiny models, the bars that a service begins with and those that follow, and the real
application, made once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import torch

from strategies import random_bars
from training.tiny_runs import SPLITS, TINY
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.features.fields import CROSS_FIELDS
from vaiom.forecast.bars import seconds_of
from vaiom.forecast.forecaster import Forecaster
from vaiom.market.folder import write_symbol
from vaiom.model.checkpoint import Provenance, save_checkpoint
from vaiom.model.vaiom import Vaiom
from vaiom.serve import app
from vaiom.serve.card import ModelAnswer
from vaiom.serve.metrics import Metrics
from vaiom.serve.server import ServeConfig
from vaiom.serve.service import Service

SYMBOLS = ("EURUSD", "XAUUSD")
KEY = "secret"
HISTORY, CONTEXT = 120, 16
LEARNED = HISTORY - 3
"""Bars that a model learned from; those of the folder after them may be scored."""
MODELS: dict[str, dict[str, Any]] = {
    "alone": {},
    "reads others": {
        "positions": "rotary",
        "attention_window": 8,
        "fields": ("ret_z", *CROSS_FIELDS),
    },
}

Bar = tuple[Any, ...]
"""Stamp in seconds, prices, volume."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    forecaster: Forecaster
    frames: dict[str, pl.DataFrame]
    """The bar folder."""
    later: dict[str, list[Bar]]
    card: ModelAnswer
    front: SimpleNamespace
    app: Any
    """Answers for the service that `front` names: routes are made once, services many times."""


def make_models(folder: Path) -> None:
    """Untrained: it does not matter what they forecast, but that it is always the same."""
    frames = {symbol: random_bars(900, seed) for seed, symbol in enumerate(SYMBOLS)}
    for symbol, frame in frames.items():
        write_symbol(folder / "bars", symbol, frame)
    tokenizer = build_corpus(
        folder / "bars", folder / "corpus", CorpusConfig(splits=SPLITS)
    ).tokenizer
    origin = Provenance(
        vaiom_version="0",
        corpus_sha256="",
        inputs=[],
        splits={"train_end": frames["EURUSD"]["Datetime"][LEARNED].isoformat()},
        experiment="simulated",
        train={},
        seed=0,
        step=0,
        validation_bits=None,
    )
    for name, changes in MODELS.items():
        torch.manual_seed(0)
        config = TINY.with_changes(num_layers=1, context=CONTEXT, **changes).model
        save_checkpoint(
            folder / f"{name}.safetensors",
            Vaiom(config, tokenizer.vocabulary_sizes),
            tokenizer,
            origin,
        )


def load_model(folder: Path, name: str) -> Model:
    forecaster = Forecaster.load(folder / f"{name}.safetensors")
    bars = {symbol: pl.read_parquet(folder / "bars" / f"{symbol}.parquet") for symbol in SYMBOLS}
    frames = {symbol: frame[:HISTORY] for symbol, frame in bars.items()}
    config = ServeConfig(run=folder, state=folder, api_keys=(KEY,))
    front = SimpleNamespace(service=None, config=config, metrics=Metrics())
    for _, _, route, *_ in app.ROUTES:
        setattr(front, route, _passed_on(front, route))
    later = {
        symbol: [as_tuple(row) for row in frame[HISTORY:].iter_rows()]
        for symbol, frame in bars.items()
    }
    return Model(
        forecaster=forecaster,
        frames=frames,
        later=later,
        card=ModelAnswer.of(forecaster),
        front=front,
        app=app.make_app(front),
    )


def as_tuple(row: Sequence[Any]) -> Bar:
    return (seconds_of(row[0]), *row[1:])


def _passed_on(front: SimpleNamespace, route: str) -> Callable[..., Awaitable[Any]]:
    """A handler that asks the service of the moment, with the signature of the real one."""

    async def answer(*values: Any, **named: Any) -> Any:
        return await getattr(front.service, route)(*values, **named)

    answer.__wrapped__ = getattr(Service, route).__get__(front)  # type: ignore[attr-defined]
    return answer
