"""The dependence of assets is fitted on Train, judged beside others, and nearly that which made the bars."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from simulated_market import TINY_SPLITS, TinyRuns

from vaiom.audit.figures import prove_dependence
from vaiom.audit.proof import FAILED, PASSED, AuditConfig
from vaiom.baselines.store import fit_or_load
from vaiom.baselines.volatility import GarchT
from vaiom.codec import from_json, to_json
from vaiom.evaluation import joint
from vaiom.evaluation.joint import (
    JointEvaluation,
    fissler_ziegel,
    fit_dependence,
    judge_joint,
    make_panel,
    portfolios_of,
)
from vaiom.events.build import CorpusConfig, build_corpus
from vaiom.events.corpus import Corpus
from vaiom.simulate.market import MarketConfig, simulate, write_market
from vaiom.simulate.oracle import Oracle

CORRELATION = 0.6
SMALLER = {
    "_FITTED_STAMPS": 50,
    "TRAIN_STAMPS": 1_200,
    "HALF_LIVES": (60, 240),
    "SHRINKAGES": (0.1, 0.4),
    "WEIGHTS": (0.5, 0.9),
    "DEGREES": (8.0, None),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Corpus, Oracle]:
    """A correlated market, and a model that knows the true distribution of each asset by itself."""
    folder = tmp_path_factory.mktemp("joint")
    config = MarketConfig(assets=3, bars=3_500, correlation=CORRELATION, end=TINY_SPLITS.seal)
    write_market(config, folder / "bars")
    corpus, oracle = (
        build_corpus(folder / "bars", folder / "corpus", CorpusConfig(splits=TINY_SPLITS)),
        Oracle.load(folder / "bars"),
    )
    card = SimpleNamespace(
        config=SimpleNamespace(history=64),
        provenance=SimpleNamespace(splits=corpus.splits.to_json()),
        sha256="of the oracle",
    )
    return SimpleNamespace(checkpoint=card, predict_proba=oracle.predict_proba), corpus, oracle


@pytest.fixture(scope="module")
def fit(world: tuple[Any, Corpus, Oracle]) -> joint.Dependence:
    model, corpus, _ = world
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALLER.items():
            patch.setattr(joint, name, value)
        return fit_dependence(model, corpus)


def dependence_bits(oracle: Oracle, rows: dict[str, np.ndarray], num_nodes: int = 40) -> np.ndarray:
    """What the joint distribution of the next closes knows more than the single ones, at rows (n,) of each asset."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)  # of the factor that the assets share
    root, rest = math.sqrt(CORRELATION), math.sqrt(1 - CORRELATION)
    joint, alone = np.zeros((len(next(iter(rows.values()))), num_nodes)), 0.0
    for symbol, own in rows.items():
        truth, came = oracle.truths[symbol], oracle.truths[symbol].ticks[own + 1, None].astype(np.float64)
        edges = truth.mass_by_state(own, np.full_like(came, -np.inf), np.hstack([came - 1, came]))
        mass, states = edges[:, 1] - edges[:, 0], truth.weights[own]
        # Given the factor of the hour the assets are independent, whatever their states.
        at = (ndtri(np.clip(edges, 1e-15, 1 - 1e-15))[..., None] - root * nodes) / rest
        given = np.maximum(ndtr(at[:, 1]) - ndtr(at[:, 0]), 1e-300)
        joint += np.log(np.einsum("nk,nkf->nf", states, given))
        alone = alone + np.log(np.einsum("nk,nk->n", states, mass))
    top = joint.max(axis=1, keepdims=True)
    share = np.exp(joint - top) @ (weights / weights.sum())
    return (np.log(share) + top[:, 0] - alone) / math.log(2)


