"""The dependence between assets over time: an exponentially weighted covariance, and the copula
that it implies.

A cross rate is the sum of two other rates at any volatility: covariances keep such relations,
correlations do not. So scores times forecast scales are averaged, and a stamp's correlation is that
of the covariance with the forecast variances that is nearest to the average in relative entropy
(Kullback 1959). Not in the paper.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from vaiom.codec import decode
from vaiom.distribution.buckets import BucketDistribution, Floats
from vaiom.errors import DataError
from vaiom.features.events import has_return
from vaiom.features.fields import Columns
from vaiom.files import read_json
from vaiom.market.symbols import default_class

LEAST_TAIL = 1e-9
"""PITs are kept this far from 0 and 1."""

"""Bars that carry no information about dependence; zero returns do."""

Series = tuple[Any, Floats, Floats]
"""One asset's stamps, scores and scales."""

_MOST_EXPLAINED = 0.5
"""The most of a new asset's variance that others may explain before it has data."""


@dataclass(frozen=True, kw_only=True)
class ReferenceCopula:
    """A copula of scores alone: `weight` on their EWMA with `decay`, the rest on the Train
    correlation.
    """

    weight: float = 0.0
    decay: float = 0.99
    degrees: float | None = None
    """Degrees of freedom; None is Gaussian."""

    def correlation(self, average: Floats, start: Floats) -> Floats:
        """The mix of the EWMA and the Train correlation."""
        return correlation_of(self.weight * average + (1 - self.weight) * start)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dependence:
    """What Train fits; `covariance` is of scores times scales, in the unit where variances have
    mean log 0.
    """

    checkpoint_sha256: str
    symbols: tuple[str, ...]
    classes: tuple[str, ...]
    covariance: Floats
    correlation: Floats
    """Of the scores."""
    decay: float
    """EWMA decay per stamp."""
    shrinkage: float
    """Weight of the Train covariance against the EWMA."""
    degrees: dict[str, float | None]
    """Degrees of freedom of the copula by horizon; None is Gaussian."""
    references: dict[str, ReferenceCopula]
    """Copulas that it is compared with."""
    num_stamps: int

    def __post_init__(self) -> None:
        size = len({*self.symbols})
        sizes = {
            len(self.symbols),
            len(self.classes),
            *self.covariance.shape,
            *self.correlation.shape,
        }
        if not (sizes == {size} and self.covariance.ndim == self.correlation.ndim == 2):
            raise ValueError("matrices of another size than the assets")
        if not (0 < self.decay < 1 and 0 < self.shrinkage <= 1 and "1" in self.degrees):
            raise ValueError("parameters without sense")
        for matrix in (self.covariance, self.correlation):
            values = np.linalg.eigvalsh(matrix)
            if not np.array_equal(matrix, matrix.T) or not values[0] > 1e-12 * values[-1] > 0:
                raise ValueError("a matrix that is not positive definite")

    @classmethod
    def read(cls, file: Path, checkpoint_sha256: str) -> Self:
        """Read what `vaiom dependence` wrote beside a checkpoint; a file of another checkpoint is
        refused.
        """
        fix = "fit it again: vaiom dependence"
        fit = decode(cls, read_json(file), "not a fitted dependence of assets", where=file, fix=fix)
        if (got := fit.checkpoint_sha256) != checkpoint_sha256:
            problem = "the dependence was fitted for another checkpoint"
            raise DataError(problem, where=file, expected=checkpoint_sha256, got=got, fix=fix)
        return fit

    @property
    def memory(self) -> int:
        """Stamps until a weight falls below a hundredth."""
        return math.ceil(math.log(0.01) / math.log(self.decay))

    def begin(self) -> DependenceState:
        """The state before the first stamp."""
        start, counts = self.covariance, np.zeros(len(self.symbols), np.int64)
        return DependenceState(
            fit=self, symbols=self.symbols, covariance=start, target=start, counts=counts
        )

    @cached_property
    def class_means(self) -> dict[tuple[str, str], float]:
        """Mean correlation by pair of asset classes; 0 if Train had no such pair."""
        own, classes = correlation_of(self.covariance), np.array(self.classes)
        apart = ~np.eye(len(classes), dtype=bool)
        pairs = {
            (a, b): apart & np.outer(classes == a, classes == b)
            for a in self.classes
            for b in self.classes
        }
        return {pair: float(own[which].mean()) for pair, which in pairs.items() if which.any()}


