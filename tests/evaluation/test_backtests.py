"""The risk tests examine the served distribution: a replay of it, event by event; their levels
under the truth.
"""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from simulated_market import TinyRuns

from vaiom.baselines.counts import Markov
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.corpus.tokenizer import fit_shape
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.returns import ReturnDistribution
from vaiom.evaluation.calibration import (
    chi_square_tail,
    christoffersen,
    forecast_tails,
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


def test_the_reported_tests_are_of_what_a_user_would_have_held(
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
    returns = corpus.log_ret_next[rows].astype(float)
    pit = np.array([dist.cdf(value) for dist, value in zip(held, returns, strict=True)])
    assert sum(result.calibration.pit_histogram[:2]) == (pit < 0.1).sum()
    tested = {(test.level, test.side): test for test in result.backtests}
    assert set(tested) == {(level, side) for level in (0.01, 0.05) for side in ("long", "short")}
    for (level, side), test in tested.items():
        losses = -returns if side == "long" else returns
        limits = np.array([dist.value_at_risk(1 - level, side) for dist in held])
        shortfalls = np.array([dist.expected_shortfall(1 - level, side) for dist in held])
        hits = losses > limits
        assert (test.num_events, test.exceedances) == (len(hits), hits.sum())
        lost = (losses / (level * shortfalls))[hits].sum()
        assert test.shortfall_z2 == pytest.approx(lost / len(hits) - 1, abs=1e-9)
    assert all(tested[0.05, side].exceedances > 5 for side in ("long", "short"))


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


def test_independence_is_unknown_where_a_state_never_comes_twice_in_an_asset() -> None:
    for exceeded, assets in (([0] * 5, "aaaaa"), ([1] * 5, "aaaaa"), ([0, 1] * 3, "abcdef")):
        assert christoffersen(np.array(exceeded, bool), np.array(list(assets))) is None
    assert chi_square_tail(None, 1) is None
    assert [chi_square_tail(-1e-9, degrees) for degrees in (1, 2)] == [1.0, 1.0]


def test_a_forecast_that_no_loss_is_beyond_has_no_shortfall_test() -> None:
    loss, limit, shortfall, square = ([1.0, 3.0], [2.0, 2.0], [0.0, 3.0], [10.0, 10.0])
    tails = {("long", 0.05): np.array([loss, limit, shortfall, square])}
    [test] = tail_tests(tails, np.full(2, "a"), np.full(2, "all"))
    assert (test.exceedances, test.shortfall_z2, test.shortfall_p) == (1, None, None)


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
