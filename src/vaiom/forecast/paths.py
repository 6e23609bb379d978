"""Sample paths of an asset's return through its forecast horizons.

A path is a random walk in normal scores (a Gaussian copula of independent one-bar steps); it is distributed as forecast
at each horizon, and in between its quantiles are interpolated in the root of time.
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
    """Paths of the log return since the last bar, given that it is not zero at any horizon."""

    symbol: str
    as_of: datetime
    horizons: tuple[int, ...]
    """Bars at which the distribution is the forecast."""
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
        """(levels, bars) quantiles after each bar."""
        return np.asarray(np.quantile(self.returns, levels, axis=0))


def sample_paths(dists: Sequence[ReturnDistribution], n: int = 1000, seed: int | None = None) -> ReturnPaths:
    """Draw `n` paths through the distributions of one asset, shortest horizon first, starting with the next bar."""
    from scipy.special import ndtr  # type: ignore[import-untyped]

    if n < 1:
        raise ConfigError("how many paths?", expected="1 at least", got=n)
    known, bars = [dist.horizon for dist in dists], np.arange(1, dists[-1].horizon + 1)
    walk = np.random.default_rng(seed).standard_normal((n, len(bars))).cumsum(axis=1)
    levels = ndtr(walk / np.sqrt(bars))
    returns = np.zeros(levels.shape)
    for place, dist in enumerate(dists):
        # Weight of this horizon at each bar: 1 at its own, 0 at its neighbours.
        weight = np.interp(np.sqrt(bars), np.sqrt(known), np.eye(len(known))[place])
        near = weight > 0
        returns[:, near] += weight[near] * np.asarray(dist.quantile(levels[:, near]))
    return ReturnPaths(symbol=dists[0].symbol, as_of=dists[0].as_of, horizons=tuple(known), returns=returns)
