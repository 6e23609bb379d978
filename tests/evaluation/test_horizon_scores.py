"""Horizons are judged on their own events, beside baselines that know what one can know without a
network.
"""

from __future__ import annotations

import math
import shutil
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from horizon_oracle import FUTURES, HorizonOracle
from simulated_market import TinyRuns

from vaiom.baselines.base import Predictor
from vaiom.baselines.counts import Frequency
from vaiom.baselines.garch import Garch, GarchT, GarchTSeasonal
from vaiom.corpus.build import CorpusConfig, corpus_in_memory
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.corpus.targets import fit_target
from vaiom.distribution.buckets import BucketDistribution
from vaiom.errors import ConfigError
from vaiom.evaluation.access_ledger import read_ledger
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.horizon_scores import (
    LEVELS,
    events_name,
    horizon_events,
    judge_horizons,
    root_of_time,
)
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.record import Evaluation
from vaiom.evaluation.scores import event_bits, read_events
from vaiom.experiments.refit import fit_horizons
from vaiom.market.folder import read_bars
from vaiom.report.page import write_report
from vaiom.report.results import tables_of
from vaiom.run import Run
from vaiom.simulation.market import MarketConfig, write_market
from vaiom.simulation.oracle import Oracle

BARS = 4


@pytest.fixture(scope="module")
def judged(tiny: TinyRuns, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with one horizon that was evaluated on a test split, and its corpus."""
    folder = tmp_path_factory.mktemp("judged")
    # Other files may have evaluated the run.
    shutil.copytree(
        tiny.runs[0], folder / "run", ignore=shutil.ignore_patterns("evaluation-*", "events-*")
    )
    shutil.copytree(tiny.corpus, folder / "corpus")
    corpus = open_corpus(folder / "corpus")
    fit_horizons(folder / "run", corpus, (BARS,), device="cpu")
    evaluate_run(folder / "run", corpus, "test-h1", device="cpu")
    return folder / "run", folder / "corpus"


def test_bits_follow_from_the_events_and_the_look_is_one(judged: tuple[Path, Path]) -> None:
    run, corpus = judged
    [score] = Evaluation.read(run, "test-h1").horizons or []
    assert events_name("test-h1", BARS) == "test-h1-4-bars"
    events, view = read_events(run, "test-h1-4-bars"), open_corpus(corpus).with_target(BARS)
    assert score.bars == BARS
    assert score.num_events == len(events) == len(view.endpoints("test-h1", 16))
    assert list(score.bits) == ["model", "frequency", "hour_of_week", "root_of_time"]
    for name, losses in events.bits.items():
        assert math.isclose(score.bits[name], losses.mean())
    frequency = np.bincount(view.target_return[view.endpoints("train", 16)], minlength=17)[1:] + 1.0
    expected = -np.log2((frequency / frequency.sum())[events.buckets.astype(int) - 1])
    np.testing.assert_allclose(events.bits["frequency"], expected)
    assert score.gains["frequency"].gain_bits == pytest.approx(
        score.bits["frequency"] - score.bits["model"]
    )
    assert score.not_fitted == ["garch_t", "garch_t_seasonal", "lightgbm_lags"]
    assert [look.split for look in read_ledger(open_corpus(corpus))] == ["test-h1"]


def test_the_report_tells_of_horizons(judged: tuple[Path, Path], tmp_path: Path) -> None:
    run, corpus = judged
    write_report(run, corpus=corpus, out=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Beyond the next bar" in page
    assert "fan-test-h1" in page
    [first, second] = tables_of(Evaluation.read(run, "test-h1"), "test")["horizons"]
    assert len(first.rows) == 4
    assert second.rows[0][-1] == "garch_t, garch_t_seasonal, lightgbm_lags"


def test_every_figure_of_a_horizon_equals_a_plain_loop(tiny: TinyRuns) -> None:
    """Forecasts that are made up, on two horizons and one that no event is long enough for."""
    corpus, split = open_corpus(tiny.corpus), "test-h1"
    model = ModelPredictor.load(Run(tiny.runs[0]).best, "cpu")

    def made_up(seen: np.ndarray, inputs: Any, bars: int) -> np.ndarray:
        return np.random.default_rng(bars).dirichlet(np.arange(1, 17) % 9 + 1.0, len(seen))

    fits = [fit_target(corpus, bars) for bars in (2, 300, 4)]
    horizons: Any = SimpleNamespace(fitted=SimpleNamespace(fits=fits), probs=made_up)
    events_of = horizon_events(model, horizons, corpus, split)
    found = list(judge_horizons(model, horizons, corpus, events_of))
    assert [score.bars for score, _, _ in found] == [2, 4]
    before: dict[int, float] = {}
    for score, events, rows in found:
        view = corpus.with_target(score.bars)
        np.testing.assert_array_equal(rows, view.endpoints(split, 16))
        np.testing.assert_array_equal(events.probs, made_up(rows, None, score.bars))
        np.testing.assert_allclose(
            events.bits["model"], event_bits(events.probs, view.target_return[rows])
        )
        one = {}
        for row in {int(row) + step for row in rows for step in range(score.bars)}:
            probs = model.predict_proba(corpus, np.array([row]))
            one[row] = BucketDistribution(
                probs=probs, sigma=corpus.sigma20[[row]], shape=corpus.return_shape
            )
        direct, along, wider, scaled = [], [], [], []
        for row, probs in zip(rows.tolist(), events.probs, strict=True):
            own = BucketDistribution(
                probs=probs[None], sigma=view.target_scale[[row]], shape=view.return_shape
            )
            low, high = own.interval(0.9)
            if score.bars == 2:
                near = one[row].interval(0.9)
                wider.append(high - low > near[1] - near[0])
                before[row] = high - low
            elif row in before:
                wider.append(high - low > before[row])
            direct.append(own.std() ** 2)
            along.append(sum(one[row + step].std() ** 2 for step in range(score.bars)))
            scaled.append(own.quantile(LEVELS) / corpus.sigma20[row])
        realised = view.log_ret_next[rows].astype(np.float64)
        assert score.wider == pytest.approx(np.mean(wider))
        assert score.variance_of_steps == pytest.approx(np.mean(direct) / np.mean(along), rel=1e-4)
        assert score.variance_realised == pytest.approx(np.mean(realised**2) / np.mean(direct))
        assert score.quantiles == pytest.approx(
            dict(zip(map(str, LEVELS), np.median(np.vstack(scaled), axis=0), strict=True))
        )
        inside = view.log_ret_next[view.split_codes == view.splits.code(split)]
        assert score.zero_share == np.mean(inside[np.isfinite(inside)] == 0)
    assert LEVELS == (0.05, 0.25, 0.5, 0.75, 0.95)


def test_horizons_of_the_sealed_split_need_its_name(tiny: TinyRuns) -> None:
    corpus, model = open_corpus(tiny.corpus), ModelPredictor.load(Run(tiny.runs[0]).best, "cpu")
    fitted, even = (
        SimpleNamespace(fits=[fit_target(corpus, 2)]),
        lambda seen, *_: np.full((len(seen), 16), 1 / 16),
    )
    horizons: Any = SimpleNamespace(fitted=fitted, probs=even)
    with pytest.raises(ConfigError, match="not opened by accident"):
        horizon_events(model, horizons, corpus, "sealed")
    opened = horizon_events(model, horizons, corpus, "sealed", unseal="sealed")
    [(score, _, _)] = judge_horizons(model, horizons, corpus, opened)
    assert score.bits["model"] == 4.0


def test_root_of_time_is_the_scaled_distribution(tiny: TinyRuns) -> None:
    corpus = open_corpus(tiny.corpus)
    view = corpus.with_target(BARS)
    rows = view.endpoints("validation", 16)[:3]
    one = np.random.default_rng(0).dirichlet(np.ones(16), len(rows))
    found = root_of_time(view, rows, one)
    for probs, row, own in zip(found, rows, one, strict=True):
        dist = BucketDistribution(
            probs=own[None], sigma=corpus.sigma20[[row]], shape=corpus.return_shape
        )
        below = [
            float(dist.cdf(np.array([edge * view.target_scale[row] / 2]))[0])
            for edge in view.edges["return"][1:-1]
        ]
        np.testing.assert_allclose(probs, np.diff([0, *below, 1]), atol=1e-12)


def test_simulated_sums_of_a_garch() -> None:
    """Against every path by itself; without feedback, against the variance of a sum."""
    model = Garch(omega=2e-7, alpha=0.1, beta=0.85, degrees=5.0, start=4e-6)
    rng, bars, paths = np.random.default_rng(3), 3, 200_000
    sizes, variance = np.array([[1.0, 2.0, 0.5]]), np.array([9e-6])
    total, now = np.zeros(paths), np.full(paths, variance[0])
    for step in range(bars):
        drawn = np.sqrt(now) * rng.standard_t(5, paths) * math.sqrt(3 / 5)
        total += sizes[0, step] * drawn
        now = model.omega + model.alpha * drawn**2 + model.beta * now
    bounds = np.array([[-np.inf, -0.01, -0.004, 0.0, 0.002, 0.02, np.inf]])
    expected = np.histogram(total, bounds[0])[0] / paths
    # The other row makes it interpolate between variances.
    found = model.simulated_buckets(
        np.repeat(bounds, 2, axis=0), np.append(variance, 1e-6), np.repeat(sizes, 2, axis=0)
    )
    np.testing.assert_allclose(found[0], expected, atol=0.006)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Corpus]:
    folder, config = (
        tmp_path_factory.mktemp("simulated") / "bars",
        MarketConfig(assets=1, bars=9_000),
    )
    write_market(config, folder)
    splits = SplitConfig(
        train_end=datetime(2025, 8, 1),
        validation=(datetime(2025, 9, 1), datetime(2025, 11, 1)),
        tests=((datetime(2025, 11, 1), datetime(2025, 12, 1)),),
        seal=datetime(2025, 12, 1),
    )
    return folder, corpus_in_memory(read_bars(folder), CorpusConfig(splits=splits))


def bits_of(predictor: Predictor, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
    return event_bits(predictor.predict_proba(corpus, rows), corpus.target_return[rows])


def test_a_garch_that_knows_the_clock(simulated: tuple[Path, Corpus]) -> None:
    """The market has a calendar; at one bar and at several the one that knows it is better."""
    corpus = simulated[1]
    plain, seasonal = (
        kind().fit(corpus, corpus.endpoints("train")) for kind in (GarchT, GarchTSeasonal)
    )
    for seen in (corpus, corpus.with_target(BARS)):
        rows = seen.endpoints("validation")
        assert bits_of(seasonal, seen, rows).mean() < bits_of(plain, seen, rows).mean() - 0.02


def test_the_simulated_oracle_is_the_exact_one_at_one_bar(simulated: tuple[Path, Corpus]) -> None:
    bars, corpus = simulated
    rows = corpus.endpoints("validation")[::40]
    exact = Oracle.load(bars).predict_proba(corpus, rows)
    found = HorizonOracle.load(bars).predict_proba(corpus, rows)
    assert (np.abs(found - exact) < 5 * np.sqrt(exact * (1 - exact) / FUTURES) + 0.003).all()


def test_the_oracle_at_a_horizon_beats_frequency(simulated: tuple[Path, Corpus]) -> None:
    view = simulated[1].with_target(8)
    rows = view.endpoints("validation")[::3]
    frequency = Frequency().fit(view, view.endpoints("train"))
    gain = bits_of(frequency, view, rows) - bits_of(HorizonOracle.load(simulated[0]), view, rows)
    assert gain.mean() > 0.02
