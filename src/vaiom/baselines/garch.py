"""GARCH(1,1)-t: the variance of the next return follows the asset's own past returns.

Enters: Train events. Leaves: parameters per asset, fitted with `arch` on the asset's clean log returns through its last
Train target; bucket probabilities from the CDF of a Student-t with the conditional variance. Rows without a clean
return leave the variance as it is, as they do in the fit. An asset with too few Train returns, or whose fit does not
converge, keeps the law of `ewma_t` and a warning says so. Not in the paper.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from vaiom.baselines.base import (
    JsonFit,
    Probabilities,
    Progress,
    Rows,
    asset_parts,
    num_return_buckets,
    require_fitted,
    targets_to_fit,
)
from vaiom.baselines.student import EwmaT, student_buckets
from vaiom.events.corpus import Corpus
from vaiom.events.inputs import BAD_RETURN, has_flag

MIN_RETURNS = 1_000

# Hourly returns give the likelihood several peaks, and the optimiser may stop where it started: the best of these is
# kept (omega, alpha, beta and degrees of freedom for returns of size one, beside the library's own start).
_STARTS = ((0.005, 0.05, 0.945, 4.0), (0.005, 0.02, 0.975, 3.0), (0.02, 0.1, 0.88, 4.0), (0.15, 0.4, 0.55, 3.0))

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Garch:
    """h' = omega + alpha r^2 + beta h in squared log returns, from `start` at the asset's first row."""

    omega: float
    alpha: float
    beta: float
    degrees: float
    start: float

    def next_variance(self, log_ret: Floats) -> Floats:
        """Variance of the return after each row (n,), from returns through it; NaN is a row without a clean return."""
        from scipy.signal import lfilter  # type: ignore[import-untyped]

        clean = np.isfinite(log_ret)
        after, _ = lfilter(
            [1.0], [1.0, -self.beta], self.omega + self.alpha * log_ret[clean] ** 2, zi=[self.beta * self.start]
        )
        out: Floats = np.concatenate([[self.start], after])[np.cumsum(clean)]
        return out


class GarchT(JsonFit):
    name = "garch_t"

    laws_: dict[str, Garch]
    fallback_: EwmaT

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress

    def fit(self, corpus: Corpus, rows: Rows) -> Self:
        targets_to_fit(corpus, rows)
        self.fallback_ = EwmaT().fit(corpus, rows)
        self.laws_ = {}
        parts = asset_parts(corpus, rows)
        for done, (symbol, chosen) in enumerate(parts.items()):
            if self.progress:
                self.progress(done, len(parts), symbol)
            # The last event's target is its next row.
            through = slice(corpus.asset_slices[symbol].start, int(rows[chosen].max()) + 2)
            law = fit_garch(clean_returns(corpus, through))
            if law:
                self.laws_[symbol] = law
            else:
                warnings.warn(f"{symbol}: no GARCH fit of its Train returns; {self.name} uses ewma_t", stacklevel=2)
        if self.progress:
            self.progress(len(parts), len(parts), "")
        return self

    def predict_proba(self, corpus: Corpus, rows: Rows) -> Probabilities:
        require_fitted(self)
        edges = corpus.edges["return"]
        probs = np.empty((len(rows), num_return_buckets(corpus)))
        for symbol, chosen in asset_parts(corpus, rows).items():
            law, own = self.laws_.get(symbol), rows[chosen]
            if law is None:
                probs[chosen] = self.fallback_.predict_proba(corpus, own)
                continue
            inside = corpus.asset_slices[symbol]
            variance = law.next_variance(clean_returns(corpus, inside))[own - inside.start]
            # Variance one, not scale one, is what the conditional variance multiplies.
            scale = np.sqrt(variance * (law.degrees - 2) / law.degrees)
            # A row without a scale has its inner edges at zero; the outer ones stay where they are.
            with np.errstate(invalid="ignore"):
                bounds = np.where(np.isinf(edges), edges, edges * (corpus.sigma20[own] / scale)[:, None])
            probs[chosen] = student_buckets(bounds, law.degrees)
        return probs

    def state(self) -> dict[str, Any]:
        return {"laws": {s: asdict(law) for s, law in self.laws_.items()}, "fallback": self.fallback_.state()}

    def restore(self, state: dict[str, Any]) -> None:
        laws: Mapping[str, Any] = state["laws"]
        self.laws_ = {symbol: Garch(**law) for symbol, law in laws.items()}
        self.fallback_ = EwmaT()
        self.fallback_.restore(state["fallback"])


def clean_returns(corpus: Corpus, rows: slice) -> Floats:
    """Log returns of the rows, NaN where one is undefined, exactly zero or excessive."""
    bad = has_flag(corpus.columns["flags"][rows], BAD_RETURN)
    return np.where(bad, np.nan, corpus.columns["log_ret"][rows])


def fit_garch(log_ret: Floats) -> Garch | None:
    """Maximum likelihood on the clean returns, or nothing where that cannot be had."""
    from arch.univariate import GARCH, StudentsT, ZeroMean

    returns = log_ret[np.isfinite(log_ret)]
    if len(returns) < MIN_RETURNS:
        return None
    unit = float(returns.std())  # the optimiser works on returns of size one
    model = ZeroMean(returns / unit, volatility=GARCH(p=1, q=1), distribution=StudentsT(), rescale=False)
    starts = (None, *(np.array(start) for start in _STARTS))
    tries = [model.fit(disp="off", show_warning=False, starting_values=start) for start in starts]
    converged = [each for each in tries if each.convergence_flag == 0 and np.isfinite(each.params).all()]
    if not converged:
        return None
    best = max(converged, key=lambda each: each.loglikelihood)
    omega, alpha, beta, degrees = (float(value) for value in best.params)
    return Garch(omega=omega * unit**2, alpha=alpha, beta=beta, degrees=degrees, start=float((returns**2).mean()))
