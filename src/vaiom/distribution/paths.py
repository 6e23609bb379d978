"""Paths of an asset's return, bar by bar, that agree with its forecasts at several horizons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from vaiom.distribution.returns import ReturnDistribution
from vaiom.distribution.shape import Floats
from vaiom.errors import ConfigError


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReturnPaths:
    """Paths of the log return since the last bar, given that it is not zero at any horizon.

    A path is a random walk of normal scores (a Gaussian copula of independent one-bar steps), so
    that at each horizon returns are distributed as forecast. Between two horizons quantiles are
    interpolated linearly in the root of time.
    """

    symbol: str
    as_of: datetime
    horizons: tuple[int, ...]
    """Numbers of bars for which there is a forecast."""
    returns: Floats
    """(paths, bars) log returns after each bar."""

    def __repr__(self) -> str:
        paths, bars = self.returns.shape
        return f"<ReturnPaths {self.symbol}, {paths:,} paths of {bars} bars after {self.as_of}>"

    def at(self, bars: int) -> Floats:
        """(paths,) log returns over the next `bars` bars."""
        most = self.returns.shape[1]
        if not 1 <= bars <= most:
            raise ConfigError("the paths are shorter", expected=f"1 to {most} bars", got=bars)
        return np.asarray(self.returns[:, bars - 1])

    def quantile(self, levels: Sequence[float]) -> Floats:
        """(levels, bars) quantiles of the log return after each bar."""
        return np.asarray(np.quantile(self.returns, levels, axis=0))


def sample_paths(dists: Sequence[ReturnDistribution], n: int, seed: int | None) -> ReturnPaths:
    """Draw `n` paths from the forecasts of one asset, the next bar's first and the longest last."""
    from scipy.special import ndtr  # type: ignore[import-untyped]

    if n < 1:
        raise ConfigError("a number of paths is positive", got=n)
    horizons = [dist.horizon for dist in dists]
    bars = np.arange(1, horizons[-1] + 1)
    roots = np.sqrt(bars)
    rng = np.random.default_rng(seed)
    steps = rng.standard_normal((n, len(bars)))
    scores = steps.cumsum(axis=1) / roots
    levels = ndtr(scores)
    returns = np.zeros(levels.shape)
    for dist in dists:
        # Its weight at each bar: 1 at its own horizon, 0 from the neighbouring ones on.
        is_own = [float(horizon == dist.horizon) for horizon in horizons]
        weight = np.interp(roots, np.sqrt(horizons), is_own)
        near = weight > 0
        quantiles = dist.quantile(levels[:, near])
        returns[:, near] += weight[near] * quantiles
    first = dists[0]
    return ReturnPaths(
        symbol=first.symbol, as_of=first.as_of, horizons=tuple(horizons), returns=returns
    )
