"""Student-t returns whose scale follows the past: the corpus's EWMA scale, a GARCH(1,1) or a HAR.
Not in the paper.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import (
    Baseline,
    Floats,
    Rows,
    clean_returns,
    count_targets,
    rows_by_asset,
    smooth,
)
from vaiom.baselines.lightgbm import lagged, rolling_mean
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import slots_of_week, usual_sizes
from vaiom.features.fields import NUM_RETURN_BUCKETS, UNKNOWN_ASSET
from vaiom.market.sessions import DAY, slot_of_week, usual_successors
from vaiom.market.timeframes import step_seconds

MIN_EVENTS = 500
MIN_RETURNS = 1_000
MIN_DEGREES, MAX_DEGREES = 0.5, 200.0  # at the upper end it is normal to three digits
_MIN_PROBABILITY = 1e-300
_LEAST_RANGE, _LEAST_SQUARE = 0.01, 1e-16
"""Smallest range of a bar or day in units of the week's, and smallest squared range."""
_PATHS, _PATHS_SEED, _KNOTS = 20_000, 17, 8
"""Simulated paths of a sum, their seed, and the number of initial variances."""

# Initial values (omega, alpha, beta, degrees of freedom, for returns of size one) beside the
# library's own: the likelihood of hourly returns has several peaks, and the optimiser may stop
# where it started, so the best is kept.
_STARTS = (
    (0.005, 0.05, 0.945, 4.0),
    (0.005, 0.02, 0.975, 3.0),
    (0.02, 0.1, 0.88, 4.0),
    (0.15, 0.4, 0.55, 3.0),
)


class EwmaT(Baseline):
    """The next return is Student-t with the corpus's own EWMA scale times a constant.

    Buckets are in units of that same scale, so an asset has one distribution of buckets, fitted by
    their likelihood. An asset without enough Train events gets the pooled one.
    """

    name = "ewma_t"
    stored_as: ClassVar = {"students_": "laws"}
    students_: dict[
        str, tuple[float, float]
    ]  # scale in units of sigma20 and degrees of freedom, by symbol
    pooled_: tuple[float, float]

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        edges = corpus.edges["return"]
        self.pooled_ = fit_student(edges, count_targets(corpus, rows))
        self.students_ = {
            symbol: fit_student(edges, count_targets(corpus, rows[chosen]))
            for symbol, chosen in rows_by_asset(corpus, rows).items()
            if chosen.sum() >= MIN_EVENTS
        }

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        probs = np.empty((len(rows), NUM_RETURN_BUCKETS))
        for symbol, chosen in rows_by_asset(corpus, rows).items():
            scale, degrees = self.students_.get(symbol, self.pooled_)
            probs[chosen] = student_buckets(corpus.edges["return"] / scale, degrees)
        return probs


@dataclass(frozen=True, kw_only=True)
class Garch:
    """h' = omega + alpha r^2 + beta h in squared log returns, from `start` at the asset's first
    row.
    """

    omega: float
    alpha: float
    beta: float
    degrees: float
    start: float

    def next_variance(self, log_ret: Floats) -> Floats:
        """Variance of the return after each row (n,), from returns through it; NaN is a row without
        a clean return.
        """
        from scipy.signal import lfilter  # type: ignore[import-untyped]

        clean = np.isfinite(log_ret)
        shocks = self.omega + self.alpha * log_ret[clean] ** 2
        after, _ = lfilter([1.0], [1.0, -self.beta], shocks, zi=[self.beta * self.start])
        return np.asarray(np.concatenate([[self.start], after])[np.cumsum(clean)])

    def simulated_buckets(self, bounds: Floats, variance: Floats, sizes: Floats) -> Floats:
        """Probabilities (n, K) of sums of the next returns between bounds (n, K + 1), by
        simulation.

        `variance` (n,) is of the next return, `sizes` (n, h) multiply the returns. The sum is
        symmetric, so its absolute value is simulated, at a few initial variances between which rows
        are interpolated.
        """
        draws = np.random.default_rng(_PATHS_SEED).standard_t(
            self.degrees, (sizes.shape[1], _PATHS)
        )
        draws *= math.sqrt((self.degrees - 2) / self.degrees)
        low, high = np.log(variance.min()), np.log(variance.max())
        knots = np.linspace(low, high, _KNOTS) if high - low > 1e-9 else np.array([low])
        # (h, paths) returns from each variance at the start, in units of its root.
        paths = [np.empty_like(draws) for _ in knots]
        for knot, path in zip(knots, paths, strict=True):
            now = np.full(_PATHS, math.exp(knot))
            for step, drawn in enumerate(draws):
                path[step] = np.sqrt(now) * drawn
                now = self.omega + self.alpha * path[step] ** 2 + self.beta * now
            path /= math.sqrt(math.exp(knot))
        place = np.interp(np.log(variance), knots, np.arange(len(knots)))
        standard = np.abs(bounds) / np.sqrt(variance)[:, None]
        within = np.zeros(bounds.shape)
        kinds, kind = np.unique(sizes, axis=0, return_inverse=True)
        for number, weights in enumerate(kinds):
            own = np.flatnonzero(kind.ravel() == number)
            for knot, path in enumerate(paths):
                share = np.maximum(1 - np.abs(place[own] - knot), 0)
                near = own[share > 0]
                if len(near):
                    sums = np.sort(np.abs(weights @ path))
                    within[near] += share[share > 0][:, None] * (
                        np.searchsorted(sums, standard[near]) / _PATHS
                    )
        return smooth(_PATHS * np.diff(0.5 + 0.5 * np.sign(bounds) * within, axis=1))


