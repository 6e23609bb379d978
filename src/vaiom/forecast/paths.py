"""Sampled paths through the horizons of a forecast.

Enters: the distributions of one asset at several horizons, made at one moment. Leaves: `ReturnPaths`, whose values at
those horizons are distributed exactly as forecast. Between one bar and the next the normal scores of one-bar PITs are
independent, so that a path is a random walk in normal scores (a Gaussian copula); between two horizons its quantiles
are interpolated in the root of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from vaiom.errors import ConfigError
from vaiom.events.distribution import Floats
from vaiom.forecast.distribution import ReturnDistribution


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReturnPaths:
    """Paths of the log return since the last bar, given that it is zero at none of the horizons."""

    symbol: str
    as_of: datetime
    horizons: tuple[int, ...]
    """Where the distribution is the forecast one."""
    returns: Floats
    """(paths, bars) after each bar."""

    def __repr__(self) -> str:
        paths, bars = self.returns.shape
        return f"<ReturnPaths {self.symbol}, {paths:,} paths of {bars} bars after {self.as_of}>"

    def at(self, bars: int) -> Floats:
        """(paths,) the return over the next bars."""
        if not 1 <= bars <= self.returns.shape[1]:
            raise ConfigError("the paths do not go there", expected=f"1 to {self.returns.shape[1]} bars", got=bars)
        return np.asarray(self.returns[:, bars - 1])

    def quantile(self, levels: Sequence[float]) -> Floats:
        """(levels, bars): a fan."""
        return np.asarray(np.quantile(self.returns, levels, axis=0))


def sample_paths(dists: Sequence[ReturnDistribution], n: int = 1000, seed: int | None = None) -> ReturnPaths:
    """Draw `n` paths through the distributions of one asset, shortest horizon first, the next bar's included."""
    from scipy.special import ndtr  # type: ignore[import-untyped]

    if n < 1:
        raise ConfigError("how many paths?", expected="1 at least", got=n)
    known, bars = [dist.horizon for dist in dists], np.arange(1, dists[-1].horizon + 1)
    walk = np.random.default_rng(seed).standard_normal((n, len(bars))).cumsum(axis=1)
    levels = ndtr(walk / np.sqrt(bars))
    returns = np.zeros(levels.shape)
    for place, dist in enumerate(dists):
        # How much this horizon weighs at each bar: all at its own, nothing at its neighbours.
        weight = np.interp(np.sqrt(bars), np.sqrt(known), np.eye(len(known))[place])
        near = weight > 0
        returns[:, near] += weight[near] * np.asarray(dist.quantile(levels[:, near]))
    return ReturnPaths(symbol=dists[0].symbol, as_of=dists[0].as_of, horizons=tuple(known), returns=returns)
