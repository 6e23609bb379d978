"""Forecasts and outcomes of all assets by timestamp, to fit and judge their dependence on.

Enters: a model, a corpus, a period. Leaves: a `Panel` of arrays (stamps, assets). A bar counts for
the stamp at which it was the target; a bar without a price or with an absurd return does not count.
Not in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import Floats
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import fit_of_next_bar
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.copula import log_density, pit_of, scores_of
from vaiom.distribution.dependence import Dependence, DependenceState, scale_of, update_ewma
from vaiom.errors import DataError
from vaiom.evaluation.predictor import ModelPredictor

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """Forecasts and outcomes by stamp and asset, (stamps, assets) each; NaN where an asset has no
    bar.
    """

    symbols: tuple[str, ...]
    prob_zero: dict[str, float]
    """The chance of a zero return that is served for each symbol."""
    stamps: npt.NDArray[np.datetime64]
    """Left edges of the target bars, in order."""
    dists: BucketDistribution
    """The forecasts of all rows, in the order of the corpus."""
    numbers: Ints
    """Place of each forecast in `dists`; -1 where there is none."""
    rows: Ints
    """Row of the corpus from which each forecast was made; -1 where there is none."""
    pit: Floats
    """PIT of the realised return, zero returns included."""
    scores: Floats
    """Normal quantile of the PIT."""
    scale: Floats
    """Half the width of the central 68% of the forecast, in log returns."""
    log_ret: Floats
    """The realised log return."""

    def present(self, at: int) -> Ints:
        """The assets that have a bar at a stamp."""
        return np.flatnonzero(self.rows[at] >= 0)

    def whole_stamps(self) -> Ints:
        """The stamps at which every asset has a bar."""
        return np.flatnonzero((self.rows >= 0).all(axis=1))

    def joint_stamps(self, begin: int = 0) -> Ints:
        """The stamps from `begin` on at which two assets or more have a bar."""
        counts = (self.rows[begin:] >= 0).sum(axis=1)
        return begin + np.flatnonzero(counts > 1)

    def states(self, fit: Dependence) -> Iterator[DependenceState]:
        """The state of a dependence before each stamp, and after the last."""
        return fit.initial_state().states(self.symbols, self.scores, self.scale)

    def averages(self, start: Floats, decay: float) -> Iterator[Floats]:
        """The EWMA (assets, assets) of products of scores before each stamp."""
        for scores in self.scores:
            yield start
            start = update_ewma(start, scores, decay)

    def correlations(
        self, chosen: Sequence[int], states: Iterable[DependenceState]
    ) -> list[Floats]:
        """The correlation of the assets present at each chosen stamp, given the state before it."""
        out = []
        for at, state in zip(chosen, states, strict=True):
            assets = self.present(at)
            symbols = [self.symbols[asset] for asset in assets]
            out.append(state.correlation(symbols, self.scale[at, assets]))
        return out

    def copula_nats(
        self, chosen: Sequence[int], correlations: Iterable[Floats], degrees: float | None
    ) -> Floats:
        """The log density of a copula at each chosen stamp, in nats.

        The correlations are of all assets, or of those that are present.
        """
        nats = []
        for at, matrix in zip(chosen, correlations, strict=True):
            assets = self.present(at)
            own = matrix if len(matrix) == len(assets) else matrix[np.ix_(assets, assets)]
            nats.append(log_density(own, self.pit[at, assets], degrees))
        return np.array(nats)


def select(values: Iterable[Any], chosen: Iterable[int]) -> list[Any]:
    """The values at the chosen places of an iterator."""
    places = {int(at) for at in chosen}
    return [value for at, value in enumerate(values) if at in places]


def panel_rows(
    corpus: Corpus, history: int, first: np.datetime64, last: np.datetime64, before: int
) -> Ints:
    """The rows before all targets from `first` to before `last`, and before earlier targets.

    `history` is how many rows of its asset a forecast needs, `before` the number of stamps before
    `first` that are added.
    """
    times = corpus.target_timestamps
    usable = (corpus.sigma20 > 0) & corpus.target().known & (times < last)
    for asset in corpus.asset_slices.values():
        usable[asset.start : min(asset.start + history - 1, asset.stop)] = False
    rows = np.flatnonzero(usable)
    stamps = np.unique(times[rows])
    begin = max(0, int(np.searchsorted(stamps, first)) - before)
    return rows[np.isin(times[rows], stamps[begin:])]


def make_panel(
    model: ModelPredictor, corpus: Corpus, first: np.datetime64, last: np.datetime64, before: int
) -> Panel:
    """The panel of all targets from `first` to before `last`, and of `before` stamps earlier."""
    rows = panel_rows(corpus, model.checkpoint.config.history, first, last, before)
    if not len(rows):
        raise DataError(
            "no forecast to learn a dependence from",
            where=corpus.path,
            expected=f"targets after {first}",
        )
    symbols = corpus.tokenizer.symbols
    # The shares that are served with the model: a corpus built like it has its own.
    tokenizer = model.checkpoint.tokenizer
    shares = np.array(fit_of_next_bar(tokenizer).zero_share)
    zero_share = shares[[tokenizer.asset_id(symbol) for symbol in symbols]]
    times = corpus.target_timestamps[rows]
    stamps = np.unique(times)
    at = np.searchsorted(stamps, times)
    assets = corpus.meta[rows, 0] - 1
    dists = BucketDistribution(
        probs=model.predict_proba(corpus, rows),
        sigma=corpus.sigma20[rows],
        shape=corpus.tokenizer.return_shape,
    )
    log_ret = corpus.log_ret_next[rows].astype(np.float64)
    pit = pit_of(dists, zero_share[assets], log_ret)

    def spread(values: npt.NDArray[Any], absent: float = np.nan) -> npt.NDArray[Any]:
        out = np.full((len(stamps), len(symbols)), absent, values.dtype)
        out[at, assets] = values
        return out

    return Panel(
        symbols=symbols,
        prob_zero=dict(zip(symbols, zero_share.tolist(), strict=True)),
        stamps=stamps,
        dists=dists,
        numbers=spread(np.arange(len(rows)), -1),
        rows=spread(rows, -1),
        pit=spread(pit),
        scores=spread(scores_of(pit)),
        scale=spread(scale_of(dists)),
        log_ret=spread(log_ret),
    )
