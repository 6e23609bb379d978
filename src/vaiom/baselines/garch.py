"""GARCH(1,1) variances (Bollerslev 1986) of Student-t returns, fitted with `arch`. Not in the
paper.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import (
    Baseline,
    Floats,
    Rows,
    clean_returns,
    rows_by_asset,
    slot_sizes,
    slots_of,
    smooth,
)
from vaiom.baselines.ewma import EwmaT
from vaiom.baselines.student import return_bounds, student_buckets
from vaiom.corpus.store import Corpus
from vaiom.features.fields import UNKNOWN_ASSET
from vaiom.market.sessions import usual_successors

MIN_RETURNS = 1_000
"""An asset with fewer clean Train returns has no fit of its own."""
NUM_PATHS = 20_000
"""Simulated paths of a sum of returns."""
PATHS_SEED = 17
NUM_KNOTS = 8
"""Initial variances that are simulated."""
STARTS = (
    (0.005, 0.05, 0.945, 4.0),
    (0.005, 0.02, 0.975, 3.0),
    (0.02, 0.1, 0.88, 4.0),
    (0.15, 0.4, 0.55, 3.0),
)
"""Initial omega, alpha, beta and degrees of freedom, for returns of size one, beside the library's.

The likelihood of hourly returns has several peaks, and the optimiser may stop where it started:
the best fit is kept.
"""


@dataclass(frozen=True, kw_only=True)
class Garch:
    """The variance of the next return, in squared log returns, given the last one:

    h[t+1] = omega + alpha r[t]^2 + beta h[t]
    """

    omega: float
    alpha: float
    beta: float
    degrees: float
    """Degrees of freedom of the returns."""
    start: float
    """The variance at an asset's first row."""

    def next_variance(self, log_ret: Floats) -> Floats:
        """(n,) variance of the return after each row, from the returns (n,) through it; NaN is a
        row without a clean return, which leaves the variance unchanged.
        """
        from scipy.signal import lfilter  # type: ignore[import-untyped]

        clean = np.isfinite(log_ret)
        shocks = self.omega + self.alpha * log_ret[clean] ** 2
        state = self.beta * self.start
        later, _ = lfilter([1.0], [1.0, -self.beta], shocks, zi=[state])
        variances = np.append(self.start, later)
        num_clean = np.cumsum(clean)
        return np.asarray(variances[num_clean])

    def scale(self, variance: Floats) -> Floats:
        """The scale of the Student-t that has this variance."""
        squares = variance * (self.degrees - 2) / self.degrees
        return np.asarray(np.sqrt(squares))

    def simulated_buckets(self, bounds: Floats, variance: Floats, sizes: Floats) -> Floats:
        """Probabilities (n, K) of sums of the next h returns between bounds (n, K + 1).

        `variance` (n,) is of the next return, `sizes` (n, h) multiply the returns. The sum is
        symmetric, so its absolute value is simulated, from a few initial variances, between which
        rows are interpolated.
        """
        logs = np.log(variance)
        knots = logs[:1]
        if np.ptp(logs) > 1e-9:
            knots = np.linspace(logs.min(), logs.max(), NUM_KNOTS)
        horizon = sizes.shape[1]
        paths = self._simulate(np.exp(knots), horizon)
        place = np.interp(logs, knots, np.arange(len(knots)))
        deviation = np.sqrt(variance)
        standard = np.abs(bounds) / deviation[:, None]
        share_within = np.zeros(bounds.shape)
        patterns, pattern = np.unique(sizes, axis=0, return_inverse=True)
        for number, weights in enumerate(patterns):
            own = np.flatnonzero(pattern.ravel() == number)
            for knot, path in enumerate(paths):
                nearness = 1 - np.abs(place[own] - knot)
                is_near = nearness > 0
                near = own[is_near]
                sums = np.abs(weights @ path)
                sums.sort()
                within = np.searchsorted(sums, standard[near]) / NUM_PATHS
                share_within[near] += nearness[is_near, None] * within
        cumulative = 0.5 + 0.5 * np.sign(bounds) * share_within
        probs = np.diff(cumulative, axis=1)
        return smooth(NUM_PATHS * probs)

    def _simulate(self, variances: Floats, steps: int) -> Floats:
        """(variances, steps, paths) returns in units of the root of each initial variance."""
        rng = np.random.default_rng(PATHS_SEED)
        draws = rng.standard_t(self.degrees, (steps, NUM_PATHS))
        draws *= math.sqrt((self.degrees - 2) / self.degrees)
        paths = np.empty((len(variances), steps, NUM_PATHS))
        now = np.repeat(variances[:, None], NUM_PATHS, axis=1)
        for step, drawn in enumerate(draws):
            returns = np.sqrt(now) * drawn
            now = self.omega + self.alpha * returns**2 + self.beta * now
            paths[:, step] = returns
        deviations = np.sqrt(variances)
        return paths / deviations[:, None, None]