class GarchT(Baseline):
    """The variance of the next return follows the asset's own past returns, fitted with `arch`
    through Train.

    Rows without a clean return leave the variance unchanged, as in the fit. An asset with too few
    Train returns, or whose fit does not converge, gets `ewma_t`, with a warning. Sums of bars are
    simulated.
    """

    name = "garch_t"
    stored_as: ClassVar = {"models_": "laws"}
    fits_bars = True
    models_: dict[str, Garch]
    fallback_: EwmaT

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        self.fallback_ = EwmaT().fit(corpus, rows)
        self.models_ = {}
        parts = rows_by_asset(corpus, rows)
        for done, (symbol, chosen) in enumerate(parts.items()):
            if self.progress:
                self.progress(done, len(parts), symbol)
            # The last event's target is its next row.
            through = slice(corpus.asset_slices[symbol].start, int(rows[chosen].max()) + 2)
            if model := fit_garch(self._returns(corpus, through, symbol)):
                self.models_[symbol] = model
            else:
                warnings.warn(
                    f"{symbol}: no GARCH fit of its Train returns; {self.name} uses ewma_t",
                    stacklevel=3,
                )
        if self.progress:
            self.progress(len(parts), len(parts), "")

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        probs = self.fallback_.predict_proba(corpus, rows)
        for symbol, chosen in rows_by_asset(corpus, rows).items():
            model, own, inside = self.models_.get(symbol), rows[chosen], corpus.asset_slices[symbol]
            if model is None:
                continue
            variance = model.next_variance(self._returns(corpus, inside, symbol))[
                own - inside.start
            ]
            sizes, bounds = self._usual_sizes(corpus, own, symbol), _bounds(corpus, own)
            if corpus.horizon > 1:
                probs[chosen] = model.simulated_buckets(bounds, variance, sizes)
            else:
                # The conditional variance multiplies variance one, not scale one.
                scale = np.sqrt(variance * (model.degrees - 2) / model.degrees) * sizes[:, 0]
                probs[chosen] = student_buckets(bounds / scale[:, None], model.degrees)
        return probs

    def _returns(self, corpus: Corpus, rows: slice, symbol: str) -> Floats:
        """Clean returns of an asset's rows, the input of the recursion."""
        return clean_returns(corpus, rows)

    def _usual_sizes(self, corpus: Corpus, rows: Rows, symbol: str) -> Floats:
        """(n, h): factors from the returns of the recursion to the next returns after each row."""
        return np.ones((len(rows), corpus.horizon))


