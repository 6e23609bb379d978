"""The dependence between assets over time: an exponentially weighted covariance, and the copula
that it implies.

Enters: the scores of each stamp's returns (`vaiom.distribution.copula`) and the forecast scales of
these returns. Leaves: the correlation of the scores at the next stamp, for a `JointDistribution`.

A cross rate is the sum of two other rates at any volatility: covariances keep such relations,
correlations do not. So the covariance of scores times scales is averaged. The correlation at a
stamp belongs to the covariance that has the forecast variances and is nearest to the average in
relative entropy (Kullback 1959, "Information Theory and Statistics"). Not in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from vaiom.codec import decode
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.copula import correlation_of, pit_of, scores_of, symmetric
from vaiom.distribution.shape import Floats, Ints
from vaiom.errors import DataError
from vaiom.features.events import has_return
from vaiom.features.typing import Columns
from vaiom.files import read_json
from vaiom.market.symbols import default_class

_LEAST_EIGENVALUE = 1e-12
"""Of a positive definite matrix, over the largest."""
_LEAST_WEIGHT = 0.01
"""A stamp whose weight in the average is smaller may be left out."""
_MOST_EXPLAINED = 0.5
"""The largest share of a new asset's variance that others may explain before it has data."""
_CENTRAL = (0.1586553, 0.8413447)
"""Levels of a normal distribution at one standard deviation below and above its mean."""
_NEWTON_STEPS = 100
_SMALL_STEP = 1e-8
_FULL_STEP = 0.25
"""Below this Newton decrement, full steps converge quadratically."""


class ScoreSeries(NamedTuple):
    """One asset's scores and forecast scales at its stamps, (n,) each."""

    stamps: Any
    scores: Floats
    scales: Floats


@dataclass(frozen=True, kw_only=True)
class ReferenceCopula:
    """A copula of scores alone: `weight` on the EWMA of their products with `decay`, the rest on
    the Train correlation.
    """

    weight: float = 0.0
    decay: float = 0.99
    degrees: float | None = None
    """Degrees of freedom; None is Gaussian."""

    def correlation(self, average: Floats, start: Floats) -> Floats:
        """The mix of the EWMA and the Train correlation, (n, n) each."""
        return correlation_of(self.weight * average + (1 - self.weight) * start)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dependence:
    """What is fitted on Train. Matrices are (n, n) in the order of `symbols`."""

    checkpoint_sha256: str
    symbols: tuple[str, ...]
    classes: tuple[str, ...]
    covariance: Floats
    """Of scores times scales, in the unit in which the log variances have mean 0."""
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
        size = len(set(self.symbols))
        if not size == len(self.symbols) == len(self.classes):
            raise ValueError("symbols of another size than classes, or repeated")
        if not (0 < self.decay < 1 and 0 < self.shrinkage <= 1):
            raise ValueError("decay and shrinkage are weights between 0 and 1")
        if "1" not in self.degrees:
            raise ValueError("degrees of freedom are needed for one bar at least")
        for matrix in (self.covariance, self.correlation):
            if matrix.shape != (size, size):
                raise ValueError("a matrix of another size than the assets")
            values = np.linalg.eigvalsh(matrix)
            is_positive = values[0] > _LEAST_EIGENVALUE * values[-1] > 0
            if not is_positive or not np.array_equal(matrix, matrix.T):
                raise ValueError("a matrix that is not positive definite")

    @classmethod
    def read(cls, file: Path, checkpoint_sha256: str) -> Self:
        """Read the file that `vaiom dependence` wrote for this checkpoint."""
        fix = "fit it again: vaiom dependence"
        fit = decode(cls, read_json(file), "not a fitted dependence of assets", where=file, fix=fix)
        if fit.checkpoint_sha256 != checkpoint_sha256:
            raise DataError(
                "the dependence was fitted for another checkpoint",
                where=file,
                expected=checkpoint_sha256,
                got=fit.checkpoint_sha256,
                fix=fix,
            )
        return fit

    @property
    def memory(self) -> int:
        """The number of stamps that the average needs: older ones weigh less than a hundredth."""
        return math.ceil(math.log(_LEAST_WEIGHT) / math.log(self.decay))

    def initial_state(self) -> DependenceState:
        """The state before the first stamp."""
        return DependenceState(
            fit=self,
            symbols=self.symbols,
            covariance=self.covariance,
            target=self.covariance,
            counts=np.zeros(len(self.symbols), np.int64),
        )

    @cached_property
    def class_means(self) -> dict[tuple[str, str], float]:
        """The mean correlation of pairs of assets by their classes, where Train had such pairs."""
        correlation = correlation_of(self.covariance)
        classes = np.array(self.classes)
        is_other = ~np.eye(len(classes), dtype=bool)
        means = {}
        for first, second in product(set(self.classes), repeat=2):
            is_pair = is_other & np.outer(classes == first, classes == second)
            if is_pair.any():
                mean = correlation[is_pair].mean()
                means[first, second] = float(mean)
        return means


