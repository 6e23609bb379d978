"""The risk tests examine the served distribution: a replay of it, event by event; their levels
under the truth.
"""

from __future__ import annotations

import math
import shutil
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from simulated_market import TinyRuns

from vaiom.baselines.counts import Markov
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.corpus.tokenizer import fit_shape
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.returns import ReturnDistribution
from vaiom.distribution.shape import ReturnShape
from vaiom.evaluation.calibration import (
    chi_square_tail,
    christoffersen,
    forecast_tails,
    kupiec,
    tail_tests,
)
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.predictor import ModelPredictor

EDGES = np.array([-np.inf, -8, -5, -3, -2, -1, -0.6, -0.25, 0, 0.25, 0.6, 1, 2, 3, 5, 8, np.inf])
SHAPE = fit_shape(EDGES, 3 * np.random.default_rng(9).standard_t(4, 20_000))


def forecasts(rng: np.random.Generator, count: int) -> BucketDistribution:
    weights = np.array([1, 2, 6, 15, 60, 60, 80, 80, 80, 80, 60, 60, 15, 6, 2, 1.0])
    return BucketDistribution(
        probs=rng.dirichlet(weights, count), sigma=rng.uniform(1e-4, 1e-2, count), shape=SHAPE
    )


def draw(rng: np.random.Generator, distributions: BucketDistribution) -> np.ndarray:
    return distributions.rvs(1, seed=int(rng.integers(2**32)))[:, 0]


def served(corpus: Corpus, row: int, probs: np.ndarray) -> ReturnDistribution:
    """What a user would have held after the bar of this row."""
    symbol = next(
        name for name, rows in corpus.asset_slices.items() if rows.start <= row < rows.stop
    )
    return ReturnDistribution(
        symbol=symbol,
        probs=probs / probs.sum(),
        edges=corpus.edges["return"],
        sigma=float(corpus.sigma20[row]),
        shape=corpus.tokenizer.return_shape,
        prob_zero=0.0,
        as_of=datetime(2024, 1, 1),
        target_time=datetime(2024, 1, 1),
        stale_since=datetime(2024, 1, 1),
        context=16,
    )


def log_likelihood(hits: int, count: int, rate: float) -> float:
    return math.log(rate**hits * (1 - rate) ** (count - hits))


