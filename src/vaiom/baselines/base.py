"""The contract of everything that predicts return buckets, and the baselines by name.

A baseline is fitted on Train events and gives probabilities of buckets for any rows, as a model
does. Paper: Methods, "Baselines".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, get_type_hints

import numpy as np
import numpy.typing as npt

from vaiom.codec import from_json, to_json
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import slots_of_week, usual_sizes
from vaiom.errors import ConfigError, DataError
from vaiom.features.events import is_target
from vaiom.features.fields import INVALID, NUM_RETURN_BUCKETS
from vaiom.files import Progress, read_json, write_json
from vaiom.market.sessions import slot_of_week
from vaiom.market.timeframes import step_seconds

Rows = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float64]

FIT_NAME = "fit.json"
BASELINES = {
    "frequency": "counts:Frequency",
    "markov": "counts:Markov",
    "hour_of_week": "counts:HourOfWeek",
    "ewma_t": "ewma:EwmaT",
    "garch_t": "garch:GarchT",
    "garch_t_seasonal": "garch:GarchTSeasonal",
    "har_t": "har:HarT",
    "lightgbm_disc": "lightgbm:LightGBM",
    "lightgbm_cont": "lightgbm:LightGBM",
    "lightgbm_quick": "lightgbm:LightGBM",
    "lightgbm": "lightgbm:LightGBM",
    "lightgbm_lags": "lightgbm:LightGBM",
    "lightgbm_extra": "lightgbm:LightGBM",
    "tabm": "tabm:TabM",
    "return_tokens": "networks:TrainedNetwork",
    "gru": "networks:TrainedNetwork",
}
"""Module and class of each baseline, ordered by how much it may know."""
PLAIN = ("frequency", "markov", "hour_of_week")
"""Baselines that fit in a moment: `vaiom evaluate` fits them itself."""
QUICK = (*PLAIN, "ewma_t", "garch_t", "garch_t_seasonal", "har_t")
"""Baselines that fit in seconds."""
SHORTENED = ("lightgbm_quick",)
"""Baselines that another one, on more events, replaces: fitted where they are named."""
FOR_GPUS = ("tabm", "return_tokens", "gru")
"""Baselines that take hours on a few CPU cores: skipped there unless named."""


class Predictor(Protocol):
    """Anything that predicts the next return bucket of a row."""

    @property
    def name(self) -> str: ...

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Floats:
        """Probabilities (n, K) of the return bucket that follows each row (n,); column j belongs to
        bucket j + 1.
        """
        ...


class Baseline(ABC):
    """A predictor that is fitted to given events and nothing else.

    Fitted attributes are annotated in the class and end in an underscore; they are stored as JSON
    unless a baseline has `save` and `load` of its own.
    """

    name: str
    fits_bars: ClassVar[bool] = False
    """Whether it is fitted to single bars, whatever horizon it then predicts."""

    def __init__(self, name: str | None = None, progress: Progress | None = None) -> None:
        if name is not None:
            self.name = name
        self.progress = progress

    def fit(self, corpus: Corpus, rows: Rows) -> Self:
        """Learn from the targets of these rows, which must be events."""
        if not len(rows):
            raise DataError(
                "no events to fit on",
                expected="at least one valid Train event",
                fix="bring in a longer history",
            )
        assert (corpus.target_return[rows] != INVALID).all(), "an event has a valid target"
        self._fit(corpus, rows)
        return self

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Floats:
        """As of any `Predictor`; before `fit` it is an error."""
        if not self.is_fitted:
            problem = f"{self.name} predicts only after it was fitted"
            raise DataError(problem, fix="call fit with Train events first")
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
        """The fitted attributes as JSON, without their underscores."""
        state = {}
        for name in self._fitted():
            value = getattr(self, name)
            stored = value._state() if isinstance(value, Baseline) else to_json(value)
            state[name.removesuffix("_")] = stored
        return state

    def _restore(self, state: dict[str, Any]) -> Self:
        for name, hint in self._fitted().items():
            stored = state[name.removesuffix("_")]
            nested = isinstance(hint, type) and issubclass(hint, Baseline)
            setattr(self, name, hint()._restore(stored) if nested else from_json(hint, stored))
        return self

    def _fitted(self) -> dict[str, Any]:
        """The type of each fitted attribute."""
        hints = get_type_hints(type(self))
        return {name: hint for name, hint in hints.items() if name.endswith("_")}

    @abstractmethod
    def _fit(self, corpus: Corpus, rows: Rows) -> None: ...

    @abstractmethod
    def _predict(self, corpus: Corpus, rows: Rows) -> Floats: ...


def damaged_fit(file: Path) -> DataError:
    """The error of a stored fit that cannot be read."""
    fix = f"remove {file.parent} and fit again"
    return DataError("a stored fit is damaged", where=file, fix=fix)


def rows_by_asset(corpus: Corpus, rows: Rows) -> dict[str, npt.NDArray[np.bool_]]:
    """Which of the rows (n,) belong to each asset, for the assets that have any."""
    parts = {
        symbol: (rows >= inside.start) & (rows < inside.stop)
        for symbol, inside in corpus.asset_slices.items()
    }
    return {symbol: chosen for symbol, chosen in parts.items() if chosen.any()}


def count_targets(corpus: Corpus, rows: Rows) -> Floats:
    """(K,) how many of the rows' events ended in each bucket."""
    counts = np.bincount(corpus.target_return[rows], minlength=NUM_RETURN_BUCKETS + 1)
    return counts[1:].astype(np.float64)


def clean_returns(corpus: Corpus, rows: slice) -> Floats:
    """Log returns of the rows, NaN where one is undefined, exactly zero or excessive."""
    clean = is_target(corpus.columns["flags"][rows])
    return np.where(clean, corpus.columns["log_ret"][rows], np.nan)


def slots_of(corpus: Corpus, rows: Rows | slice) -> npt.NDArray[np.int64]:
    """(n,) the slot of the week in which each row's bar lies."""
    step = step_seconds(corpus.tokenizer.timeframe)
    return slot_of_week(corpus.columns["timestamp"][rows], step)


def slot_sizes(corpus: Corpus, rows: Rows) -> Floats:
    """(assets + 1, slots of the week) usual size of the return after a bar, over the mean of all;
    the first row is for an unknown asset.
    """
    sizes = np.abs(corpus.log_ret_next[rows])
    assets = corpus.meta[rows, 0].astype(np.int64)
    shape = (len(corpus.asset_slices) + 1, slots_of_week(corpus))
    return usual_sizes(sizes, assets, slots_of(corpus, rows), shape)


def smooth(counts: Floats) -> Floats:
    """Shares of counts along the last axis, with one more event in every bucket (Laplace)."""
    raised = counts + 1.0
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def usual_baselines() -> list[str]:
    """The baselines that this machine fits in reasonable time."""
    import torch

    left_out = SHORTENED if torch.cuda.is_available() else (*SHORTENED, *FOR_GPUS)
    return [name for name in BASELINES if name not in left_out]


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
    create = getattr(import_module(f"vaiom.baselines.{module}"), kind)
    instance: Baseline = create(name, progress=progress)
    return instance
