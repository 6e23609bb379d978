"""Every figure of a distribution against SciPy: a mixture of uniform pieces between the knots and
two Pareto tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import genpareto

from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.shape import PIECES, TAIL_SHAPES, ReturnShape, Tail
from vaiom.errors import ConfigError

KNOTS = np.cumsum(np.random.default_rng(0).uniform(0.01, 0.1, 14 * PIECES + 1)) - 3.5
SHAPES = {
    "heavy below": ReturnShape(
        knots=KNOTS, lower=Tail(scale=0.5, shape=0.3), upper=Tail(scale=1.5, shape=0.0)
    ),
    "heavy above": ReturnShape(
        knots=KNOTS, lower=Tail(scale=2.0, shape=0.0), upper=Tail(scale=0.7, shape=0.45)
    ),
}
PROBS = np.random.default_rng(1).dirichlet(np.full(16, 2.0), 3)
SIGMA = np.array([2**-6, 1.0, 4.0])
"""Powers of two: a knot times sigma, over sigma, is that knot."""
LEVELS = (1e-4, 0.2, 0.9, 0.999)


class Mixture:
    """One distribution of Z = return / sigma."""

    def __init__(self, probs: np.ndarray, shape: ReturnShape) -> None:
        self.low, self.high = shape.knots[:-1], shape.knots[1:]
        self.masses = np.repeat(probs[1:-1] / PIECES, PIECES)
        self.below, self.above = probs[0], probs[-1]
        self.first, self.last = shape.knots[0], shape.knots[-1]
        self.tails = shape.lower, shape.upper
        self.lower, self.upper = (genpareto(each.shape, scale=each.scale) for each in self.tails)

    def cdf(self, z: float) -> float:
        inside = self.masses @ np.clip((z - self.low) / (self.high - self.low), 0, 1)
        return float(
            self.below * self.lower.sf(self.first - z)
            + inside
            + self.above * self.upper.cdf(max(z - self.last, 0))
        )

    def pdf(self, z: float) -> float:
        if z > self.last:
            return float(self.above * self.upper.pdf(z - self.last))
        inside = float(
            (self.masses / (self.high - self.low))[(self.low < z) & (z <= self.high)].sum()
        )
        return inside + float(self.below * self.lower.pdf(self.first - z))

    def quantile(self, level: float) -> float:
        return float(brentq(lambda z: self.cdf(z) - level, -1e3, 1e3, xtol=1e-14, rtol=1e-14))

    def moment(self, power: int, top: float = math.inf) -> float:
        """The mean of Z ** power where Z is at most `top`, else 0."""
        low, high = np.minimum(self.low, top), np.minimum(self.high, top)
        pieces = (high ** (power + 1) - low ** (power + 1)) / (power + 1) / (self.high - self.low)
        total = float(self.masses @ pieces)
        excess = max(self.first - top, 0)
        lower, upper = self.tails
        total += (
            self.below
            * quad(lambda x: (self.first - x) ** power * pareto(x, lower), excess, math.inf)[0]
        )
        if top > self.last:
            total += (
                self.above
                * quad(
                    lambda x: (self.last + x) ** power * pareto(x, upper),
                    0,
                    top - self.last,
                    limit=500,
                )[0]
            )
        return total


def pareto(excess: float, tail: Tail) -> float:
    """The density of `genpareto`, which SciPy takes long to call."""
    if tail.shape == 0:
        return math.exp(-excess / tail.scale) / tail.scale
    return (1 + tail.shape * excess / tail.scale) ** (-1 / tail.shape - 1) / tail.scale


def many(shape: ReturnShape) -> BucketDistribution:
    return BucketDistribution(probs=PROBS, sigma=SIGMA, shape=shape)


def alone(shape: ReturnShape, at: int) -> BucketDistribution:
    return BucketDistribution(probs=PROBS[at], sigma=float(SIGMA[at]), shape=shape)


CASES = [
    pytest.param(shape, event, id=f"{name}, {event}")
    for name, shape in SHAPES.items()
    for event in range(3)
]


@pytest.mark.parametrize(("shape", "event"), CASES)
def test_probabilities_densities_and_quantiles(shape: ReturnShape, event: int) -> None:
    plain, dist, sigma = Mixture(PROBS[event], shape), alone(shape, event), SIGMA[event]
    z = np.array([-30, KNOTS[0], -1.2, 0.0, 0.3, KNOTS[40], KNOTS[-1], KNOTS[-1] + 0.1, 30])
    x = z * sigma
    below = np.array([plain.cdf(each) for each in z])
    density = np.array([plain.pdf(each) for each in z]) / sigma
    np.testing.assert_allclose(dist.cdf(x), below, rtol=1e-9)
    np.testing.assert_allclose(dist.sf(x), 1 - below, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(dist.pdf(x), density, rtol=1e-9)
    np.testing.assert_allclose(dist.logpdf(x), np.log(density), rtol=1e-9)
    quantiles = np.array([plain.quantile(level) for level in LEVELS]) * sigma
    for ask in (dist.quantile, dist.ppf):
        np.testing.assert_allclose(ask(LEVELS), quantiles, rtol=1e-9)
    assert dist.interval(0.8) == pytest.approx(dist.quantile([0.1, 0.9]))
    assert dist.median() == dist.quantile(0.5)
    assert dist.prob_up == dist.sf(0.0)
    for move in (-1.5, 0.4):
        beyond = 1 - plain.cdf(abs(move)) + plain.cdf(-abs(move))
        assert dist.prob_beyond(move * sigma) == pytest.approx(beyond)
    assert (dist.quantile(0), dist.quantile(1)) == (-math.inf, math.inf)
    assert (dist.cdf(-math.inf), dist.cdf(math.inf)) == (0, 1)


@pytest.mark.parametrize(("shape", "event"), CASES)
def test_moments_and_risks(shape: ReturnShape, event: int) -> None:
    plain, dist, sigma = Mixture(PROBS[event], shape), alone(shape, event), SIGMA[event]
    mean, square = plain.moment(1), plain.moment(2)
    variance = square - mean**2
    found = [dist.mean(), dist.std(), dist.var()]
    np.testing.assert_allclose(
        found, [mean * sigma, math.sqrt(variance) * sigma, variance * sigma**2], rtol=1e-6
    )
    for level in LEVELS:
        low, high = plain.quantile(1 - level), plain.quantile(level)
        assert dist.value_at_risk(level) == pytest.approx(-low * sigma)
        assert dist.value_at_risk(level, "short") == pytest.approx(high * sigma)
        for power in (1, 2):
            long = plain.moment(power, low) * (-1) ** power
            short = plain.moment(power) - plain.moment(power, high)
            wanted = np.array([long, short]) * sigma**power / (1 - level)
            found = [dist.expected_shortfall(level, side, power) for side in ("long", "short")]
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7 * sigma**power)
    assert dist.value_at_risk() == dist.value_at_risk(0.99, "long")
    assert dist.expected_shortfall() == dist.expected_shortfall(0.99, "long", 1)


def test_many_answer_as_each_alone_and_axes_of_the_question_come_last() -> None:
    shape = SHAPES["heavy below"]
    dists, each = many(shape), [alone(shape, event) for event in range(3)]
    x = np.random.default_rng(2).normal(0, 1, (3, 4, 5)) * SIGMA[:, None, None]
    for name in ("cdf", "sf", "pdf", "logpdf"):
        for values in (x, x[:, 0], x[:, 0, 0]):
            alike = [getattr(one, name)(own) for one, own in zip(each, values, strict=True)]
            np.testing.assert_array_equal(getattr(dists, name)(values), alike)
        assert getattr(dists, name)(0.1).shape == (3,)
    levels = np.array([[0.01, 0.3], [0.6, 0.99]])
    for ask, axes in (
        (lambda one: one.quantile(levels), (2, 2)),
        (lambda one: one.value_at_risk(levels, "short"), (2, 2)),
        (lambda one: one.expected_shortfall(levels, "short", 2), (2, 2)),
        (lambda one: one.mean(), ()),
        (lambda one: one.std(), ()),
        (lambda one: one.prob_up, ()),
    ):
        assert ask(dists).shape == (3, *axes)
        np.testing.assert_allclose(ask(dists), [ask(one) for one in each], rtol=1e-12)
        assert axes or isinstance(ask(each[0]), float)


def test_draws_are_quantiles_of_uniform_numbers() -> None:
    dists = many(SHAPES["heavy above"])
    levels = np.random.default_rng(7).random((3, 6))
    expected = [alone(SHAPES["heavy above"], at).quantile(own) for at, own in enumerate(levels)]
    np.testing.assert_array_equal(dists.rvs(6, seed=7), expected)
    np.testing.assert_array_equal(dists.rvs((2, 3), seed=7), np.reshape(expected, (3, 2, 3)))
    np.testing.assert_array_equal(dists.rvs(np.int64(6), seed=7), expected)
    assert dists.rvs().shape == (3, 1)
    np.testing.assert_array_equal(dists.rvs(6, random_state=7), expected)
    generator = np.random.default_rng(7)
    np.testing.assert_array_equal(dists.rvs(size=6, random_state=generator), expected)
    assert (dists.rvs(6, random_state=generator) != expected).all()
    with pytest.raises(ConfigError, match="two names"):
        dists.rvs(6, seed=7, random_state=7)


def test_where_no_return_can_lie_quantiles_end_at_the_mass_before() -> None:
    probs = np.array([0.0, *[0.25] * 2, *[0.0] * 10, *[0.25] * 2, 0.0])
    dist = replace(alone(SHAPES["heavy below"], 1), probs=probs)
    assert dist.quantile(0.5) == pytest.approx(KNOTS[2 * PIECES])
    assert dist.quantile(0.5 + 1e-9) == pytest.approx(KNOTS[12 * PIECES], abs=1e-6)
    # Without mass in the tails the outermost knots bound the returns.
    assert (dist.quantile(0), dist.quantile(1)) == pytest.approx((KNOTS[0], KNOTS[-1]))
    assert (dist.cdf(KNOTS[0] - 1), dist.cdf(KNOTS[-1] + 1)) == (0, 1)
    assert dist.logpdf(0.0) == -math.inf
    assert dist.expected_shortfall(0.75) == pytest.approx(
        -KNOTS[: PIECES + 1].take([*range(9)]).mean(), rel=0.05
    )
    two = BucketDistribution(probs=np.stack([probs, PROBS[0]]), sigma=np.ones(2), shape=dist.shape)
    assert two.quantile(0.5)[0] == dist.quantile(0.5)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda dist: dist.quantile([0.5, -0.01]), "quantile's level"),
        (lambda dist: dist.quantile([0.5, 1.01]), "quantile's level"),
        (lambda dist: dist.quantile(math.nan), "quantile's level"),
        (lambda dist: dist.value_at_risk([0.5, 0.0]), "risk level"),
        (lambda dist: dist.value_at_risk(math.nan), "risk level"),
        (lambda dist: dist.expected_shortfall([0.5, 1.0]), "risk level"),
        (lambda dist: dist.value_at_risk(0.9, "both"), "unknown side"),
        (lambda dist: dist.cdf(np.zeros((4, 3))), "values belong to the events"),
    ],
)
def test_senseless_questions_are_refused(
    ask: Callable[[BucketDistribution], object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        ask(many(SHAPES["heavy below"]))


def test_tails_and_knots_without_sense_are_refused() -> None:
    for shape in TAIL_SHAPES:
        Tail(scale=1e-9, shape=shape)
    for scale, shape in (
        (0.0, 0.1),
        (-1.0, 0.1),
        (math.inf, 0.1),
        (1.0, -0.01),
        (1.0, 0.46),
        (1.0, math.nan),
    ):
        with pytest.raises(ValueError, match="tail"):
            Tail(scale=scale, shape=shape)
    for knots in (KNOTS[None], KNOTS[::-1], np.append(KNOTS, math.inf), np.repeat(KNOTS, 2)):
        with pytest.raises(ValueError, match="knots"):
            replace(SHAPES["heavy below"], knots=knots)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_largest_numbers_are_as_good_as_infinite(shape: ReturnShape) -> None:
    """Warnings are errors here."""
    one = BucketDistribution(probs=PROBS[0], sigma=np.float64(1e-4), shape=shape)
    for x in (1e303, 1e306, 1e308, 1.7e308):
        assert one.prob_beyond(x) == pytest.approx(0, abs=1e-200)
        assert (one.cdf(-x), one.cdf(x)) == (pytest.approx(0, abs=1e-200), 1.0)
        assert one.pdf(x) == pytest.approx(0, abs=1e-200)
    symmetric = ReturnShape(
        knots=np.linspace(-1, 1, 14 * PIECES + 1), lower=Tail(scale=1, shape=0), upper=shape.lower
    )
    even = BucketDistribution(probs=np.full(16, 1 / 16), sigma=np.float64(1), shape=symmetric)
    assert str(even.value_at_risk(0.5)) == "0.0"