@dataclass(frozen=True, kw_only=True, eq=False)
class DependenceState:
    """The covariance after some stamps."""

    fit: Dependence
    symbols: tuple[str, ...]
    covariance: Floats
    target: Floats
    """Shrinkage target: the Train covariance, extended to other assets by the mean correlation of
    their class.
    """
    counts: Any
    """(n,) stamps at which each asset was present along with others."""

    def after(self, symbols: Sequence[str], scores: Floats, scales: Floats) -> DependenceState:
        """The state after one more stamp with these assets; (n,) each."""
        state, unit = self._with_assets(symbols, scales)
        values = np.full(len(state.symbols), np.nan)
        values[state._at(symbols)] = scores * scales / unit
        covariance = average(state.covariance, values, self.fit.decay)
        # Only ratios matter: the unit is fixed, or changes of it would accumulate.
        covariance *= math.exp(float(np.mean(np.log(np.diag(state.target) / np.diag(covariance)))))
        counts = state.counts + (np.isfinite(values) if len(symbols) > 1 else 0)
        return replace(state, covariance=covariance, counts=counts)

    def through(
        self, symbols: Sequence[str], scores: Floats, scales: Floats
    ) -> Iterator[DependenceState]:
        """The state before each stamp and after the last; (stamps, n) each, NaN where an asset is
        absent.
        """
        state = self
        yield state
        for score, scale in zip(scores, scales, strict=True):
            present = np.flatnonzero(np.isfinite(score))
            state = state.after(
                [symbols[asset] for asset in present.tolist()], score[present], scale[present]
            )
            yield state

    def after_all(self, series: Mapping[str, Series]) -> DependenceState:
        """The state after all stamps of these series."""
        stamps = np.unique(np.concatenate([stamps for stamps, _, _ in series.values()]))
        scores, scales = (np.full((len(stamps), len(series)), np.nan) for _ in range(2))
        for asset, (own, score, scale) in enumerate(series.values()):
            at = np.searchsorted(stamps, own)
            scores[at, asset], scales[at, asset] = score, scale
        return deque(self.through(list(series), scores, scales), maxlen=1)[0]

    def correlation(self, symbols: Sequence[str], scales: Floats) -> Floats:
        """(n, n) correlation of the scores at the next stamp, given its forecast scales."""
        state, _ = self._with_assets(symbols, scales)
        at = np.ix_(state._at(symbols), state._at(symbols))
        weight = self.fit.shrinkage
        covariance = (1 - weight) * state.covariance[at] + weight * state.target[at]
        roots = np.sqrt(np.diag(covariance))
        ratios = np.log(scales / roots)
        variances = np.exp(2 * (ratios - ratios.mean()))
        return correlation_of(with_variances(covariance / np.outer(roots, roots), variances))

    def _at(self, symbols: Sequence[str]) -> list[int]:
        return [self.symbols.index(symbol) for symbol in symbols]

    def _with_assets(self, symbols: Sequence[str], scales: Floats) -> tuple[DependenceState, float]:
        """The state with all these assets, and the divisor of scales that weighs calm and volatile
        stamps equally.
        """
        state, own = (
            self,
            dict(zip(self.symbols, np.sqrt(np.diag(self.covariance)).tolist(), strict=True)),
        )
        pairs = list(zip(symbols, scales.tolist(), strict=True))
        ratios = [
            math.log(scale / own.get(symbol, 1.0))
            for symbol, scale in pairs
            if symbol in own or not own
        ]
        unit = (
            math.exp(sum(ratios) / len(ratios))
            if ratios
            else math.exp(float(np.log(scales).mean()))
        )
        for symbol, scale in pairs:
            if symbol not in own:
                state = state._with_asset(symbol, scale / unit)
        return state, unit

    def _with_asset(self, symbol: str, scale: float) -> DependenceState:
        """The state with one more asset, as correlated with each other one as their classes are on
        average.
        """
        known = dict(zip(self.fit.symbols, self.fit.classes, strict=True))
        *others, own = (known.get(each) or default_class(each) for each in (*self.symbols, symbol))
        means = np.array([self.fit.class_means.get((own, each), 0.0) for each in others])

        def grown(matrix: Floats) -> Floats:
            explained = float(means @ np.linalg.solve(correlation_of(matrix), means))
            least = min(1.0, math.sqrt(_MOST_EXPLAINED / explained)) if explained > 0 else 1.0
            column = (least * scale * means * np.sqrt(np.diag(matrix)))[:, None]
            return np.block([[matrix, column], [column.T, np.full((1, 1), scale * scale)]])

        more: dict[str, Any] = {"covariance": grown(self.covariance), "target": grown(self.target)}
        return replace(
            self, symbols=(*self.symbols, symbol), counts=np.append(self.counts, 0), **more
        )


def average(matrix: Floats, values: Floats, decay: float) -> Floats:
    """An EWMA of outer products after one more vector, NaN where absent; absent entries keep their
    moments.
    """
    absent = np.isnan(values)
    if not absent.any():
        return decay * matrix + (1 - decay) * np.outer(values, values)
    # Moments conditional on the present entries (an EM step), which keeps the matrix positive
    # definite.
    present, filled = ~absent, values.copy()
    slopes = np.linalg.solve(matrix[np.ix_(present, present)], matrix[np.ix_(present, absent)])
    filled[absent] = values[present] @ slopes
    products = np.outer(filled, filled)
    products[np.ix_(absent, absent)] += (
        matrix[np.ix_(absent, absent)] - matrix[np.ix_(absent, present)] @ slopes
    )
    return decay * matrix + (1 - decay) * (products + products.T) / 2


