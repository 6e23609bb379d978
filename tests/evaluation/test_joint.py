"""The dependence of assets is fitted on Train, judged beside others, and nearly that which made the
bars.
"""

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

from vaiom.auditing.figures import prove_dependence
from vaiom.auditing.proof import FAILED, PASSED, AuditConfig
from vaiom.baselines.base import clean_returns
from vaiom.baselines.store import fit_or_load
from vaiom.baselines.volatility import GarchT
from vaiom.codec import from_json, to_json
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.store import Corpus
from vaiom.distribution import dependence
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.copula import correlation_of, log_density
from vaiom.distribution.dependence import ReferenceCopula
from vaiom.distribution.joint import JointDistribution
from vaiom.errors import DataError
from vaiom.evaluation import joint
from vaiom.evaluation.calibration import chi_square_tail, christoffersen, kupiec
from vaiom.evaluation.joint import (
    JointEvaluation,
    fissler_ziegel,
    fit_dependence,
    judge_joint,
    make_panel,
    portfolios_of,
)
from vaiom.run import Run
from vaiom.simulation.market import MarketConfig, simulate, write_market
from vaiom.simulation.oracle import Oracle

CORRELATION = 0.6
SMALLER: dict[str, Any] = {
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
        tokenizer=corpus.tokenizer,
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
    """What the joint distribution of the next closes knows more than the single ones, at rows (n,)
    of each asset.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(
        num_nodes
    )  # of the factor that the assets share
    root, rest = math.sqrt(CORRELATION), math.sqrt(1 - CORRELATION)
    joint, alone = np.zeros((len(next(iter(rows.values()))), num_nodes)), 0.0
    for symbol, own in rows.items():
        truth, came = (
            oracle.truths[symbol],
            oracle.truths[symbol].ticks[own + 1, None].astype(np.float64),
        )
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


@pytest.fixture(scope="module")
def found(
    world: tuple[Any, Corpus, Oracle],
    fit: joint.Dependence,
    tmp_path_factory: pytest.TempPathFactory,
) -> JointEvaluation:
    """The dependence judged on Validation, beside a fitted GARCH-t."""
    (model, corpus, _), fits = world, tmp_path_factory.mktemp("fits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "DRAWS", 100)
        patch.setattr(joint, "HISTORY", 100)
        fit_or_load(GarchT(), corpus, model.checkpoint.config.history, fits)
        found = judge_joint(model, corpus, "validation", fit, fits)
    assert found is not None
    return found


def test_the_joint_law_reaches_most_of_the_oracles_bits(
    world: tuple[Any, Corpus, Oracle], fit: joint.Dependence, found: JointEvaluation
) -> None:
    model, corpus, oracle = world
    assert fit.degrees == {"1": None}  # normal, as the factor of the market is
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
    [garch] = {risk.against for each in at_95 for risk in each.against} - {
        "historical_simulation",
        "ewma_covariance",
    }
    theirs = [
        risk.exceedance_rate for each in at_95 for risk in each.against if risk.against == garch
    ]
    assert garch == "garch_t_constant_correlation"
    assert 0.005 < np.mean(theirs) < 0.12


def test_every_figure_of_a_joint_evaluation_equals_a_plain_loop(
    world: tuple[Any, Corpus, Oracle], fit: joint.Dependence, found: JointEvaluation
) -> None:
    model, corpus, _ = world
    inside = corpus.split_codes == corpus.splits.code("validation")
    times = corpus.target_timestamps[inside]
    panel = make_panel(model, corpus, times.min(), times.max() + 1, 100 + fit.memory)
    assert (panel.stamps < times.min()).sum() == 100 + fit.memory
    assert panel.stamps[-1] == times[np.isfinite(corpus.log_ret_next[inside])].max()
    bits: dict[str, list[float]] = {
        "ours": [],
        "independence": [],
        **{name: [] for name in fit.references},
    }
    state, averages = fit.initial_state(), dict.fromkeys(fit.references, fit.correlation)
    losses, ours, weeks, whole_weeks = [], [], [], []
    portfolios = portfolios_of(len(panel.symbols))
    for at, stamp in enumerate(panel.stamps):
        present = [asset for asset in range(len(panel.symbols)) if panel.rows[at, asset] >= 0]
        names, whole = (
            [panel.symbols[asset] for asset in present],
            len(present) == len(panel.symbols),
        )
        if stamp >= times.min() and len(present) > 1:
            weeks.append(stamp.astype("datetime64[W]"))
            correlation, pit = (
                state.correlation(names, panel.scale[at, present]),
                panel.pit[at, present],
            )
            bits["ours"].append(log_density(correlation, pit, fit.degrees["1"]) / math.log(2))
            bits["independence"].append(0.0)
            for name, reference in fit.references.items():
                theirs = reference.correlation(averages[name], fit.correlation)[
                    np.ix_(present, present)
                ]
                bits[name].append(log_density(theirs, pit, reference.degrees) / math.log(2))
            if whole:
                whole_weeks.append(stamp.astype("datetime64[W]"))
                alone = {
                    name: BucketDistribution(
                        probs=panel.dists.probs[number],
                        sigma=panel.dists.sigma[number],
                        shape=panel.dists.shape,
                    )
                    for name, number in zip(names, panel.numbers[at], strict=True)
                }
                law = JointDistribution.of(alone, panel.prob_zero, correlation, fit.degrees["1"])
                ours.append((len(losses), law.sample(100, seed=at)))
        if whole:
            losses.append(
                [-(np.exp(panel.log_ret[at]) - 1) @ share for share in portfolios.values()]
            )
        state = state.updated(names, panel.scores[at, present], panel.scale[at, present])
        averages = {
            name: dependence.update_ewma(averages[name], panel.scores[at], reference.decay)
            for name, reference in fit.references.items()
        }
    assert found.num_stamps == len(bits["ours"])
    assert found.bits == pytest.approx(np.mean(bits["ours"]))
    assert [each.against for each in found.copulas] == ["independence", *fit.references]
    for copula in found.copulas:
        gain = np.array(bits["ours"]) - bits[copula.against]
        assert (copula.bits, copula.gain_bits) == pytest.approx(
            (np.mean(bits[copula.against]), gain.mean())
        )
        assert copula.weeks.num_blocks == len({*weeks})
        assert copula.weeks.block_wins == sum(
            gain[np.array(weeks) == week].sum() > 0 for week in {*weeks}
        )
    assert [(each.portfolio, each.level) for each in found.portfolios] == [
        (name, level) for name in portfolios for level in (0.95, 0.99)
    ]
    for each in found.portfolios:
        number = [*portfolios].index(each.portfolio)
        own = [lost[number] for lost in losses]

        def risk(drawn: np.ndarray, level: float = each.level) -> tuple[float, float]:
            worst = sorted(drawn)[-max(1, round((1 - level) * len(drawn))) :]
            return float(np.quantile(drawn, level)), sum(worst) / len(worst)

        risks = np.array([risk(-np.expm1(drawn) @ portfolios[each.portfolio]) for _, drawn in ours])
        past = np.array([risk(np.array(own[index - 100 : index])) for index, _ in ours])
        came = np.array([own[index] for index, _ in ours])
        hits, gain = (
            came > risks[:, 0],
            fissler_ziegel(came, past, each.level) - fissler_ziegel(came, risks, each.level),
        )
        assert (each.num_stamps, each.exceedance_rate) == (len(ours), hits.mean())
        assert each.kupiec_p == chi_square_tail(kupiec(hits, 1 - each.level), 1)
        assert each.independence_p == chi_square_tail(christoffersen(hits, np.zeros(len(hits))), 1)
        assert (each.value_at_risk, each.expected_shortfall) == pytest.approx(
            tuple(risks.mean(axis=0))
        )
        history = each.against[0]
        assert [other.against for other in each.against] == [
            *("historical_simulation", "ewma_covariance", "garch_t_constant_correlation")
        ]
        assert history.exceedance_rate == (came > past[:, 0]).mean()
        assert history.gain == pytest.approx(gain.mean())
        assert history.weeks.num_blocks == len({*whole_weeks})


def test_the_scales_of_a_garch_are_those_of_its_recursion(
    world: tuple[Any, Corpus, Oracle], tmp_path: Path
) -> None:
    """Of each asset by a plain loop: a Student-t of this variance has a smaller scale, by its
    degrees of freedom.
    """
    model, corpus, _ = world
    times = corpus.target_timestamps[corpus.split_codes == corpus.splits.code("validation")]
    panel = make_panel(model, corpus, times.min(), times.max() + 1, 0)
    assert joint._garch_scales(model, corpus, panel, tmp_path) is None  # nothing is stored
    garch = fit_or_load(GarchT(), corpus, model.checkpoint.config.history, tmp_path)
    found = joint._garch_scales(model, corpus, panel, tmp_path)
    assert found is not None
    scales, degrees = found
    assert degrees == pytest.approx(np.mean([each.degrees for each in garch.models_.values()]))
    for asset, symbol in enumerate(panel.symbols):
        rows, own = corpus.asset_slices[symbol], garch.models_[symbol]
        variance, after = own.start, []
        for log_ret in clean_returns(corpus, rows):
            if np.isfinite(log_ret):
                variance = own.omega + own.alpha * log_ret**2 + own.beta * variance
            after.append(variance)
        for at, row in enumerate(panel.rows[:, asset]):
            expected = (
                math.sqrt(after[row - rows.start] * (degrees - 2) / degrees)
                if row >= 0
                else math.nan
            )
            assert scales[at, asset] == pytest.approx(expected, nan_ok=True)


def test_the_settings_of_a_stored_dependence_are_these() -> None:
    """The audit fits it again: with others nobody's stored one would come out."""
    assert (joint.TRAIN_STAMPS, joint.HISTORY, joint.DRAWS, joint.SEED) == (
        20_000,
        1_000,
        4_096,
        17,
    )
    assert (joint.HALF_LIVES, joint.SHRINKAGES) == ((60, 120, 240, 480), (0.05, 0.1, 0.2, 0.4))
    assert (joint.WEIGHTS, joint.COVARIANCE_DECAYS) == (
        (0.5, 0.7, 0.8, 0.9, 0.95),
        (0.94, 0.97, 0.99),
    )
    assert joint.DEGREES == (4.0, 5.0, 6.0, 8.0, 10.0, 14.0, 20.0, 30.0, None)
    assert (joint.LEVELS, joint.RANDOM_PORTFOLIOS, joint._FITTED_STAMPS) == ((0.95, 0.99), 10, 600)


def test_the_fit_is_the_likeliest_of_its_grid(
    world: tuple[Any, Corpus, Oracle], fit: joint.Dependence
) -> None:
    model, corpus, _ = world
    end = np.datetime64(corpus.splits.train_end)
    panel = make_panel(model, corpus, end, end, 1_200)
    assert (fit.num_stamps, len(panel.stamps)) == (1_200, 1_200)
    assert panel.stamps[-1] < end
    assert (fit.symbols, fit.checkpoint_sha256, fit.classes) == (
        *(panel.symbols, "of the oracle", corpus.tokenizer.classes),
    )

    def moments(stop: int) -> dict[str, np.ndarray]:
        """Of scores, and of scores times scales in a unit that makes calm and wild stamps alike."""
        logs = np.log(panel.scale[:stop])
        alike = np.exp(logs - np.nanmean(logs - np.nanmean(logs, axis=0), axis=1, keepdims=True))
        covariance = joint._mean(panel.scores[:stop] * alike)
        correlation = correlation_of(joint._mean(panel.scores[:stop]))
        return {
            "covariance": covariance / np.exp(np.log(np.diag(covariance)).mean()),
            "correlation": correlation,
        }

    for name, matrix in moments(1_200).items():
        np.testing.assert_allclose(getattr(fit, name), matrix, rtol=1e-9)
    half, start = replace(fit, **moments(600)), moments(600)["correlation"]
    spread = np.unique(np.linspace(600, 1_199, 50).astype(int)).tolist()
    chosen = {
        at: np.flatnonzero(panel.rows[at] >= 0) for at in spread if (panel.rows[at] >= 0).sum() > 1
    }

    def nats(decay: float, shrinkage: float, degrees: float | None) -> float:
        states, total = list(panel.states(replace(half, decay=decay, shrinkage=shrinkage))), 0.0
        for at, own in chosen.items():
            correlation = states[at].correlation(
                [panel.symbols[asset] for asset in own], panel.scale[at, own]
            )
            total += log_density(correlation, panel.pit[at, own], degrees)
        return total

    decays = [0.5 ** (1 / life) for life in SMALLER["HALF_LIVES"]]
    tried = {
        (decay, each): nats(decay, each, 8.0) for decay in decays for each in SMALLER["SHRINKAGES"]
    }
    assert (fit.decay, fit.shrinkage) == max(tried, key=lambda pair: tried[pair])
    by_degrees = {each: nats(fit.decay, fit.shrinkage, each) for each in SMALLER["DEGREES"]}
    assert fit.degrees == {"1": max(by_degrees, key=lambda each: by_degrees[each])}

    def reference_nats(reference: ReferenceCopula) -> float:
        average, total = start, 0.0
        for at, scores in enumerate(panel.scores):
            if at in chosen:
                own = np.ix_(chosen[at], chosen[at])
                matrix = reference.correlation(average, start)[own]
                total += log_density(matrix, panel.pit[at, chosen[at]], reference.degrees)
            average = dependence.update_ewma(average, scores, reference.decay)
        return total

    dcc = fit.references["dcc_gaussian"]
    grids = {
        "constant_gaussian": [ReferenceCopula()],
        "ewma_gaussian": [ReferenceCopula(weight=1.0, decay=decay) for decay in decays],
        "dcc_gaussian": [
            ReferenceCopula(weight=each, decay=d) for each in SMALLER["WEIGHTS"] for d in decays
        ],
        "dcc_t": [replace(dcc, degrees=each) for each in SMALLER["DEGREES"]],
    }
    assert fit.references == {name: max(grid, key=reference_nats) for name, grid in grids.items()}


@pytest.mark.parametrize(("changed", "value"), [("TRAIN_STAMPS", 999), ("HISTORY", 1_201)])
def test_too_few_stamps_teach_no_dependence(
    world: tuple[Any, Corpus, Oracle], monkeypatch: pytest.MonkeyPatch, changed: str, value: int
) -> None:
    for name, each in {**SMALLER, changed: value}.items():
        monkeypatch.setattr(joint, name, each)
    with pytest.raises(DataError, match="too little to learn a dependence from"):
        fit_dependence(world[0], world[1])


def test_an_asset_that_train_hardly_knows_teaches_no_dependence(
    world: tuple[Any, Corpus, Oracle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a bar in the first half of the stamps it has no covariance to be shrunk to."""
    for name, each in SMALLER.items():
        monkeypatch.setattr(joint, name, each)

    def with_a_late_asset(*asked: Any) -> joint.Panel:
        panel = make_panel(*asked)
        late = (np.arange(3) == 1) & (np.arange(len(panel.stamps)) < len(panel.stamps) // 2)[
            :, None
        ]
        return replace(
            panel, scores=np.where(late, np.nan, panel.scores), rows=np.where(late, -1, panel.rows)
        )

    monkeypatch.setattr(joint, "make_panel", with_a_late_asset)
    with pytest.raises(DataError, match="too little to learn a dependence from") as caught:
        fit_dependence(world[0], world[1])
    assert str(caught.value.got).endswith(f", none of {world[1].tokenizer.symbols[1]}")


def test_other_assets_than_those_of_train_are_not_judged(
    world: tuple[Any, Corpus, Oracle], fit: joint.Dependence
) -> None:
    model, corpus, _ = world
    assert judge_joint(model, corpus, "validation", replace(fit, symbols=("A", "B", "C"))) is None


def test_without_a_stamp_that_all_assets_have_there_is_no_portfolio(
    world: tuple[Any, Corpus, Oracle], fit: joint.Dependence, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, corpus, _ = world

    def without_the_first(*asked: Any) -> joint.Panel:
        panel = make_panel(*asked)
        return replace(panel, rows=np.where(np.arange(3) == 0, -1, panel.rows))

    monkeypatch.setattr(joint, "make_panel", without_the_first)
    monkeypatch.setattr(joint, "HISTORY", 100)
    found = judge_joint(model, corpus, "validation", fit)
    assert found is not None
    assert (found.portfolios, found.num_stamps > 100) == ([], True)


def test_without_a_stamp_that_two_assets_have_there_is_nothing_to_judge(
    world: tuple[Any, Corpus, Oracle], fit: joint.Dependence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_alone(*asked: Any) -> joint.Panel:
        panel = make_panel(*asked)
        return replace(panel, rows=np.where(np.arange(3) == 0, panel.rows, -1))

    monkeypatch.setattr(joint, "make_panel", first_alone)
    assert judge_joint(world[0], world[1], "validation", fit) is None


@pytest.mark.parametrize(("stamps", "judged"), [(0, False), (99, False), (100, True)])
def test_portfolios_are_judged_after_as_many_whole_stamps_as_a_limit_needs(
    world: tuple[Any, Corpus, Oracle],
    fit: joint.Dependence,
    monkeypatch: pytest.MonkeyPatch,
    stamps: int,
    judged: bool,
) -> None:
    """An asset that begins just before the split leaves the other forecasts of risk nothing to be
    made from.
    """

    def with_a_late_asset(
        model: Any, corpus: Corpus, first: np.datetime64, *rest: Any
    ) -> joint.Panel:
        panel = make_panel(model, corpus, first, *rest)
        whole = np.flatnonzero((panel.rows >= 0).all(axis=1) & (panel.stamps < first))
        begins = whole[len(whole) - stamps] if stamps else len(panel.stamps[panel.stamps < first])
        late = (np.arange(3) == 0) & (np.arange(len(panel.stamps)) < begins)[:, None]
        return replace(panel, rows=np.where(late, -1, panel.rows))

    monkeypatch.setattr(joint, "make_panel", with_a_late_asset)
    monkeypatch.setattr(joint, "DRAWS", 100)
    found = judge_joint(world[0], world[1], "validation", fit)
    assert found is not None
    assert bool(found.portfolios) is judged
    json.dumps(to_json(found), allow_nan=False)  # as it is stored


def test_the_state_of_a_stamp_is_blind_to_later_bars(
    world: tuple[Any, Corpus, Oracle], fit: joint.Dependence
) -> None:
    model, corpus, _ = world
    end = np.datetime64(TINY_SPLITS.validation[0])
    short, long = (
        make_panel(model, corpus, end, last, 300) for last in (end, end + np.timedelta64(200, "h"))
    )
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
        checkpoint=world[0].checkpoint,
        predict_proba=lambda _, rows: np.tile(uniform, (len(rows), 1)),
    )

    def reads_ahead(corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        probs = np.tile(uniform, (len(rows), 1))
        probs[:, 0] += np.abs(
            np.nan_to_num(corpus.columns["log_ret"][np.minimum(rows + 5, len(corpus) - 1)])
        )
        return probs / probs.sum(axis=1, keepdims=True)

    config = AuditConfig(cuts=2, seed=1)
    fit = fit_dependence(honest, corpus)
    assert prove_dependence(fit, honest, corpus, config).verdict == PASSED
    leaky: Any = SimpleNamespace(checkpoint=honest.checkpoint, predict_proba=reads_ahead)
    found = prove_dependence(fit_dependence(leaky, corpus), leaky, corpus, config)
    assert "with other rows after it" in found.findings[0]
    # One that was fitted on more than Train, and one that was edited.
    later = replace(corpus.splits, train_end=corpus.splits.validation[0]).to_json()
    card = SimpleNamespace(
        **{**vars(honest.checkpoint), "provenance": SimpleNamespace(splits=later)}
    )
    greedy: Any = SimpleNamespace(checkpoint=card, predict_proba=honest.predict_proba)
    of_more = fit_dependence(greedy, corpus)
    for other in (
        of_more,
        replace(fit, degrees={"1": 4.0}),
        replace(fit, covariance=fit.covariance * 1.01),
    ):
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
    returns[150:] *= np.where(np.arange(250) // 25 % 2, 3, 1)[
        :, None
    ]  # for which the shortest memory is best

    def chosen(*ruined: int) -> np.ndarray:
        losses = -returns @ shares.T
        losses[list(ruined)] = 1.0
        return joint._ewma_risk(returns, shares, losses, judged=300)

    as_it_is = chosen()
    np.testing.assert_array_equal(chosen(*range(40)), as_it_is)
    np.testing.assert_array_equal(chosen(*range(300, 400)), as_it_is)
    assert not np.array_equal(chosen(*range(40, 44)), as_it_is)
    calm, wild = (
        joint._ewma_risk(returns, shares, np.full((400, 1), each), judged=30) for each in (0.0, 1.0)
    )
    assert not np.array_equal(
        calm, wild
    )  # fewer than a tenth of all come before what is judged, and still decide


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
    closes = [
        one.bars["Close"]
        for one in simulate(MarketConfig(assets=2, bars=50, correlation=0.5)).values()
    ]
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
    monkeypatch.setattr(
        "vaiom.report.drawing.Drawing.to_svg", lambda *figure: "<svg></svg>"
    )  # drawing takes seconds
    Run(run).config.write_text(
        Run(run).config.read_text().replace(str(tiny.corpus), str(tmp_path / "gone"))
    )
    fitted = json.loads(
        vaiom("dependence", run, "--corpus", tiny.corpus, "--device", "cpu", "--json").out
    )
    kept = json.loads(Run(run).dependence.read_text())
    shared = ("symbols", "decay", "shrinkage", "degrees", "num_stamps", "references")
    assert fitted == {name: kept[name] for name in shared}
    scored = vaiom(
        "evaluate",
        run,
        "--corpus",
        tiny.corpus,
        "--split",
        "validation",
        "--device",
        "cpu",
        "--json",
    )
    found = json.loads(scored.out)["joint"]
    assert {each["against"] for each in found["copulas"]} >= {
        "independence",
        "ewma_gaussian",
        "dcc_t",
    }
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