class GarchTSeasonal(GarchT):
    """`garch_t` on returns divided by their usual size in the asset's hour of the week."""

    name = "garch_t_seasonal"
    sizes_: Floats  # (assets + 1, slots of the week): of the next return, over the mean of all
    follows_: npt.NDArray[np.int64]  # (assets + 1, slots of the week): the slot that mostly follows

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        slots = _slots(corpus, slice(None))
        self.sizes_ = _sizes_by_slot(corpus, rows)
        self.follows_, num_slots = np.empty(self.sizes_.shape, np.int64), self.sizes_.shape[1]
        for asset in range(len(self.sizes_)):
            own = rows if asset == UNKNOWN_ASSET else rows[corpus.meta[rows, 0] == asset]
            self.follows_[asset] = usual_successors(slots[own], slots[own + 1], num_slots)
        super()._fit(corpus, rows)

    def _returns(self, corpus: Corpus, rows: slice, symbol: str) -> Floats:
        before = np.arange(rows.start, rows.stop - 1)
        sizes = self._usual_sizes(corpus.with_target(1), before, symbol)[:, 0]
        return np.asarray(clean_returns(corpus, rows) / np.concatenate([[1.0], sizes]))

    def _usual_sizes(self, corpus: Corpus, rows: Rows, symbol: str) -> Floats:
        asset = corpus.tokenizer.asset_id(symbol)
        slots = [_slots(corpus, rows)]
        while len(slots) < corpus.horizon:
            slots.append(self.follows_[asset, slots[-1]])
        return np.stack([self.sizes_[asset, each] for each in slots], axis=1)


class HarT(Baseline):
    """The log scale of the next return is linear in the log ranges of the last bar, day and week,
    and in the clock.

    A heterogeneous autoregression on Parkinson's ranges, High over Low, with Student-t returns, by
    maximum likelihood; sums of bars are fitted directly. An asset without enough Train events gets
    `ewma_t`.
    """

    name = "har_t"
    models_: dict[
        str, tuple[float, ...]
    ]  # a coefficient of each regressor, then degrees of freedom, by symbol
    sizes_: Floats  # (assets + 1, slots of the week): of the next return, over the mean of all
    fallback_: EwmaT

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        self.fallback_, self.sizes_ = EwmaT().fit(corpus, rows), _sizes_by_slot(corpus, rows)
        self.models_ = {
            symbol: fit_scale(
                self._regressors(corpus, rows[chosen], symbol), corpus.log_ret_next[rows[chosen]]
            )
            for symbol, chosen in rows_by_asset(corpus, rows).items()
            if chosen.sum() >= MIN_EVENTS
        }

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        probs = self.fallback_.predict_proba(corpus, rows)
        for symbol, chosen in rows_by_asset(corpus, rows).items():
            if symbol in self.models_:
                *weights, degrees = self.models_[symbol]
                scale = np.exp(self._regressors(corpus, rows[chosen], symbol) @ weights)
                probs[chosen] = student_buckets(
                    _bounds(corpus, rows[chosen]) / scale[:, None], degrees
                )
        return probs

    def _regressors(self, corpus: Corpus, rows: Rows, symbol: str) -> Floats:
        """(n, 6): one, the log ranges, and the log usual sizes of the next return and of the row's
        own.
        """
        inside, asset = corpus.asset_slices[symbol], corpus.tokenizer.asset_id(symbol)
        corpus.require_columns(["range_z"])
        # The field is in units of the previous row's scale; 0 is a bar without a range.
        ranges = corpus.columns["range_z"][inside] * lagged(corpus.columns["sigma20"][inside], 1)
        squares = np.where(ranges > 0, ranges**2, np.nan)
        slots = _slots(corpus, inside)
        day = DAY // step_seconds(corpus.tokenizer.timeframe)
        at, windows = rows - inside.start, (1, day, 5 * day) if day > 1 else (1, 5, 22)
        means = [rolling_mean(squares, window)[at] for window in windows]
        # A bar without a range is little information, not zero volatility.
        floor = np.fmax(_LEAST_RANGE**2 * means[-1], _LEAST_SQUARE)
        logs = [np.log(np.fmax(mean, floor)) / 2 for mean in means]
        sizes = [np.log(self.sizes_[asset, slots[each]]) for each in (at, np.maximum(at - 1, 0))]
        return np.stack([np.ones(len(rows)), *logs, *sizes], axis=1)


def _slots(corpus: Corpus, rows: Rows | slice) -> npt.NDArray[np.int64]:
    """The slot of the week of each of the rows."""
    step = step_seconds(corpus.tokenizer.timeframe)
    return slot_of_week(corpus.columns["timestamp"][rows], step)


def _sizes_by_slot(corpus: Corpus, rows: Rows) -> Floats:
    """(assets + 1, slots of the week): the usual size of the next return, over the mean of all."""
    slots = _slots(corpus, rows)
    shape = (len(corpus.asset_slices) + 1, slots_of_week(corpus))
    return usual_sizes(
        np.abs(corpus.log_ret_next[rows]), corpus.meta[rows, 0].astype(np.int64), slots, shape
    )


