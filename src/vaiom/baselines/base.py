"""The contract of everything that predicts return buckets: fit on Train events, then probabilities for any events.

Enters: a corpus and row numbers of events (`Corpus.endpoints`). Leaves: probabilities (n, K) of buckets 1..K, and a
folder that holds a fit.
Paper: Methods, "Baselines"; all are fitted on Train and transform-only elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from vaiom.errors import DataError
from vaiom.events.corpus import Corpus
from vaiom.events.schema import INVALID
from vaiom.files import read_json, write_json

Rows = npt.NDArray[np.integer]
Probabilities = npt.NDArray[np.float64]
Progress = Callable[[int, int, str], None]
"""Called with (done, total, what is being done)."""

LAPLACE_COUNT = 1.0
FIT_NAME = "fit.json"


class Predictor(Protocol):
    """Anything that gives a distribution over return buckets from what a row knows."""

    @property
    def name(self) -> str: ...

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Probabilities:
        """Probabilities (n, K) of the next return bucket of each row; column j belongs to bucket j + 1."""
        ...


class Baseline(Predictor, Protocol):
    """A predictor that learns from the events it is given and from nothing else."""

    def fit(self, corpus: Corpus, rows: Rows) -> Self:
        """Learn from the targets of these rows."""
        ...

    def config(self) -> dict[str, Any]:
        """Everything besides the events that decides the fit, as JSON."""
        ...

    def save(self, folder: Path) -> None:
        """Write the fit into an empty folder."""
        ...

    def load(self, folder: Path) -> Self:
        """Take over a fit that `save` wrote."""
        ...


class JsonFit:
    """A baseline whose fit is a few numbers: they are kept as one JSON object."""

    name: str

    def config(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        write_json(folder / FIT_NAME, self.state())

    def load(self, folder: Path) -> Self:
        file = folder / FIT_NAME
        try:
            self.restore(read_json(file))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged_fit(file) from error
        return self


class TableFit(JsonFit):
    """A baseline whose fit is one table of probabilities, by whatever the row is known by."""

    probs_: Probabilities

    def state(self) -> dict[str, Any]:
        return {"probs": self.probs_.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        self.probs_ = np.array(state["probs"], np.float64)


def damaged_fit(file: Path) -> DataError:
    return DataError("a stored fit is damaged", where=file, fix=f"remove {file.parent} and fit again")


def require_fitted(baseline: Predictor) -> None:
    """An error if nothing was fitted yet: fitted attributes end in an underscore."""
    if not any(name.endswith("_") for name in vars(baseline)):
        raise DataError(f"{baseline.name} predicts only after it was fitted", fix="call fit with Train events first")


def asset_parts(corpus: Corpus, rows: Rows) -> dict[str, npt.NDArray[np.bool_]]:
    """Which of the rows belong to each asset, for the assets that have any."""
    parts = {s: (rows >= inside.start) & (rows < inside.stop) for s, inside in corpus.asset_slices.items()}
    return {symbol: chosen for symbol, chosen in parts.items() if chosen.any()}


def num_return_buckets(corpus: Corpus) -> int:
    return len(corpus.edges["return"]) - 1


def targets_to_fit(corpus: Corpus, rows: Rows) -> npt.NDArray[np.uint8]:
    """The buckets that the rows' events ended in, or an error if there is nothing to learn from."""
    if not len(rows):
        raise DataError(
            "no events to fit on", expected="at least one valid Train event", fix="bring in a longer history"
        )
    targets = corpus.target_return[rows]
    assert (targets != INVALID).all(), "an event without a valid target cannot be fitted"
    return targets


def smoothed(counts: npt.NDArray[np.float64]) -> Probabilities:
    """Shares of the counts along the last axis with one imagined event more in every bucket."""
    raised = counts + LAPLACE_COUNT
    shares: Probabilities = raised / raised.sum(axis=-1, keepdims=True)
    return shares
