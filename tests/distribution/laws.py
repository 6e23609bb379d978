"""What the tests of this folder share: a forecast of round knots, and covariances."""

from __future__ import annotations

import numpy as np

from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.shape import PIECES, ReturnShape, Tail

KNOTS = np.linspace(-3, 3, 14 * PIECES + 1)
SHAPE = ReturnShape(knots=KNOTS, lower=Tail(scale=0.5, shape=0.1), upper=Tail(scale=0.5, shape=0.1))


def dist(seed: int, sigma: float = 0.01) -> BucketDistribution:
    return BucketDistribution(
        probs=np.random.default_rng(seed).dirichlet(np.full(16, 5.0)), sigma=sigma, shape=SHAPE
    )


def random_covariance(size: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((size, size + 2))
    return drawn @ drawn.T / size