def _bounds(corpus: Corpus, rows: Rows) -> Floats:
    """(n, K + 1) edges in log returns; the inner ones of a row without a scale are zero."""
    edges = corpus.edges["return"]
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(edges), edges, edges * corpus.target_scale[rows][:, None])


def student_buckets(edges: Floats, degrees: float) -> Floats:
    """Probabilities (..., K) between edges (..., K + 1) that are in units of the
    Student-t's scale.
    """
    from scipy.special import stdtr  # type: ignore[import-untyped]

    # The upper half is mirrored: differences of a CDF near one would lose the far tail.
    below, above = stdtr(degrees, edges), stdtr(degrees, -edges)
    left, right = np.diff(below, axis=-1), -np.diff(above, axis=-1)
    mass = np.where(edges[..., 1:] <= 0, left, right)
    return np.asarray(mass / mass.sum(axis=-1, keepdims=True))


def fit_student(edges: Floats, counts: Floats) -> tuple[float, float]:
    """Scale and degrees of freedom under which the bucket counts (K,) are most probable."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    def nats(point: Floats) -> float:
        scale, degrees = np.exp(point)
        probs = student_buckets(edges / scale, float(degrees))
        return float(-(counts @ np.log(np.maximum(probs, _MIN_PROBABILITY))) / counts.sum())

    bounds = [(np.log(1e-3), np.log(1e3)), (np.log(MIN_DEGREES), np.log(MAX_DEGREES))]
    best = minimize(
        nats, x0=np.log([1.0, 4.0]), method="Nelder-Mead", bounds=bounds, options={"xatol": 1e-6}
    )
    scale, degrees = np.exp(best.x)
    return float(scale), float(degrees)


def fit_scale(regressors: Floats, returns: Floats) -> tuple[float, ...]:
    """Coefficients (k,) of the log scale, then degrees of freedom, that make Student-t returns (n,)
    most probable.
    """
    from scipy.optimize import minimize
    from scipy.special import digamma, gammaln

    def nats(point: Floats) -> tuple[float, Floats]:
        log_scale, degrees = regressors @ point[:-1], float(np.exp(point[-1]))
        squares = returns**2 * np.exp(-2 * log_scale) / degrees
        shares, logs = squares / (1 + squares), np.log1p(squares)
        norm = gammaln((degrees + 1) / 2) - gammaln(degrees / 2) - math.log(degrees * math.pi) / 2
        value = log_scale.mean() + (degrees + 1) / 2 * logs.mean() - norm
        of_scale = regressors.T @ (1 - (degrees + 1) * shares) / len(returns)
        of_norm = (digamma((degrees + 1) / 2) - digamma(degrees / 2) - 1 / degrees) / 2
        of_degrees = logs.mean() / 2 - (degrees + 1) / (2 * degrees) * shares.mean() - of_norm
        return float(value), np.append(of_scale, degrees * of_degrees)

    # From the regression of log sizes, which differs from the solution by little more than a
    # constant.
    start = np.append(
        np.linalg.lstsq(regressors, np.log(np.abs(returns)), rcond=None)[0], math.log(4.0)
    )
    bounds = [(None, None)] * regressors.shape[1] + [(math.log(MIN_DEGREES), math.log(MAX_DEGREES))]
    best = minimize(
        nats, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500}
    ).x
    return *best[:-1].tolist(), math.exp(best[-1])


def fit_garch(log_ret: Floats) -> Garch | None:
    """Maximum likelihood on the clean returns; None if they are too few or no fit converges."""
    from arch.univariate import GARCH, StudentsT, ZeroMean

    returns = log_ret[np.isfinite(log_ret)]
    if len(returns) < MIN_RETURNS:
        return None
    unit = float(returns.std())  # the optimiser works on returns of size one
    model = ZeroMean(
        returns / unit, volatility=GARCH(p=1, q=1), distribution=StudentsT(), rescale=False
    )
    starts = (None, *(np.array(start) for start in _STARTS))
    fits = [model.fit(disp="off", show_warning=False, starting_values=start) for start in starts]
    converged = [fit for fit in fits if fit.convergence_flag == 0 and np.isfinite(fit.params).all()]
    if not converged:
        return None
    best = max(converged, key=lambda fit: fit.loglikelihood)
    omega, alpha, beta, degrees = (float(value) for value in best.params)
    return Garch(
        omega=omega * unit**2,
        alpha=alpha,
        beta=beta,
        degrees=degrees,
        start=float((returns**2).mean()),
    )