def test_the_reported_tests_equal_a_replay_of_the_served_distributions(
    tiny: TinyRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, run = open_corpus(tiny.corpus), tmp_path / "run"
    shutil.copytree(tiny.runs[0], run)
    # A model of four steps has tails that nothing exceeds: here it answers as Markov does.
    markov = Markov().fit(corpus, corpus.endpoints("train", 16))
    monkeypatch.setattr(
        ModelPredictor, "predict_proba", lambda _, corpus, rows: markov.predict_proba(corpus, rows)
    )
    result = evaluate_run(run, corpus, "validation", device="cpu")
    rows = corpus.endpoints("validation", 16)
    probs = markov.predict_proba(corpus, rows)
    held = [served(corpus, int(row), own) for row, own in zip(rows, probs, strict=True)]
    returns = [float(value) for value in corpus.log_ret_next[rows]]

    pit = sorted(dist.cdf(value) for dist, value in zip(held, returns, strict=True))
    excess = max((number + 1) / len(pit) - value for number, value in enumerate(pit))
    deficit = max(value - number / len(pit) for number, value in enumerate(pit))
    assert result.calibration.pit.statistic == pytest.approx(excess + deficit, abs=1e-9)
    assert sum(result.calibration.pit_histogram[:2]) == sum(value < 0.1 for value in pit)

    tested = {(test.level, test.side): test for test in result.backtests}
    assert all(tested[0.05, side].exceedances > 5 for side in ("long", "short"))
    assert set(tested) == {(level, side) for level in (0.01, 0.05) for side in ("long", "short")}
    for (level, side), test in tested.items():
        losses = [-value if side == "long" else value for value in returns]
        limits = [dist.value_at_risk(1 - level, side) for dist in held]
        shortfalls = [dist.expected_shortfall(1 - level, side) for dist in held]
        hits = [loss > limit for loss, limit in zip(losses, limits, strict=True)]
        count, number = len(hits), sum(hits)
        assert (test.num_events, test.exceedances, test.exceedance_rate) == (
            count,
            number,
            number / count,
        )
        ratio = -2 * (
            log_likelihood(number, count, level) - log_likelihood(number, count, number / count)
        )
        assert test.kupiec_p == pytest.approx(math.erfc(math.sqrt(max(ratio, 0) / 2)), abs=1e-9)
        lost = [
            loss / (level * mean) * hit
            for loss, mean, hit in zip(losses, shortfalls, hits, strict=True)
        ]
        assert test.shortfall_z2 == pytest.approx(sum(lost) / count - 1, abs=1e-9)
        after = {False: [], True: []}
        symbols = [dist.symbol for dist in held]
        for (before, symbol), (now, other) in pairwise(zip(hits, symbols, strict=True)):
            if symbol == other:
                after[before].append(now)
        if not all(after.values()):
            assert test.independence_p is None
        else:
            pooled = [*after[False], *after[True]]
            none = log_likelihood(sum(pooled), len(pooled), sum(pooled) / len(pooled))
            memory = sum(
                log_likelihood(sum(part), len(part), sum(part) / len(part))
                for part in after.values()
            )
            assert test.independence_p == pytest.approx(
                math.erfc(math.sqrt(max(memory - none, 0))), abs=1e-7
            )
        by_asset = [
            each
            for each in result.backtests_by["asset"]
            if (each.level, each.side) == (level, side)
        ]
        for each in by_asset:
            own = [hit for hit, symbol in zip(hits, symbols, strict=True) if symbol == each.group]
            assert (each.num_events, each.exceedances) == (len(own), sum(own))


def test_the_variance_of_the_shortfall_statistic_is_that_of_draws() -> None:
    """One distribution asked many times: the mean square of its losses beyond the limit, by
    drawing.
    """
    rng = np.random.default_rng(4)
    one = forecasts(rng, 1)
    drawn = one.rvs(400_000, seed=1)[0]
    for (side, level), (_, [limit], [shortfall], [square]) in forecast_tails(
        one, np.zeros(1)
    ).items():
        losses = -drawn if side == "long" else drawn
        beyond = losses[losses > limit]
        assert len(beyond) / len(drawn) == pytest.approx(level, rel=0.05)
        assert beyond.mean() == pytest.approx(shortfall, rel=0.03)
        assert (beyond**2).mean() == pytest.approx(square, rel=0.12)


def test_kupiec_and_chi_square_tails_equal_their_formulas() -> None:
    stats = pytest.importorskip("scipy.stats")
    exceeded = np.arange(250) < 7
    ratio = -2 * (stats.binom.logpmf(7, 250, 0.01) - stats.binom.logpmf(7, 250, 7 / 250))
    assert kupiec(exceeded, 0.01) == pytest.approx(ratio)
    for degrees in (1, 2):
        assert chi_square_tail(ratio, degrees) == pytest.approx(stats.chi2.sf(ratio, degrees))
    assert kupiec(np.zeros(100, bool), 0.05) == pytest.approx(-200 * math.log(0.95))


def test_christoffersen_counts_transitions_within_an_asset_alone() -> None:
    exceeded = np.array([0, 1, 1, 0, 0, 1, 0, 0, 1, 1], bool)
    assets = np.array(list("aaaaabbbbb"))
    pairs = [(exceeded[i], exceeded[i + 1]) for i in range(9) if i != 4]
    counts = {
        key: sum((bool(a), bool(b)) == key for a, b in pairs)
        for key in ((0, 0), (0, 1), (1, 0), (1, 1))
    }
    calm, hit = counts[0, 0] + counts[0, 1], counts[1, 0] + counts[1, 1]
    rate = (counts[0, 1] + counts[1, 1]) / 8
    memory = log_likelihood(counts[0, 1], calm, counts[0, 1] / calm)
    memory += log_likelihood(counts[1, 1], hit, counts[1, 1] / hit)
    got = christoffersen(exceeded, assets)
    assert got == pytest.approx(
        -2 * (log_likelihood(counts[0, 1] + counts[1, 1], 8, rate) - memory)
    )
    assert christoffersen(np.zeros(5, bool), assets[:5]) is None
    assert christoffersen(np.ones(5, bool), assets[:5]) is None
    assert christoffersen(np.array([0, 1, 0, 1, 0, 1], bool), np.array(list("abcdef"))) is None
    assert (chi_square_tail(None, 1), chi_square_tail(-1e-9, 1), chi_square_tail(-1e-9, 2)) == (
        None,
        1.0,
        1.0,
    )


def test_every_figure_of_a_tail_test_equals_its_definition() -> None:
    loss, limit = np.array([1.0, 3.0, 5.0, 0.5]), np.array([2.0, 2.0, 4.0, 1.0])
    shortfall, square = np.array([3.0, 3.0, 6.0, 2.0]), np.array([10.0, 10.0, 40.0, 5.0])
    tails = {("long", 0.05): np.stack([loss, limit, shortfall, square])}
    [test] = tail_tests(tails, np.full(4, "a"), np.full(4, "all"))
    z2 = (3 / (0.05 * 3) + 5 / (0.05 * 6)) / 4 - 1
    variance = sum(s / (0.05 * m**2) - 1 for s, m in zip(square, shortfall, strict=True)) / 16
    assert (test.exceedances, test.exceedance_rate, test.num_events) == (2, 0.5, 4)
    assert test.shortfall_z2 == pytest.approx(z2)
    assert test.shortfall_p == pytest.approx(
        0.5 * math.erfc(z2 / math.sqrt(2 * variance)), rel=1e-9
    )
    both = kupiec(loss > limit, 0.05) + (christoffersen(loss > limit, np.full(4, "a")) or 0.0)
    assert test.conditional_coverage_p == pytest.approx(math.exp(-both / 2), rel=1e-9)
    tails["long", 0.05][2, 0] = 0.0  # a forecast that no loss is beyond
    [test] = tail_tests(tails, np.full(4, "a"), np.full(4, "all"))
    assert (test.shortfall_z2, test.shortfall_p) == (None, None)


def test_the_truth_passes_and_is_rejected_as_rarely_as_the_levels_say() -> None:
    rng = np.random.default_rng(0)
    names = ("kupiec_p", "independence_p", "conditional_coverage_p", "shortfall_p")
    rejected = dict.fromkeys(names, 0)
    trials = 150
    for _ in range(trials):
        dists = forecasts(rng, 1_500)
        results = tail_tests(
            forecast_tails(dists, draw(rng, dists)), np.repeat(["a", "b"], 750), np.zeros(1_500)
        )
        assert [(test.side, test.level) for test in results] == [
            ("long", 0.01),
            ("short", 0.01),
            ("long", 0.05),
            ("short", 0.05),
        ]
        for name in names:
            rejected[name] += (getattr(results[3], name) or 1.0) < 0.05
    assert all(count / trials < 0.12 for count in rejected.values()), rejected


def test_tails_that_are_heavier_than_forecast_are_found() -> None:
    rng = np.random.default_rng(1)
    dists = forecasts(rng, 4_000)
    for test in tail_tests(
        forecast_tails(dists, 1.6 * draw(rng, dists)), np.full(4_000, "a"), np.zeros(4_000)
    ):
        assert test.kupiec_p is not None
        assert test.kupiec_p < 1e-3
        assert test.shortfall_z2 is not None
        assert test.shortfall_z2 > 0.2
        assert test.shortfall_p is not None
        assert test.shortfall_p < 1e-3


def test_the_short_side_is_the_long_side_of_mirrored_returns() -> None:
    rng = np.random.default_rng(2)
    dists = forecasts(rng, 500)
    outcome = draw(rng, dists)
    mirror = ReturnShape(knots=-SHAPE.knots[::-1], lower=SHAPE.upper, upper=SHAPE.lower)
    mirrored = BucketDistribution(probs=dists.probs[:, ::-1], sigma=dists.sigma, shape=mirror)
    tails, others = forecast_tails(dists, outcome), forecast_tails(mirrored, -outcome)
    for level in (0.01, 0.05):
        np.testing.assert_array_equal(tails["long", level][0], others["short", level][0])
        np.testing.assert_allclose(tails["long", level], others["short", level], rtol=1e-9)


def test_groups_are_tested_apart() -> None:
    rng = np.random.default_rng(3)
    dists = forecasts(rng, 60)
    outcome, assets, groups = draw(rng, dists), np.full(60, "a"), np.repeat([1, 2], 30)
    results = tail_tests(forecast_tails(dists, outcome), assets, groups)
    assert [test.group for test in results] == ["1"] * 4 + ["2"] * 4
    half = BucketDistribution(probs=dists.probs[:30], sigma=dists.sigma[:30], shape=SHAPE)
    alone = tail_tests(forecast_tails(half, outcome[:30]), assets[:30], groups[:30])
    for own, again in zip(results[:4], alone, strict=True):
        assert (own.num_events, own.undefined_share, own.exceedances) == (
            30,
            0.0,
            again.exceedances,
        )
        assert own.shortfall_z2 == pytest.approx(again.shortfall_z2)
