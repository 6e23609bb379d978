"""Horizons are judged on their own events, beside baselines that know what one can know without a
network.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from horizon_oracle import FUTURES, HorizonOracle
from simulated_market import TinyRuns

from vaiom.auditing import figures as audit_figures
from vaiom.auditing.figures import prove_horizons
from vaiom.auditing.pipeline import AuditedRun
from vaiom.auditing.proof import FAILED, PASSED, AuditConfig, Proof
from vaiom.baselines.base import Predictor
from vaiom.baselines.counts import Frequency
from vaiom.baselines.garch import Garch, GarchT, GarchTSeasonal
from vaiom.codec import to_json
from vaiom.corpus import targets as events_horizons
from vaiom.corpus.build import CorpusConfig, corpus_in_memory
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.corpus.targets import fit_target, sum_of_next
from vaiom.distribution.buckets import BucketDistribution
from vaiom.errors import ConfigError
from vaiom.evaluation.evaluate import evaluate_run
from vaiom.evaluation.horizon_scores import (
    LEVELS,
    events_name,
    figures_of_horizon,
    horizon_events,
    judge_horizons,
    root_of_time,
)
from vaiom.evaluation.ledger import read_ledger
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.record import Evaluation
from vaiom.evaluation.scores import event_bits, read_events, write_events
from vaiom.experiments.refit import fit_horizons
from vaiom.market.folder import read_bars
from vaiom.model.horizon_heads import load_horizons
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


def test_an_audit_makes_it_again_and_finds_a_better_loss(
    judged: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, corpus = tmp_path / "run", open_corpus(judged[1])
    shutil.copytree(judged[0], run)
    audited = AuditedRun(run, corpus, AuditConfig(seed=1))
    honest = prove_horizons(audited)
    assert (honest.verdict, honest.findings) == (PASSED, [])
    name = events_name("test-h1", BARS)
    events = read_events(run, name)
    write_events(
        run, name, replace(events, bits={**events.bits, "model": events.bits["model"] - 0.002})
    )
    assert prove_horizons(audited).verdict == FAILED
    # A little better, forecasts and figures with them: less than any figure shows.
    assert events.probs is not None
    view = corpus.with_target(BARS)
    rows = view.endpoints("test-h1", 16)
    hits = np.eye(16)[events.buckets.astype(int) - 1]
    probs = events.probs * 2 ** (3e-4 * hits)
    probs /= probs.sum(axis=1, keepdims=True)
    little = replace(
        events, probs=probs, bits=events.bits | {"model": event_bits(probs, events.buckets)}
    )
    assert np.abs(probs - events.probs).max() < 1e-3
    write_events(run, name, little)
    file = Run(run).evaluation("test-h1")
    stored = json.loads(file.read_text())
    figures = to_json(figures_of_horizon(view, rows, little))
    file.write_text(json.dumps(stored | {"horizons": [stored["horizons"][0] | figures]}))
    assert any(
        "losses that are not the heads'" in finding for finding in prove_horizons(audited).findings
    )
    file.write_text(json.dumps(stored))
    # Wider forecasts beside the true losses; a horizon that no head was taught.
    write_events(run, name, replace(events, probs=np.roll(events.probs, 8, axis=1)))
    assert any("a probability differs" in finding for finding in prove_horizons(audited).findings)
    write_events(run, name, events)
    file.write_text(
        json.dumps(
            stored | {"horizons": [{**stored["horizons"][0], "bars": 99}, *stored["horizons"]]}
        )
    )
    assert any("horizons [99, " in finding for finding in prove_horizons(audited).findings)
    # A worse baseline, with the figures that follow from it.
    worse = replace(events, bits=events.bits | {"frequency": events.bits["frequency"] + 1})
    write_events(run, name, worse)
    figures = to_json(figures_of_horizon(view, rows, worse))
    file.write_text(json.dumps(stored | {"horizons": [stored["horizons"][0] | figures]}))
    [finding] = prove_horizons(audited).findings
    assert "frequency gives an event 1.0e+00 bits more" in finding
    write_events(run, name, events)
    file.write_text(json.dumps(stored))
    # A figure that does not follow.
    file.write_text(
        json.dumps(stored | {"horizons": [stored["horizons"][0] | {"zero_share": 0.5}]})
    )
    [finding] = prove_horizons(audited).findings
    assert "zero_share: the file says 0.5" in finding
    file.write_text(json.dumps(stored))
    # Heads that claim a better Validation.
    heads = load_horizons(Run(run).horizons, audited.checkpoint)
    better = {bars: bits - 1e-4 for bars, bits in heads.fitted.validation_bits.items()}
    replace(heads, fitted=replace(heads.fitted, validation_bits=better)).save(Run(run).horizons)
    [finding] = prove_horizons(audited).findings
    assert "validation, 4 bars: the heads claim" in finding
    heads.save(Run(run).horizons)
    # Targets that begin a bar too late.
    monkeypatch.setattr(
        events_horizons, "sum_of_next", lambda *args: np.roll(sum_of_next(*args), -1)
    )
    assert any(
        "targets of other bars than the next" in finding
        for finding in prove_horizons(audited).findings
    )


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


def test_horizons_of_an_opened_seal_are_audited(judged: tuple[Path, Path], tmp_path: Path) -> None:
    for each in judged:
        shutil.copytree(each, tmp_path / each.name)
    run, corpus = tmp_path / "run", open_corpus(tmp_path / "corpus")
    evaluate_run(run, corpus, "sealed", unseal="sealed", device="cpu")
    proof = prove_horizons(AuditedRun(run, corpus, AuditConfig(seed=1)))
    assert (proof.verdict, proof.findings) == (PASSED, [])
    before = prove_horizons(AuditedRun(judged[0], open_corpus(judged[1]), AuditConfig(seed=1)))
    assert proof.count - before.count >= len(read_events(run, events_name("sealed", BARS)))


class Audited:
    """A copy of the judged run that an audit looks at again and again."""

    def __init__(self, judged: tuple[Path, Path], folder: Path) -> None:
        shutil.copytree(judged[0], folder / "run")
        self.corpus = open_corpus(judged[1])
        self.run = AuditedRun(folder / "run", self.corpus, AuditConfig(seed=1))
        self.name, self.file = (
            events_name("test-h1", BARS),
            Run(folder / "run").evaluation("test-h1"),
        )
        self.events, self.stored = (
            read_events(folder / "run", self.name),
            json.loads(self.file.read_text()),
        )
        self.heads = load_horizons(self.run.files.horizons, self.run.checkpoint)
        self.view = self.corpus.with_target(self.heads.fitted.fits[0])

    def proof(
        self, horizons: Any = None, fitted: dict[str, Any] | None = None, **changes: Any
    ) -> Proof:
        """With other events, another evaluation or other claims of the heads, which are
        put back.
        """
        write_events(self.run.files.path, self.name, replace(self.events, **changes))
        self.file.write_text(
            json.dumps(self.stored | ({} if horizons is None else {"horizons": horizons}))
        )
        replace(self.heads, fitted=replace(self.heads.fitted, **fitted or {})).save(
            self.run.files.horizons
        )
        return prove_horizons(self.run)

    def with_loss(self, name: str, change: Any) -> dict[str, Any]:
        return {"bits": self.events.bits | {name: self.events.bits[name] + change}}


@pytest.fixture
def examined(judged: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Audited:
    monkeypatch.setattr("vaiom.auditing.proof.MAX_FINDINGS", 10**6)
    return Audited(judged, tmp_path)


WHERE = "test-h1, 4 bars"
OTHER_EVENTS = f"{WHERE}: other events or outcomes than those of the split"


def test_an_honest_horizon_is_counted_in_full(examined: Audited) -> None:
    proof, named, [score] = (
        examined.proof(),
        Proof(claim=prove_horizons),
        examined.stored["horizons"],
    )
    rows = examined.view.endpoints("test-h1", 16)
    now = {name: score[name] for name in ("wider", "variance_of_steps", "variance_realised")}
    ours = figures_of_horizon(examined.view, rows, examined.events) | now
    audit_figures._compare_named(named, ours, score, WHERE, {})
    events, claimed = len(examined.events), len(examined.view.endpoints("validation", 16))
    fit_and_targets, same_bars = 1 + 200 + len(examined.corpus), 1
    assert (proof.findings, proof.notes) == ([], [])
    assert (
        proof.count
        == fit_and_targets + same_bars + claimed + events + 1 + events + named.count + 3 * events
    )


def test_horizons_are_those_of_the_heads_or_none(examined: Audited) -> None:
    [score] = examined.stored["horizons"]
    proof = examined.proof(horizons=[{**score, "bars": 99}, score])
    assert proof.findings == ["test-h1: horizons [99, 4], the heads are of [4]"]
    proof = examined.proof(horizons=[{**score, "bars": 99}])
    assert proof.findings == ["test-h1: horizons [99], the heads are of [4]", OTHER_EVENTS]
    proof = examined.proof(horizons=())
    assert (proof.findings, proof.notes) == ([], ["test-h1: the evaluation has no horizons"])


def test_events_of_a_horizon_are_those_of_its_split(examined: Audited) -> None:
    buckets = examined.events.buckets.copy()
    buckets[7] = buckets[7] % 16 + 1
    honest = examined.proof()
    for changes in ({"probs": None}, {"buckets": buckets}):
        proof = examined.proof(**changes)
        assert proof.findings == [OTHER_EVENTS]
        assert proof.count < honest.count


@pytest.mark.parametrize(
    ("times", "found"), [(0.5, False), (-0.5, False), (2.0, True), (-2.0, True)]
)
def test_heads_claim_the_validation_bits_of_their_events(
    examined: Audited, times: float, found: bool
) -> None:
    rows = examined.view.endpoints("validation", 16)
    model, corpus = examined.run.model, examined.corpus
    events_of = horizon_events(model, examined.heads, corpus, "validation")
    [(_, events, _)] = judge_horizons(model, examined.heads, corpus, events_of)
    cost = float(events.bits["model"].mean())
    proof = examined.proof(fitted={"validation_bits": {"4": cost + times * 1e-5}})
    said = (
        f"validation, 4 bars: the heads claim {cost + times * 1e-5} bits, their events cost "
        f"{cost:.6f}"
    )
    assert (len(events), proof.findings) == (len(rows), [said] * found)
    if found:
        said = f"validation, 4 bars: the heads claim nan bits, their events cost {cost:.6f}"
        assert examined.proof(fitted={"validation_bits": {}}).findings == [said]


@pytest.mark.parametrize(("times", "found"), [(0.5, False), (2.0, True)])
def test_answers_of_heads_are_as_near_as_rounding(
    examined: Audited, times: float, found: bool
) -> None:
    rounding, one = (
        examined.run.rounding("test-h1", (examined.heads, examined.view)),
        np.arange(len(examined.events)) == 7,
    )
    assert examined.events.probs is not None
    probs, bucket = examined.events.probs.copy(), int(examined.events.buckets[7])
    probs[7, bucket % 16] += times * rounding.probability
    probs[7, (bucket + 1) % 16] -= times * rounding.probability
    off = f"{WHERE}: a probability differs by {times * rounding.probability:.1e} from the heads'"
    assert [each for each in examined.proof(probs=probs).findings if "differs" in each] == [
        off
    ] * found
    for name, allowed in (
        ("root_of_time", rounding.bits),
        ("frequency", 1e-6),
        ("hour_of_week", 1e-6),
    ):
        proof = examined.proof(**examined.with_loss(name, times * allowed * one))
        off = (
            f"{WHERE}: {name} gives an event {times * allowed:.1e} bits more or fewer than the file"
        )
        assert [each for each in proof.findings if "gives" in each] == [off] * found
    if found:
        proof = examined.proof(**examined.with_loss("model", -0.25))
        assert (
            f"{WHERE}: losses that are not the heads': 2.5e-01 bits off, -2.5e-01 in the mean"
            in proof.findings
        )


@pytest.mark.parametrize("name", ["wider", "variance_of_steps", "variance_realised"])
def test_figures_that_rest_on_answers_now_may_differ_a_little(examined: Audited, name: str) -> None:
    """By a thousandth; those of the events may not."""
    [score] = examined.stored["horizons"]
    for off, found in ((0.5e-3, False), (2e-3, True), (-2e-3, True)):
        says = [
            finding.split(":")[0]
            for finding in examined.proof(horizons=[score | {name: score[name] + off}]).findings
        ]
        assert says == [f"{WHERE}.{name}"] * found
    proof = examined.proof(horizons=[score | {"zero_share": score["zero_share"] + 1e-6}])
    assert [finding.split(":")[0] for finding in proof.findings] == [f"{WHERE}.zero_share"]


def test_baselines_of_horizons_without_a_fit_are_named(examined: Audited) -> None:
    bits = examined.events.bits
    proof = examined.proof(bits=bits | {"garch_t": bits["frequency"]})
    assert proof.notes == [f"{WHERE}: garch_t was not computed again, no fit was found"]


def test_horizons_are_fitted_on_train_alone(
    examined: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, fit, wrong = [], audit_figures.fit_target, 0.0

    def fitted(corpus: Corpus, bars: int) -> Any:
        seen.append(corpus)
        found = fit(corpus, bars)
        return replace(found, zero_share=tuple(share + wrong for share in found.zero_share))

    monkeypatch.setattr(audit_figures, "fit_target", fitted)
    assert examined.proof().findings == []
    wrong = 1e-9
    assert examined.proof().findings == ["4 bars: Train fits other buckets, shape or scale"]
    end, own = np.datetime64(examined.corpus.splits.train_end), examined.corpus.columns["log_ret"]
    for train in seen:
        before, theirs = train.timestamps < end, train.columns["log_ret"]
        assert np.array_equal(own[before], theirs[before], equal_nan=True)
        assert not np.array_equal(own[~before], theirs[~before], equal_nan=True)
