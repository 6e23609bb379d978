"""Student-t and GARCH against numeric integration and a plain loop."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import trapezoid
from small_fits import with_columns

from vaiom.baselines import garch
from vaiom.baselines.base import clean_returns
from vaiom.baselines.ewma import EwmaT
from vaiom.baselines.garch import Garch, GarchT, GarchTSeasonal, fit_garch
from vaiom.baselines.har import HarT
from vaiom.baselines.student import fit_scale, fit_student, student_buckets
from vaiom.corpus.store import Corpus
from vaiom.market.sessions import HOUR, slot_of_week
from vaiom.market.timeframes import step_seconds

EDGES = np.array(
    [-np.inf, -8, -5, -3, -2, -1, -0.6, -0.26, 0.01, 0.28, 0.63, 1, 2, 3, 5, 8, np.inf]
)


def student_density(x: np.ndarray, degrees: float) -> np.ndarray:
    return np.asarray(stats.t.pdf(x, degrees))


@given(degrees=st.floats(0.6, 100), scale=st.floats(0.05, 20))
@settings(max_examples=30, deadline=None)
def test_bucket_probabilities_are_areas_under_the_density(degrees: float, scale: float) -> None:
    probs = student_buckets(EDGES / scale, degrees)
    for bucket in range(1, 15):
        x = np.linspace(EDGES[bucket] / scale, EDGES[bucket + 1] / scale, 20_001)
        area = trapezoid(student_density(x, degrees), x)
        assert probs[bucket] == pytest.approx(area, rel=1e-5, abs=1e-9)
    assert probs.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(
        student_buckets(-EDGES[::-1] / scale, degrees)[::-1], probs, rtol=1e-12
    )


def test_the_fit_finds_the_student_that_made_the_counts() -> None:
    counts = 1e6 * student_buckets(EDGES / 0.8, 3.5)
    assert fit_student(EDGES, counts) == pytest.approx((0.8, 3.5), rel=1e-3)


def test_ewma_t_gives_each_asset_its_own_fit_and_a_new_one_the_pooled(corpus: Corpus) -> None:
    train, edges = corpus.endpoints("train"), corpus.edges["return"]
    fit = EwmaT().fit(corpus, train)
    for inside in corpus.asset_slices.values():
        own = train[(train >= inside.start) & (train < inside.stop)]
        counts = np.bincount(corpus.target_return[own], minlength=17)[1:].astype(float)
        scale, degrees = fit_student(edges, counts)
        expected = student_buckets(edges / scale, degrees)
        np.testing.assert_allclose(fit.predict_proba(corpus, own[:1])[0], expected)
    first, second = corpus.asset_slices.values()
    half = EwmaT().fit(corpus, train[train < first.stop])
    expected = student_buckets(edges / half.pooled_[0], half.pooled_[1])
    np.testing.assert_allclose(
        half.predict_proba(corpus, np.array([second.start + 700]))[0], expected
    )


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 60), missing=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_variance_follows_a_plain_loop(seed: int, size: int, missing: float) -> None:
    rng = np.random.default_rng(seed)
    model = Garch(omega=1e-8, alpha=0.1, beta=0.85, degrees=4.0, start=2e-6)
    returns = np.where(rng.random(size) < missing, np.nan, rng.normal(0, 1e-3, size))
    variance, expected = model.start, []
    for value in returns:
        if not math.isnan(value):
            variance = model.omega + model.alpha * value**2 + model.beta * variance
        expected.append(variance)
    np.testing.assert_allclose(model.next_variance(returns), expected, rtol=1e-9)


def test_garch_finds_the_parameters_of_a_simulated_series() -> None:
    rng = np.random.default_rng(3)
    omega, alpha, beta, degrees = 1e-8, 0.08, 0.9, 6.0
    variance, returns = omega / (1 - alpha - beta), []
    for shock in rng.standard_t(degrees, 12_000) * math.sqrt((degrees - 2) / degrees):
        returns.append(math.sqrt(variance) * shock)
        variance = omega + alpha * returns[-1] ** 2 + beta * variance
    model = fit_garch(np.array(returns))
    assert model is not None
    assert (model.alpha, model.beta) == pytest.approx((alpha, beta), abs=0.025)
    assert model.degrees == pytest.approx(degrees, rel=0.2)
    assert model.omega == pytest.approx(omega, rel=0.6)


def test_garch_probabilities_are_areas_between_the_edges_in_log_returns(corpus: Corpus) -> None:
    fit = GarchT().fit(corpus, corpus.endpoints("train"))
    rows = corpus.endpoints("validation")[::400]
    symbols = list(corpus.asset_slices)
    for row, got in zip(rows, fit.predict_proba(corpus, rows), strict=True):
        symbol = symbols[corpus.meta[row, 0] - 1]
        model = fit.models_[symbol]
        past = slice(corpus.asset_slices[symbol].start, row + 1)
        variance = model.next_variance(clean_returns(corpus, past))[-1]
        # From log returns to a Student-t of scale one.
        unit = math.sqrt(model.degrees / (model.degrees - 2) / variance)
        bounds = corpus.edges["return"][1:-1] * corpus.sigma20[row]
        for bucket, span in enumerate(pairwise(bounds), start=1):
            x = np.linspace(*span, 4_001)
            area = trapezoid(unit * student_density(x * unit, model.degrees), x)
            assert got[bucket] == pytest.approx(area, rel=1e-4, abs=1e-9)


def test_the_scale_that_made_returns_is_found() -> None:
    rng = np.random.default_rng(4)
    regressors = np.stack(
        [np.ones(20_000), rng.normal(-7, 1, 20_000), rng.normal(0, 0.5, 20_000)], axis=1
    )
    returns = np.exp(regressors @ [-1.0, 0.7, 0.4]) * rng.standard_t(5.0, 20_000)
    *weights, degrees = fit_scale(regressors, returns)
    assert (np.abs(np.subtract(weights, [-1.0, 0.7, 0.4])) < [0.1, 0.015, 0.03]).all()
    assert degrees == pytest.approx(5.0, rel=0.1)


def test_no_nearby_scale_makes_the_returns_more_probable() -> None:
    """Against the density of SciPy, one step to each side of every coefficient found."""
    rng = np.random.default_rng(5)
    regressors = np.stack([np.ones(3_000), rng.normal(0, 1, 3_000)], axis=1)
    returns = np.exp(regressors @ [-6.0, 0.5]) * rng.standard_t(4.0, 3_000)
    found = np.array(fit_scale(regressors, returns))

    def nats(point: np.ndarray) -> float:
        scale = np.exp(regressors @ point[:-1])
        return float(-stats.t.logpdf(returns, point[-1], scale=scale).mean())

    for step in np.diag([0.005, 0.005, 0.05]):
        assert min(nats(found + step), nats(found - step)) > nats(found)


@pytest.mark.parametrize(("timeframe", "windows"), [("1h", (1, 24, 120)), ("1d", (1, 5, 22))])
def test_har_reads_ranges_of_a_bar_a_day_and_a_week_and_the_clock(
    corpus: Corpus, timeframe: str, windows: tuple[int, ...]
) -> None:
    corpus = replace(corpus, tokenizer=replace(corpus.tokenizer, timeframe=timeframe))
    fit = HarT().fit(corpus, corpus.endpoints("train"))
    symbol, inside = list(corpus.asset_slices.items())[1]
    rows = corpus.endpoints("validation")
    rows = rows[(rows >= inside.start) & (rows < inside.stop)][::300]
    slots = slot_of_week(corpus.columns["timestamp"], step_seconds(timeframe))
    for row, got in zip(rows, fit._regressors(corpus, rows, symbol), strict=True):
        span = slice(row + 1 - 120, row + 1)
        ranges = (
            corpus.columns["range_z"][span].astype(float)
            * corpus.columns["sigma20"][row - 120 : row]
        )
        squares = np.where(ranges > 0, ranges**2, np.nan)
        wanted = [np.log(np.sqrt(np.nanmean(squares[-bars:]))) for bars in windows]
        np.testing.assert_allclose(got[1:4], wanted, rtol=1e-6)
        np.testing.assert_allclose(
            got[[0, 4, 5]], [1, *np.log(fit.sizes_[2, slots[[row, row - 1]]])]
        )
    probs = fit.predict_proba(corpus, rows)
    *weights, degrees = fit.models_[symbol]
    scales = np.exp(fit._regressors(corpus, rows, symbol) @ weights)
    bounds = corpus.edges["return"] * corpus.sigma20[rows][:, None] / scales[:, None]
    np.testing.assert_allclose(probs, student_buckets(bounds, degrees))


def test_a_bar_without_a_range_counts_as_a_hundredth_of_the_week(corpus: Corpus) -> None:
    fit = HarT().fit(corpus, corpus.endpoints("train"))
    row, symbol = int(corpus.endpoints("validation")[50]), next(iter(corpus.asset_slices))
    flat = np.array(corpus.columns["range_z"])
    flat[row] = 0
    [got] = fit._regressors(with_columns(corpus, range_z=flat), np.array([row]), symbol)
    assert got[1] == pytest.approx(got[3] + math.log(0.01))
    [nothing] = fit._regressors(
        with_columns(corpus, range_z=np.zeros_like(flat)), np.array([row]), symbol
    )
    np.testing.assert_allclose(nothing[1:4], math.log(1e-8))


@pytest.mark.parametrize("kind", [EwmaT, HarT])
def test_an_asset_is_fitted_from_five_hundred_events_on(
    corpus: Corpus, kind: type[EwmaT] | type[HarT]
) -> None:
    first, second = corpus.asset_slices.values()
    train = corpus.endpoints("train")
    of_first, of_second = train[train < first.stop], train[train >= second.start]
    for count in (499, 500):
        fit: Any = kind().fit(corpus, np.concatenate([of_first[:600], of_second[:count]]))
        fitted = fit.students_ if kind is EwmaT else fit.models_
        assert list(fitted) == list(corpus.asset_slices)[: 2 if count == 500 else 1]


def test_seasonal_garch_divides_by_the_usual_size_of_the_hour(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    model = Garch(omega=1e-8, alpha=0.1, beta=0.85, degrees=4.0, start=2e-6)

    def keep(returns: np.ndarray) -> Garch:
        seen.append(returns)
        return model

    monkeypatch.setattr(garch, "fit_garch", keep)
    told: list[tuple[int, int, str]] = []
    train, symbols = corpus.endpoints("train"), list(corpus.asset_slices)
    fit = GarchTSeasonal("garch_t_seasonal", lambda *words: told.append(words)).fit(corpus, train)
    assert told == [(0, 2, symbols[0]), (1, 2, symbols[1]), (2, 2, "")]
    slots = slot_of_week(corpus.columns["timestamp"], HOUR)
    rows = corpus.endpoints("validation")[::500]
    probs = fit.predict_proba(corpus, rows)
    for asset, (inside, returns) in enumerate(
        zip(corpus.asset_slices.values(), seen, strict=True), start=1
    ):
        own = train[(train >= inside.start) & (train < inside.stop)]
        # Through the target of the last event, each return over what is usual after the slot before
        # it.
        through = slice(inside.start, int(own.max()) + 2)
        usual = fit.sizes_[asset, slots[inside.start : through.stop - 1]]
        np.testing.assert_allclose(returns, clean_returns(corpus, through) / [1.0, *usual])
        follows = {
            slot: Counter(slots[own[slots[own] == slot] + 1].tolist())
            for slot in range(fit.sizes_.shape[1])
        }
        for slot, after in follows.items():
            most = max(after.values(), default=0)
            assert fit.follows_[asset, slot] in (
                [each for each in after if after[each] == most] or [slot + 1, 0]
            )
        everything = clean_returns(corpus, inside) / [
            1.0,
            *fit.sizes_[asset, slots[inside.start : inside.stop - 1]],
        ]
        variance = model.next_variance(everything)
        for row, got in zip(rows, probs, strict=True):
            if inside.start <= row < inside.stop:
                scale = math.sqrt(variance[row - inside.start] / 2) * fit.sizes_[asset, slots[row]]
                bounds = corpus.edges["return"] * corpus.sigma20[row] / scale
                np.testing.assert_allclose(got, student_buckets(bounds, 4.0))


def test_garch_without_enough_returns_says_so_and_uses_ewma_t(corpus: Corpus) -> None:
    rows = corpus.endpoints("train", 20)[:300]
    with pytest.warns(UserWarning, match="uses ewma_t"):
        fit = GarchT().fit(corpus, rows)
    events = corpus.endpoints("validation")
    expected = EwmaT().fit(corpus, rows).predict_proba(corpus, events)
    np.testing.assert_array_equal(fit.predict_proba(corpus, events), expected)
