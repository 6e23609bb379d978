"""The contract of everything that predicts return buckets, and the baselines by name. Paper:
Methods, "Baselines".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, get_type_hints

import numpy as np
import numpy.typing as npt

from vaiom.codec import from_json, to_json
from vaiom.corpus.store import Corpus
from vaiom.errors import ConfigError, DataError
from vaiom.features.events import is_target
from vaiom.features.fields import INVALID, NUM_RETURN_BUCKETS
from vaiom.files import Progress, read_json, write_json

Rows = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float64]

FIT_NAME = "fit.json"
BASELINES = {
    "frequency": "counts:Frequency",
    "markov": "counts:Markov",
    "hour_of_week": "counts:HourOfWeek",
    "ewma_t": "volatility:EwmaT",
    "garch_t": "volatility:GarchT",
    "garch_t_seasonal": "volatility:GarchTSeasonal",
    "har_t": "volatility:HarT",
    **{
        f"lightgbm{inputs}": "lightgbm:LightGBM"
        for inputs in ("_disc", "_cont", "", "_lags", "_extra")
    },
    "tabm": "networks:TabM",
    "return_tokens": "networks:Neural",
    "gru": "networks:Neural",
}
"""Module and class of each baseline, ordered by how much it may know."""
PLAIN = ("frequency", "markov", "hour_of_week")
"""Baselines that fit in a moment: `vaiom evaluate` fits them itself."""
FOR_GPUS = ("tabm", "return_tokens", "gru")
"""Baselines that take hours on a few CPU cores: skipped there unless named."""


class Predictor(Protocol):
    """Anything that predicts the next return bucket of a row."""

    @property
    def name(self) -> str: ...

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Floats:
        """Probabilities (n, K) of the next return bucket of each row; column j belongs to bucket j
        + 1.
        """
        ...


class Baseline(ABC):
    """A predictor that is fitted to given events and nothing else; fitted attributes end in `_`."""

    name: str
    stored_as: ClassVar[dict[str, str]] = {}
    """Keys in the stored fit of attributes that are stored under another name."""
    fits_bars: ClassVar[bool] = False
    """Whether it is fitted to single bars, whatever horizon it then predicts."""

    def __init__(self, name: str | None = None, progress: Progress | None = None) -> None:
        if name is not None:
            self.name = name
        self.progress = progress

    def fit(self, corpus: Corpus, rows: Rows) -> Self:
        """Learn from the targets of these rows."""
        if not len(rows):
            fix = "bring in a longer history"
            raise DataError(
                "no events to fit on", expected="at least one valid Train event", fix=fix
            )
        assert (corpus.target_return[rows] != INVALID).all(), (
            "an event without a valid target cannot be fitted"
        )
        self._fit(corpus, rows)
        return self

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Floats:
        if not self.is_fitted:
            raise DataError(
                f"{self.name} predicts only after it was fitted",
                fix="call fit with Train events first",
            )
        return self._predict(corpus, rows)

    @property
    def is_fitted(self) -> bool:
        return any(name.endswith("_") for name in vars(self))

    def config(self) -> dict[str, Any]:
        """All settings that determine the fit of given events, as JSON."""
        return {}

    def save(self, folder: Path) -> None:
        """Write the fit into an empty folder."""
        write_json(folder / FIT_NAME, self._state())

    def load(self, folder: Path) -> Self:
        """Restore a fit that `save` wrote."""
        file = folder / FIT_NAME
        try:
            return self._restore(read_json(file))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged_fit(file) from error

    def _state(self) -> dict[str, Any]:
        """The fitted attributes as JSON."""
        parts = {key: getattr(self, name) for name, key, _ in self._fitted()}
        return {
            key: part._state() if isinstance(part, Baseline) else to_json(part)
            for key, part in parts.items()
        }

    def _restore(self, state: dict[str, Any]) -> Self:
        for name, key, hint in self._fitted():
            nested = isinstance(hint, type) and issubclass(hint, Baseline)
            setattr(
                self, name, hint()._restore(state[key]) if nested else from_json(hint, state[key])
            )
        return self

    def _fitted(self) -> Iterator[tuple[str, str, Any]]:
        """Name, stored key and type of every fitted attribute."""
        for name, hint in get_type_hints(type(self)).items():
            if name.endswith("_"):
                yield name, self.stored_as.get(name, name.removesuffix("_")), hint

    @abstractmethod
    def _fit(self, corpus: Corpus, rows: Rows) -> None: ...

    @abstractmethod
    def _predict(self, corpus: Corpus, rows: Rows) -> Floats: ...


def damaged_fit(file: Path) -> DataError:
    return DataError(
        "a stored fit is damaged", where=file, fix=f"remove {file.parent} and fit again"
    )


def rows_by_asset(corpus: Corpus, rows: Rows) -> dict[str, npt.NDArray[np.bool_]]:
    """Which of the rows belong to each asset, for the assets that have any."""
    parts = {
        s: (rows >= inside.start) & (rows < inside.stop)
        for s, inside in corpus.asset_slices.items()
    }
    return {symbol: chosen for symbol, chosen in parts.items() if chosen.any()}


def count_targets(corpus: Corpus, rows: Rows) -> Floats:
    """How many of the rows' events ended in each bucket, (K,)."""
    return np.bincount(corpus.target_return[rows], minlength=NUM_RETURN_BUCKETS + 1)[1:].astype(
        np.float64
    )


def clean_returns(corpus: Corpus, rows: slice) -> Floats:
    """Log returns of the rows, NaN where one is undefined, exactly zero or excessive."""
    clean = is_target(corpus.columns["flags"][rows])
    return np.where(clean, corpus.columns["log_ret"][rows], np.nan)


def smooth(counts: Floats) -> Floats:
    """Shares of the counts along the last axis, with one more event in every bucket (Laplace)."""
    raised = counts + 1.0
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def usual_baselines() -> list[str]:
    """The baselines that this machine fits in reasonable time."""
    import torch

    return [name for name in BASELINES if name not in FOR_GPUS or torch.cuda.is_available()]


def require_known(names: list[str]) -> list[str]:
    """The names without repetitions; an unknown name, or none at all, is an error that lists the
    known ones.
    """
    for name in names or [""]:
        if name not in BASELINES:
            raise ConfigError("unknown baseline", expected=", ".join(BASELINES), got=repr(name))
    return list(dict.fromkeys(names))


def baseline(name: str, progress: Progress | None = None) -> Baseline:
    """A named baseline, not fitted yet; an unknown name is an error that lists the known ones."""
    require_known([name])
    module, kind = BASELINES[name].split(":")
    instance: Baseline = getattr(import_module(f"vaiom.baselines.{module}"), kind)(
        name, progress=progress
    )
    return instance