@dataclass(frozen=True, kw_only=True, eq=False)
class DependenceState:
    """What is known after some stamps. Matrices are (n, n) in the order of `symbols`."""

    fit: Dependence
    symbols: tuple[str, ...]
    covariance: Floats
    """The EWMA, in the unit of `Dependence.covariance`."""
    target: Floats
    """What the EWMA is shrunk to: the Train covariance, extended to assets that Train did not have.
    """
    counts: Ints
    """(n,) stamps at which each asset was present along with others."""

    def updated(self, symbols: Sequence[str], scores: Floats, scales: Floats) -> DependenceState:
        """The state after one more stamp, with the scores and scales (n,) of the assets present."""
        unit = self._unit(symbols, scales)
        state = self._with_assets(symbols, scales / unit)
        present = state._places(symbols)
        moves = np.full(len(state.symbols), np.nan)
        moves[present] = scores * scales / unit
        covariance = update_ewma(state.covariance, moves, self.fit.decay)
        # Only ratios of variances matter. Their geometric mean is kept, so that errors of the
        # unit do not accumulate.
        ratios = np.diag(state.target) / np.diag(covariance)
        covariance *= _geometric_mean(ratios)
        counts = state.counts.copy()
        if len(symbols) > 1:
            counts[present] += 1
        return replace(state, covariance=covariance, counts=counts)

    def states(
        self, symbols: Sequence[str], scores: Floats, scales: Floats
    ) -> Iterator[DependenceState]:
        """The states before each stamp and after the last; (stamps, n), NaN where absent."""
        state = self
        yield state
        for score, scale in zip(scores, scales, strict=True):
            present = np.flatnonzero(np.isfinite(score))
            names = [symbols[asset] for asset in present.tolist()]
            state = state.updated(names, score[present], scale[present])
            yield state

    def updated_through(self, series: Mapping[str, ScoreSeries]) -> DependenceState:
        """The state after all stamps of these assets' series."""
        own_stamps = [each.stamps for each in series.values()]
        stamps = np.unique(np.concatenate(own_stamps))
        shape = (len(stamps), len(series))
        scores = np.full(shape, np.nan)
        scales = np.full(shape, np.nan)
        for asset, each in enumerate(series.values()):
            at = np.searchsorted(stamps, each.stamps)
            scores[at, asset] = each.scores
            scales[at, asset] = each.scales
        last = self
        for state in self.states(list(series), scores, scales):
            last = state
        return last

    def correlation(self, symbols: Sequence[str], scales: Floats) -> Floats:
        """(n, n) correlation of the scores at the next stamp, given its forecast scales (n,)."""
        unit = self._unit(symbols, scales)
        state = self._with_assets(symbols, scales / unit)
        places = state._places(symbols)
        at = np.ix_(places, places)
        average = state.covariance[at]
        distance = state.target[at] - average
        covariance = average + self.fit.shrinkage * distance
        deviations = np.sqrt(np.diag(covariance))
        log_ratios = np.log(scales / deviations)
        variances = np.exp(2 * (log_ratios - log_ratios.mean()))
        correlation = covariance / np.outer(deviations, deviations)
        nearest = with_variances(correlation, variances)
        return correlation_of(nearest)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {symbol: place for place, symbol in enumerate(self.symbols)}

    def _places(self, symbols: Sequence[str]) -> list[int]:
        return [self._index[symbol] for symbol in symbols]

    def _unit(self, symbols: Sequence[str], scales: Floats) -> float:
        """The divisor of a stamp's scales with which calm and volatile stamps weigh the same.

        It is the geometric mean of the scales, over the average ones of assets that are known.
        """
        deviations = np.sqrt(np.diag(self.covariance))
        ratios = []
        for symbol, scale in zip(symbols, scales, strict=True):
            if symbol in self._index:
                deviation = deviations[self._index[symbol]]
                ratios.append(scale / deviation)
        return _geometric_mean(np.array(ratios) if ratios else scales)

    def _with_assets(self, symbols: Sequence[str], scales: Floats) -> DependenceState:
        """The state with all these assets, of which new ones have these scales."""
        state = self
        for symbol, scale in zip(symbols, scales.tolist(), strict=True):
            if symbol not in self._index:
                state = state._with_asset(symbol, scale)
        return state

    def _with_asset(self, symbol: str, scale: float) -> DependenceState:
        """The state with a new asset, correlated with each other one as their classes are on
        average.
        """
        known = dict(zip(self.fit.symbols, self.fit.classes, strict=True))
        own = default_class(symbol)
        means = []
        for other in self.symbols:
            pair = own, known.get(other) or default_class(other)
            mean = self.fit.class_means.get(pair, 0.0)
            means.append(mean)
        correlations = np.array(means)
        return replace(
            self,
            symbols=(*self.symbols, symbol),
            covariance=_grown(self.covariance, correlations, scale),
            target=_grown(self.target, correlations, scale),
            counts=np.append(self.counts, 0),
        )