def with_variances(covariance: Floats, variances: Floats) -> Floats:
    """The covariance with these variances nearest in relative entropy: inverses differ on the
    diagonal alone.
    """
    # Newton's method on the convex dual -log det(P + diag d) + sum d, in units where the variances
    # are 1.
    unit = np.sqrt(np.outer(variances, variances))
    precision, added = np.linalg.inv(covariance) * unit, np.zeros_like(variances)
    if np.abs(np.log(variances / np.diag(covariance))).max() > 1:
        # A distant start would crawl along the boundary of positive definiteness: begin where
        # diagonals dominate.
        added = 1 - 2 * np.diag(precision) + np.abs(precision).sum(axis=1)
    for _ in range(100):
        inverse = np.linalg.inv(precision + np.diag(added))
        slope = 1 - np.diag(inverse)
        step = -np.linalg.solve(inverse * inverse, slope)
        gain = -float(slope @ step)
        if not (gain >= 0 and np.diag(inverse).min() > 0):
            break
        decrement = math.sqrt(gain)
        if decrement < 1e-8 * len(variances):
            return np.asarray((inverse + inverse.T) / 2 * unit)
        # The dual is self-concordant: damped steps stay inside, without a line search.
        added += step if decrement < 0.25 else step / (1 + decrement)
    ratios = np.sqrt(variances / np.diag(covariance))
    return np.asarray(
        covariance * np.outer(ratios, ratios)
    )  # no convergence in floating point: keep the correlation


def correlation_of(covariance: Floats) -> Floats:
    """The covariance scaled to a unit diagonal."""
    roots = np.sqrt(np.diag(covariance))
    scaled: Floats = covariance / np.outer(roots, roots)
    np.fill_diagonal(scaled, 1.0)
    return scaled


def pit_of(dists: BucketDistribution[Any], prob_zero: Any, log_ret: Any) -> Floats:
    """P(return <= log_ret), zero returns included; the mid-PIT for a zero return."""
    below = (1 - prob_zero) * np.asarray(dists.cdf(log_ret)) + prob_zero * (
        1 + np.sign(log_ret)
    ) / 2
    return np.asarray(np.clip(below, LEAST_TAIL, 1 - LEAST_TAIL))


def scale_of(dists: BucketDistribution[Any]) -> Floats:
    """Half the width of the central 68%: the standard deviation of a normal distribution."""
    low, high = np.moveaxis(np.asarray(dists.quantile((0.1586553, 0.8413447))), -1, 0)
    return np.asarray(high - low) / 2


def series_of(dists: BucketDistribution[Any], prob_zero: float, columns: Columns) -> Series:
    """Scores and scales of an asset's bars, each by the forecast from the row before it."""
    log_ret = columns["log_ret"][1:]
    usable = has_return(columns)[1:] & (columns["sigma20"][:-1] > 0)
    forecasts = replace(dists, probs=dists.probs[:-1][usable], sigma=dists.sigma[:-1][usable])
    scores = scores_of(pit_of(forecasts, prob_zero, log_ret[usable].astype(np.float64)))
    return columns["timestamp"][1:][usable], scores, scale_of(forecasts)


def scores_of(pit: Floats, degrees: float | None = None) -> Floats:
    """Quantiles of the Student-t distribution, or of the normal one without degrees."""
    from scipy.special import ndtri, stdtrit  # type: ignore[import-untyped]

    if degrees is None:
        return np.asarray(ndtri(pit))
    # At both ends SciPy gives infinities of the other sign, or NaN in older versions.
    return np.where(
        (pit < 1e-99) | (pit == 1), np.copysign(np.inf, pit - 0.5), stdtrit(degrees, pit)
    )


def log_density(correlation: Floats, pit: Floats, degrees: float | None = None) -> float:
    """The log density (nats) of a copula at PITs (n,): Student-t, or Gaussian without degrees."""
    size, scores = len(pit), scores_of(pit, degrees)
    root = np.linalg.cholesky(correlation)
    distance = float(np.sum(np.linalg.solve(root, scores) ** 2))
    volume = -float(np.log(np.diag(root)).sum())
    if degrees is None:
        return volume + (float(scores @ scores) - distance) / 2
    gammas = math.lgamma((degrees + size) / 2) + (size - 1) * math.lgamma(degrees / 2)
    gammas -= size * math.lgamma((degrees + 1) / 2)
    margins = (degrees + 1) / 2 * float(np.log1p(scores**2 / degrees).sum())
    return volume + gammas + margins - (degrees + size) / 2 * math.log1p(distance / degrees)