class GarchT(Baseline):
    """The variance of the next return follows the asset's own past returns:

        r[t+1] = sqrt(h[t+1]) e,  e ~ t(v) of variance one

    Rows without a clean return leave the variance unchanged, as in the fit. Sums of bars are
    simulated. An asset with too few Train returns, or whose fit does not converge, gets `ewma_t`,
    with a warning.

    Attributes:
        models_: the fitted recursion by symbol.
        fallback_: for the other assets.
    """

    name = "garch_t"
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
            first = corpus.asset_slices[symbol].start
            last_event = int(rows[chosen].max())
            # The target of the last event is its next row.
            through = slice(first, last_event + 2)
            model = fit_garch(self._returns(corpus, through, symbol))
            if model is None:
                problem = f"{symbol}: no GARCH fit of its Train returns; {self.name} uses ewma_t"
                warnings.warn(problem, stacklevel=3)
            else:
                self.models_[symbol] = model
        if self.progress:
            self.progress(len(parts), len(parts), "")

    def _predict(self, corpus: Corpus, rows: Rows) -> Floats:
        probs = self.fallback_.predict_proba(corpus, rows)
        for symbol, chosen in rows_by_asset(corpus, rows).items():
            model = self.models_.get(symbol)
            if model is None:
                continue
            own = rows[chosen]
            inside = corpus.asset_slices[symbol]
            returns = self._returns(corpus, inside, symbol)
            variances = model.next_variance(returns)
            variance = variances[own - inside.start]
            sizes = self._next_sizes(corpus, own, symbol)
            bounds = return_bounds(corpus, own)
            if corpus.horizon > 1:
                probs[chosen] = model.simulated_buckets(bounds, variance, sizes)
            else:
                scale = model.scale(variance) * sizes[:, 0]
                edges = bounds / scale[:, None]
                probs[chosen] = student_buckets(edges, model.degrees)
        return probs

    def _returns(self, corpus: Corpus, rows: slice, symbol: str) -> Floats:
        """The input of the recursion: clean returns of an asset's rows."""
        return clean_returns(corpus, rows)

    def _next_sizes(self, corpus: Corpus, rows: Rows, symbol: str) -> Floats:
        """(n, h): by what the returns of the recursion are multiplied to be the next returns."""
        return np.ones((len(rows), corpus.horizon))


class GarchTSeasonal(GarchT):
    """`garch_t` on returns divided by their usual size in the asset's slot of the week.

    Attributes:
        sizes_: (assets + 1, slots of the week) usual size of the next return, over the mean of all.
        follows_: (assets + 1, slots of the week) the slot of the bar that mostly follows.
    """

    name = "garch_t_seasonal"
    sizes_: Floats
    follows_: npt.NDArray[np.int64]

    def _fit(self, corpus: Corpus, rows: Rows) -> None:
        slots = slots_of(corpus, slice(None))
        assets = corpus.meta[rows, 0]
        self.sizes_ = slot_sizes(corpus, rows)
        self.follows_ = np.empty(self.sizes_.shape, np.int64)
        num_assets, num_slots = self.sizes_.shape
        for asset in range(num_assets):
            own = rows if asset == UNKNOWN_ASSET else rows[assets == asset]
            self.follows_[asset] = usual_successors(slots[own], slots[own + 1], num_slots)
        super()._fit(corpus, rows)

    def _returns(self, corpus: Corpus, rows: slice, symbol: str) -> Floats:
        before = np.arange(rows.start, rows.stop - 1)
        next_sizes = self._next_sizes(corpus.with_target(1), before, symbol)
        sizes = np.append(1.0, next_sizes[:, 0])
        return np.asarray(clean_returns(corpus, rows) / sizes)

    def _next_sizes(self, corpus: Corpus, rows: Rows, symbol: str) -> Floats:
        asset = corpus.tokenizer.asset_id(symbol)
        slots = [slots_of(corpus, rows)]
        while len(slots) < corpus.horizon:
            following = self.follows_[asset, slots[-1]]
            slots.append(following)
        next_slots = np.stack(slots, axis=1)
        return np.asarray(self.sizes_[asset, next_slots])


def fit_garch(log_ret: Floats) -> Garch | None:
    """Maximum likelihood on the clean returns (n,), from several starts.

    None if there are fewer than `MIN_RETURNS`, or if no fit converges.
    """
    from arch.univariate import GARCH, StudentsT, ZeroMean

    returns = log_ret[np.isfinite(log_ret)]
    if len(returns) < MIN_RETURNS:
        return None
    unit = float(returns.std())  # the optimiser works on returns of size one
    garch = GARCH(p=1, q=1)
    model = ZeroMean(returns / unit, volatility=garch, distribution=StudentsT(), rescale=False)
    converged = []
    for start in (None, *map(np.array, STARTS)):
        fit = model.fit(disp="off", show_warning=False, starting_values=start)
        if fit.convergence_flag == 0 and np.isfinite(fit.params).all():
            converged.append(fit)
    if not converged:
        return None
    best = max(converged, key=lambda fit: fit.loglikelihood)
    omega, alpha, beta, degrees = best.params.tolist()
    return Garch(
        omega=omega * unit**2,
        alpha=alpha,
        beta=beta,
        degrees=degrees,
        start=float((returns**2).mean()),
    )