def _geometric_mean(values: Floats) -> float:
    return float(np.exp(np.log(values).mean()))


def _grown(covariance: Floats, correlations: Floats, scale: float) -> Floats:
    """The covariance with one more asset; its correlations (n,) are cut to explain half at most."""
    slopes = np.linalg.solve(correlation_of(covariance), correlations)
    explained = float(correlations @ slopes)
    if explained > _MOST_EXPLAINED:
        correlations = correlations * math.sqrt(_MOST_EXPLAINED / explained)
    deviations = np.sqrt(np.diag(covariance))
    covariances = scale * correlations * deviations
    others = np.column_stack([covariance, covariances])
    own = np.append(covariances, scale * scale)
    return np.vstack([others, own])


def update_ewma(average: Floats, values: Floats, decay: float) -> Floats:
    """An EWMA of products (n, n) after one more vector (n,), NaN where absent.

    Absent entries have the moments that the average and the present entries imply (an EM step),
    which keeps the matrix positive definite.
    """
    products = _expected_products(average, values)
    return decay * average + (1 - decay) * products


def _expected_products(covariance: Floats, values: Floats) -> Floats:
    """(n, n) products of values (n,), expected ones where a value is absent."""
    absent = np.isnan(values)
    if not absent.any():
        return np.outer(values, values)
    present = ~absent
    among_present = np.ix_(present, present)
    among_absent = np.ix_(absent, absent)
    between = covariance[np.ix_(present, absent)]
    slopes = np.linalg.solve(covariance[among_present], between)
    filled = values.copy()
    filled[absent] = values[present] @ slopes
    products = np.outer(filled, filled)
    products[among_absent] += covariance[among_absent] - between.T @ slopes
    return symmetric(products)


def with_variances(covariance: Floats, variances: Floats) -> Floats:
    """The covariance (n, n) with these variances (n,) that is nearest in relative entropy.

    Its inverse differs from the given one's on the diagonal alone. Where floating point does not
    converge, the correlation stays as it is.
    """
    # Newton's method on the convex dual -log det(P + diag d) + sum d, in the units in which the
    # wanted variances are 1.
    unit = np.sqrt(np.outer(variances, variances))
    inverse = np.linalg.inv(covariance)
    precision = inverse * unit
    added = np.zeros_like(variances)
    log_ratios = np.log(variances / np.diag(covariance))
    if np.abs(log_ratios).max() > 1:
        # From a distant start the steps would stay small near the boundary of positive
        # definiteness. Dominant diagonals are far from it.
        row_sums = np.abs(precision).sum(axis=1)
        added = 1 - 2 * np.diag(precision) + row_sums
    for _ in range(_NEWTON_STEPS):
        inverse = np.linalg.inv(precision + np.diag(added))
        reached = np.diag(inverse)
        slope = 1 - reached
        curvature = inverse * inverse
        step = -np.linalg.solve(curvature, slope)
        gain = -float(slope @ step)
        if not (gain >= 0 and reached.min() > 0):
            break
        decrement = math.sqrt(gain)
        if decrement < _SMALL_STEP * len(variances):
            return np.asarray(symmetric(inverse) * unit)
        if decrement >= _FULL_STEP:
            # The dual is self-concordant: damped steps stay inside, without a line search.
            step /= 1 + decrement
        added += step
    ratios = np.exp(log_ratios / 2)
    return np.asarray(covariance * np.outer(ratios, ratios))


def scale_of(dists: BucketDistribution) -> Floats:
    """Half the width of the central 68%: the standard deviation where returns are normal."""
    quantiles = np.asarray(dists.quantile(_CENTRAL))
    return np.diff(quantiles)[..., 0] / 2


def score_series(dists: BucketDistribution, prob_zero: float, columns: Columns) -> ScoreSeries:
    """Scores and scales of an asset's bars, each by the forecast from the row before it.

    `dists` are the forecasts after each of the rows; the first bar has no forecast.
    """
    has_scale = columns["sigma20"][:-1] > 0
    before = np.flatnonzero(has_scale & has_return(columns)[1:])
    after = before + 1
    forecasts = replace(dists, probs=dists.probs[before], sigma=dists.sigma[before])
    log_ret = columns["log_ret"][after].astype(np.float64)
    pit = pit_of(forecasts, prob_zero, log_ret)
    stamps = columns["timestamp"][after]
    return ScoreSeries(stamps, scores_of(pit), scale_of(forecasts))