def test_the_joint_law_reaches_most_of_the_oracles_bits(
    world: tuple[Any, Corpus, Oracle], fit: joint.Dependence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, corpus, oracle = world
    assert fit.degrees == {"1": None}  # normal, as the factor of the market is
    monkeypatch.setattr(joint, "DRAWS", 100)
    monkeypatch.setattr(joint, "HISTORY", 100)
    fit_or_load(GarchT(), corpus, model.checkpoint.config.history, tmp_path)
    found = judge_joint(model, corpus, "validation", fit, tmp_path)
    assert found is not None
    assert from_json(JointEvaluation, to_json(found)) == found
    times = corpus.target_timestamps[corpus.split_codes == corpus.splits.code("validation")]
    panel = make_panel(model, corpus, times.min(), times.max() + 1, 0)
    whole = [at for at in range(len(panel.stamps)) if len(panel.present(at)) == len(panel.symbols)]
    starts = [corpus.asset_slices[symbol].start for symbol in panel.symbols]
    rows = {symbol: panel.rows[whole, at] - starts[at] for at, symbol in enumerate(panel.symbols)}
    best = float(dependence_bits(oracle, rows).mean())
    assert best > 0.5
    assert found.bits >= 0.8 * best
    gains = {each.against: each.gain_bits for each in found.copulas}
    assert gains["independence"] == pytest.approx(found.bits)
    assert len(found.portfolios) == 24
    at_95 = [each for each in found.portfolios if each.level == 0.95]
    assert 0.005 < np.mean([each.exceedance_rate for each in at_95]) < 0.12
    [garch] = {risk.against for each in at_95 for risk in each.against} - {"historical_simulation", "ewma_covariance"}
    theirs = [risk.exceedance_rate for each in at_95 for risk in each.against if risk.against == garch]
    assert garch == "garch_t_constant_correlation"
    assert 0.005 < np.mean(theirs) < 0.12


def test_the_state_of_a_stamp_is_blind_to_later_bars(world: tuple[Any, Corpus, Oracle], fit: joint.Dependence) -> None:
    model, corpus, _ = world
    end = np.datetime64(TINY_SPLITS.validation[0])
    short, long = (make_panel(model, corpus, end, last, 300) for last in (end, end + np.timedelta64(200, "h")))
    assert len(long.stamps) > len(short.stamps) == 300
    for before, after in zip(short.states(fit), long.states(fit), strict=False):
        assert np.array_equal(before.covariance, after.covariance)


def test_the_audit_finds_a_dependence_that_reads_the_future(
    world: tuple[Any, Corpus, Oracle], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, corpus, _ = world
    for name, value in SMALLER.items():
        monkeypatch.setattr(joint, name, value)
    uniform = np.full(16, 1 / 16)
    honest: Any = SimpleNamespace(
        checkpoint=world[0].checkpoint, predict_proba=lambda _, rows: np.tile(uniform, (len(rows), 1))
    )

    def reads_ahead(corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        probs = np.tile(uniform, (len(rows), 1))
        probs[:, 0] += np.abs(np.nan_to_num(corpus.columns["log_ret"][np.minimum(rows + 5, len(corpus) - 1)]))
        return probs / probs.sum(axis=1, keepdims=True)

    config = AuditConfig(cuts=2, seed=1)
    fit = fit_dependence(honest, corpus)
    assert prove_dependence(fit, honest, corpus, config).verdict == PASSED
    leaky: Any = SimpleNamespace(checkpoint=honest.checkpoint, predict_proba=reads_ahead)
    found = prove_dependence(fit_dependence(leaky, corpus), leaky, corpus, config)
    assert "with other rows after it" in found.findings[0]
    # One that was fitted on more than Train, and one that was edited.
    later = replace(corpus.splits, train_end=corpus.splits.validation[0]).to_json()
    card = SimpleNamespace(**{**vars(honest.checkpoint), "provenance": SimpleNamespace(splits=later)})
    greedy: Any = SimpleNamespace(checkpoint=card, predict_proba=honest.predict_proba)
    of_more = fit_dependence(greedy, corpus)
    for other in (of_more, replace(fit, degrees={"1": 4.0}), replace(fit, covariance=fit.covariance * 1.01)):
        found = prove_dependence(other, honest, corpus, config)
        assert found.verdict == FAILED
        assert "Train gives another" in found.findings[0]


def test_the_true_risk_has_the_least_fissler_ziegel_loss() -> None:
    losses = np.random.default_rng(0).standard_normal(200_000)
    true = np.array([1.6449, 2.0627])

    def mean(risk: np.ndarray) -> float:
        return float(fissler_ziegel(losses, risk, 0.95).mean())

    for factor in ([0.9, 1.0], [1.1, 1.0], [1.0, 0.9], [1.0, 1.1]):
        assert mean(true) < mean(true * factor)


def test_the_decay_of_riskmetrics_is_chosen_after_its_start_and_before_what_is_judged() -> None:
    """A tenth of the stamps is left for the matrix to forget where it began."""
    draw = np.random.default_rng(3)
    returns, shares = 0.01 * draw.standard_normal((400, 2)), np.array([[0.5, 0.5]])
    returns[150:] *= np.where(np.arange(250) // 25 % 2, 3, 1)[:, None]  # for which the shortest memory is best

    def chosen(*ruined: int) -> np.ndarray:
        losses = -returns @ shares.T
        losses[list(ruined)] = 1.0
        return joint._ewma_risk(returns, shares, losses, judged=300)

    as_it_is = chosen()
    np.testing.assert_array_equal(chosen(*range(40)), as_it_is)
    np.testing.assert_array_equal(chosen(*range(300, 400)), as_it_is)
    assert not np.array_equal(chosen(*range(40, 44)), as_it_is)


@pytest.mark.parametrize("degrees", [None, 5.0])
def test_elliptic_risk_is_the_quantile_and_the_mean_beyond_it(degrees: float | None) -> None:
    found = joint._elliptic(np.array([[1.0, 2.0]]), degrees)
    for place, level in enumerate(joint.LEVELS):
        beyond = level + (1 - level) * (np.arange(200_000) + 0.5) / 200_000
        risk = [joint.scores_of(np.array(level), degrees), joint.scores_of(beyond, degrees).mean()]
        np.testing.assert_allclose(found[0, :, place], np.outer([1, 2], risk), rtol=1e-4)


def test_a_mean_counts_every_stamp_once_and_independence_as_one_more() -> None:
    values = np.random.default_rng(1).standard_normal((7, 3))
    products = [np.outer(each, each) for each in values]
    first = np.diag(np.diagonal(np.mean(products, axis=0)))
    np.testing.assert_allclose(joint._mean(values), np.mean([first, *products], axis=0))


def test_portfolios_are_what_their_names_say() -> None:
    named = portfolios_of(5)
    assert named["equal"].sum() == pytest.approx(1)
    assert named["dollar_neutral"].sum() == pytest.approx(0)
    assert all(np.abs(each).sum() == pytest.approx(1) for each in named.values())
    assert len(named) == 12


def test_a_market_without_correlation_is_the_one_it_was(tmp_path: Path) -> None:
    config = MarketConfig(assets=2, bars=50)
    manifest = write_market(config, tmp_path / "bars")
    assert "correlation" not in manifest["market"]
    closes = [one.bars["Close"] for one in simulate(MarketConfig(assets=2, bars=50, correlation=0.5)).values()]
    assert not closes[0].equals(simulate(config)["SIM01USD"].bars["Close"])


def test_a_run_is_fitted_judged_reported_and_audited(
    tiny: TinyRuns, vaiom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny.runs[0], run)
    for name, value in SMALLER.items():
        monkeypatch.setattr(joint, name, value)
    monkeypatch.setattr(joint, "HISTORY", 100)
    monkeypatch.setattr(joint, "DRAWS", 100)
    monkeypatch.setattr("vaiom.report.figures._to_svg", lambda *figure: "<svg></svg>")  # drawing takes seconds
    assert vaiom("dependence", run, "--corpus", tiny.corpus, "--device", "cpu").code == 0
    scored = vaiom("evaluate", run, "--corpus", tiny.corpus, "--split", "validation", "--device", "cpu", "--json")
    found = json.loads(scored.out)["joint"]
    assert {each["against"] for each in found["copulas"]} >= {"independence", "ewma_gaussian", "dcc_t"}
    # Forecasts of the same losses have losses that are near each other, each itself far below zero.
    gains = [other["gain"] for each in found["portfolios"] for other in each["against"]]
    assert gains
    assert max(map(abs, gains)) < 3, gains
    assert vaiom("report", run, "--corpus", tiny.corpus).code == 0
    page = (run / "report.html").read_text()
    assert 'id="joint"' in page
    assert "historical_simulation" in page
    stored = json.loads((run / "evaluation-validation.json").read_text())
    stored["joint"]["copulas"][1]["gain_bits"] += 0.5
    (run / "evaluation-validation.json").write_text(json.dumps(stored))
    words = ("--cuts", 1, "--baselines", "frequency", "--json")
    proofs = json.loads(vaiom("audit", run, "--corpus", tiny.corpus, *words).out)["proofs"]
    found = {proof["name"]: proof for proof in proofs}
    assert found["h. dependence"]["verdict"] == PASSED
    [finding, *_] = found["e. figures"]["findings"]
    assert "joint.copulas[1].gain_bits" in finding
