"""The dependence of assets is fitted on Train, judged beside others, and nearly that which made the
bars.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from simulated_market import TINY_SPLITS, tiny_corpus

from training.tiny_runs import TINY
from vaiom.auditing.fits import check_dependence
from vaiom.auditing.proof import FAILED, PASSED, AuditConfig, Proof
from vaiom.baselines.base import clean_returns
from vaiom.baselines.garch import GarchT
from vaiom.baselines.stored_losses import fit_or_load
from vaiom.codec import from_json, to_json
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.store import Corpus
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.copula import correlation_of, log_density, scores_of
from vaiom.distribution.dependence import Dependence, ReferenceCopula, update_ewma
from vaiom.distribution.joint import JointDistribution
from vaiom.errors import DataError
from vaiom.evaluation.calibration import chi_square_tail, christoffersen, kupiec
from vaiom.evaluation.copula_fit import (
    DependenceGrid,
    fit_dependence,
    fit_panel,
    mean_of_products,
)
from vaiom.evaluation.joint_scores import JointEvaluation, JointPeriod, judge_joint, judge_panel
from vaiom.evaluation.panel import Panel, make_panel
from vaiom.evaluation.portfolios import (
    LEVELS,
    JointConfig,
    elliptic_risks,
    fissler_ziegel,
    garch_scales,
    portfolios_of,
    riskmetrics_risks,
)
from vaiom.run import Run
from vaiom.simulation.market import MarketConfig, simulate, write_market
from vaiom.simulation.oracle import Oracle
from vaiom.training.loop import train

CORRELATION = 0.6
GRID = DependenceGrid(
    train_stamps=1_200,
    judged_stamps=50,
    half_lives=(60, 240),
    shrinkages=(0.1, 0.4),
    weights=(0.5, 0.9),
    degrees=(8.0, None),
)
FEW_DRAWS = JointConfig(history=100, draws=100)


class World(NamedTuple):
    """A correlated market, and a model that knows the true distribution of each asset by itself."""

    model: Any
    corpus: Corpus
    oracle: Oracle
    fits: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("joint")
    config = MarketConfig(assets=3, bars=3_500, correlation=CORRELATION, end=TINY_SPLITS.seal)
    write_market(config, folder / "bars")
    corpus = build_corpus(folder / "bars", folder / "corpus", CorpusConfig(splits=TINY_SPLITS))
    oracle = Oracle.load(folder / "bars")
    card = SimpleNamespace(
        config=SimpleNamespace(history=64),
        provenance=SimpleNamespace(splits=corpus.splits.to_json()),
        tokenizer=corpus.tokenizer,
        sha256="of the oracle",
    )
    model = SimpleNamespace(checkpoint=card, predict_proba=oracle.predict_proba)
    return World(model, corpus, oracle, folder / "fits")


@pytest.fixture(scope="module")
def train_panel(world: World) -> Panel:
    end = np.datetime64(TINY_SPLITS.train_end)
    return make_panel(world.model, world.corpus, end, end, GRID.train_stamps)


@pytest.fixture(scope="module")
def fit(world: World) -> Dependence:
    return fit_dependence(world.model, world.corpus, GRID)


@pytest.fixture(scope="module")
def period(world: World, fit: Dependence) -> JointPeriod:
    return JointPeriod.of(world.corpus, "validation", fit, FEW_DRAWS)


@pytest.fixture(scope="module")
def panel(world: World, period: JointPeriod) -> Panel:
    return make_panel(world.model, world.corpus, period.first, period.last, period.before)


@pytest.fixture(scope="module")
def garch(world: World) -> GarchT:
    return fit_or_load(GarchT(), world.corpus, 64, world.fits)


@pytest.fixture(scope="module")
def found(world: World, fit: Dependence, garch: GarchT) -> JointEvaluation:
    """The dependence judged on Validation, beside a fitted GARCH-t."""
    found = judge_joint(world.model, world.corpus, "validation", fit, world.fits, FEW_DRAWS)
    assert found is not None
    return found


def dependence_bits(oracle: Oracle, rows: dict[str, np.ndarray], num_nodes: int = 40) -> np.ndarray:
    """What the joint distribution of the next closes knows more than the single ones, at rows (n,)
    of each asset.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(
        num_nodes
    )  # of the factor that the assets share
    root = math.sqrt(CORRELATION)
    rest = math.sqrt(1 - CORRELATION)
    joint = np.zeros((len(next(iter(rows.values()))), num_nodes))
    alone = 0.0
    for symbol, own in rows.items():
        truth = oracle.truths[symbol]
        came = truth.ticks[own + 1, None].astype(np.float64)
        edges = truth.mass_by_state(own, np.full_like(came, -np.inf), np.hstack([came - 1, came]))
        mass = edges[:, 1] - edges[:, 0]
        states = truth.weights[own]
        # Given the factor of the hour the assets are independent, whatever their states.
        at = (ndtri(np.clip(edges, 1e-15, 1 - 1e-15))[..., None] - root * nodes) / rest
        given = np.maximum(ndtr(at[:, 1]) - ndtr(at[:, 0]), 1e-300)
        joint += np.log(np.einsum("nk,nkf->nf", states, given))
        alone = alone + np.log(np.einsum("nk,nk->n", states, mass))
    top = joint.max(axis=1, keepdims=True)
    share = np.exp(joint - top) @ (weights / weights.sum())
    return (np.log(share) + top[:, 0] - alone) / math.log(2)


def test_the_joint_law_reaches_most_of_the_oracles_bits(
    world: World, fit: Dependence, panel: Panel, period: JointPeriod, found: JointEvaluation
) -> None:
    assert fit.degrees == {"1": None}  # normal, as the factor of the market is
    assert from_json(JointEvaluation, to_json(found)) == found
    stamps = panel.whole_stamps()
    scored = stamps[panel.stamps[stamps] >= period.first]
    starts = [world.corpus.asset_slices[symbol].start for symbol in panel.symbols]
    rows = {symbol: panel.rows[scored, at] - starts[at] for at, symbol in enumerate(panel.symbols)}
    best = float(dependence_bits(world.oracle, rows).mean())
    assert best > 0.5
    assert found.bits >= 0.8 * best
    assert len(found.portfolios) == 24
    at_95 = [each for each in found.portfolios if each.level == 0.95]
    garch = "garch_t_constant_correlation"
    theirs = [
        risk.exceedance_rate for each in at_95 for risk in each.against if risk.against == garch
    ]
    assert 0.005 < np.mean([each.exceedance_rate for each in at_95]) < 0.12
    assert 0.005 < np.mean(theirs) < 0.12


def test_every_figure_of_a_joint_evaluation_equals_a_plain_loop(
    world: World, fit: Dependence, panel: Panel, period: JointPeriod, found: JointEvaluation
) -> None:
    inside = world.corpus.split_codes == world.corpus.splits.code("validation")
    times = world.corpus.target_timestamps[inside]
    assert (panel.stamps < times.min()).sum() == FEW_DRAWS.history + fit.memory
    assert panel.stamps[-1] == times[np.isfinite(world.corpus.log_ret_next[inside])].max()
    bits: dict[str, list[float]] = {name: [] for name in ("ours", "independence", *fit.references)}
    state = fit.initial_state()
    averages = dict.fromkeys(fit.references, fit.correlation)
    losses: list[Any] = []
    ours, weeks, whole_weeks = [], [], []
    portfolios = portfolios_of(len(panel.symbols))
    for at, stamp in enumerate(panel.stamps):
        present = [asset for asset in range(len(panel.symbols)) if panel.rows[at, asset] >= 0]
        names = [panel.symbols[asset] for asset in present]
        whole = len(present) == len(panel.symbols)
        if stamp >= period.first and len(present) > 1:
            weeks.append(stamp.astype("datetime64[W]"))
            pit = panel.pit[at, present]
            correlation = state.correlation(names, panel.scale[at, present])
            matrices = {"ours": (correlation, fit.degrees["1"])}
            for name, reference in fit.references.items():
                theirs = reference.correlation(averages[name], fit.correlation)
                matrices[name] = (theirs[np.ix_(present, present)], reference.degrees)
            bits["independence"].append(0.0)
            for name, (matrix, degrees) in matrices.items():
                bits[name].append(log_density(matrix, pit, degrees) / math.log(2))
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
                ours.append((len(losses), law.sample(FEW_DRAWS.draws, seed=at)))
        if whole:
            move = np.exp(panel.log_ret[at]) - 1
            losses.append([-move @ share for share in portfolios.values()])
        state = state.updated(names, panel.scores[at, present], panel.scale[at, present])
        for name, reference in fit.references.items():
            averages[name] = update_ewma(averages[name], panel.scores[at], reference.decay)
    assert found.num_stamps == len(bits["ours"])
    assert found.bits == pytest.approx(np.mean(bits["ours"]))
    assert [each.against for each in found.copulas] == ["independence", *fit.references]
    for copula in found.copulas:
        gain = np.array(bits["ours"]) - bits[copula.against]
        assert copula.bits == pytest.approx(np.mean(bits[copula.against]))
        assert copula.gain_bits == pytest.approx(gain.mean())
        won = [gain[np.array(weeks) == week].sum() > 0 for week in {*weeks}]
        assert copula.weeks.wins == (sum(won), len(won))
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
        hits = came > risks[:, 0]
        gain = fissler_ziegel(came, past, each.level) - fissler_ziegel(came, risks, each.level)
        assert (each.num_stamps, each.exceedance_rate) == (len(ours), hits.mean())
        assert each.kupiec_p == chi_square_tail(kupiec(hits, 1 - each.level), 1)
        assert each.independence_p == chi_square_tail(christoffersen(hits, np.zeros(len(hits))), 1)
        mean_risk = (each.value_at_risk, each.expected_shortfall)
        assert mean_risk == pytest.approx(tuple(risks.mean(axis=0)))
        history = each.against[0]
        assert [other.against for other in each.against] == [
            *("historical_simulation", "ewma_covariance", "garch_t_constant_correlation")
        ]
        assert history.exceedance_rate == (came > past[:, 0]).mean()
        assert history.gain == pytest.approx(gain.mean())
        assert history.weeks.num_blocks == len({*whole_weeks})


def test_the_scales_of_a_garch_are_smaller_than_its_deviations(
    world: World, panel: Panel, garch: GarchT, tmp_path: Path
) -> None:
    """A Student-t of this variance has a smaller scale, by its degrees of freedom."""
    assert garch_scales(panel, world.corpus, 64, tmp_path) is None  # nothing is stored
    found = garch_scales(panel, world.corpus, 64, world.fits)
    assert found is not None
    assert found.degrees == np.mean([each.degrees for each in garch.models_.values()])
    for asset, symbol in enumerate(panel.symbols):
        inside = world.corpus.asset_slices[symbol]
        rows = panel.rows[:, asset]
        variance = garch.models_[symbol].next_variance(clean_returns(world.corpus, inside))
        scales = np.sqrt(
            variance[np.maximum(rows - inside.start, 0)] * (found.degrees - 2) / found.degrees
        )
        expected = np.where(rows >= 0, scales, np.nan)
        np.testing.assert_allclose(found.scales[:, asset], expected)


def test_the_fit_is_the_likeliest_of_its_grid(
    world: World, train_panel: Panel, fit: Dependence
) -> None:
    panel = train_panel
    assert (fit.num_stamps, len(panel.stamps)) == (1_200, 1_200)
    assert panel.stamps[-1] < np.datetime64(TINY_SPLITS.train_end)
    assert (fit.symbols, fit.classes) == (panel.symbols, world.corpus.tokenizer.classes)
    assert fit.checkpoint_sha256 == "of the oracle"
    for matrix, moment in zip(
        (fit.covariance, fit.correlation), moments(panel, 1_200), strict=True
    ):
        np.testing.assert_allclose(matrix, moment, rtol=1e-9)
    covariance, start = moments(panel, 600)
    half = replace(fit, covariance=covariance, correlation=start)
    spread = np.unique(np.linspace(600, 1_199, GRID.judged_stamps).astype(int)).tolist()
    chosen = {
        at: np.flatnonzero(panel.rows[at] >= 0) for at in spread if (panel.rows[at] >= 0).sum() > 1
    }

    def nats(decay: float, shrinkage: float, degrees: float | None) -> float:
        states = list(panel.states(replace(half, decay=decay, shrinkage=shrinkage)))
        total = 0.0
        for at, own in chosen.items():
            names = [panel.symbols[asset] for asset in own]
            correlation = states[at].correlation(names, panel.scale[at, own])
            total += log_density(correlation, panel.pit[at, own], degrees)
        return total

    decays = [0.5 ** (1 / life) for life in GRID.half_lives]
    tried = {(decay, each): nats(decay, each, 8.0) for decay in decays for each in GRID.shrinkages}
    assert (fit.decay, fit.shrinkage) == max(tried, key=lambda pair: tried[pair])
    by_degrees = {each: nats(fit.decay, fit.shrinkage, each) for each in GRID.degrees}
    assert fit.degrees == {"1": max(by_degrees, key=lambda each: by_degrees[each])}

    def reference_nats(reference: ReferenceCopula) -> float:
        average, total = start, 0.0
        for at, scores in enumerate(panel.scores):
            if at in chosen:
                own = np.ix_(chosen[at], chosen[at])
                matrix = reference.correlation(average, start)[own]
                pit = panel.pit[at, chosen[at]]
                total += log_density(matrix, pit, reference.degrees)
            average = update_ewma(average, scores, reference.decay)
        return total

    dcc = fit.references["dcc_gaussian"]
    grids = {
        "constant_gaussian": [ReferenceCopula()],
        "ewma_gaussian": [ReferenceCopula(weight=1.0, decay=decay) for decay in decays],
        "dcc_gaussian": [
            ReferenceCopula(weight=each, decay=d) for each in GRID.weights for d in decays
        ],
        "dcc_t": [replace(dcc, degrees=each) for each in GRID.degrees],
    }
    assert fit.references == {name: max(grid, key=reference_nats) for name, grid in grids.items()}


def moments(panel: Panel, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Of scores times scales, in a unit that makes calm and volatile stamps alike, and of scores."""
    logs = np.log(panel.scale[:stop])
    alike = np.exp(logs - np.nanmean(logs - np.nanmean(logs, axis=0), axis=1, keepdims=True))
    covariance = mean_of_products(panel.scores[:stop] * alike)
    covariance /= np.exp(np.log(np.diag(covariance)).mean())
    return covariance, correlation_of(mean_of_products(panel.scores[:stop]))


def without(panel: Panel, absent: Any) -> Panel:
    """A panel without the bars that are marked, (stamps, assets)."""
    rows = np.where(absent, -1, panel.rows)
    return replace(panel, rows=rows, scores=np.where(absent, np.nan, panel.scores))


FIRST = np.arange(3) == 0


@pytest.mark.parametrize(("short", "late"), [(999, False), (1_200, True)])
def test_too_few_stamps_or_a_late_asset_teach_no_dependence(
    train_panel: Panel, short: int, late: bool
) -> None:
    """Without a bar in the first half of the stamps an asset has no covariance to be shrunk to."""
    grid = replace(GRID, least_stamps=1_200 if short == 1_200 else 1_201)
    early = np.arange(1_200)[:, None] < 600
    panel = without(train_panel, FIRST & early & late)
    with pytest.raises(DataError, match="too little to learn a dependence from") as caught:
        fit_panel(panel, "", ("a", "b", "c"), grid)
    assert (f"none of {panel.symbols[0]}" in str(caught.value.got)) is late


def test_other_assets_than_those_of_train_are_not_judged(world: World, fit: Dependence) -> None:
    others = replace(fit, symbols=("A", "B", "C"))
    assert judge_joint(world.model, world.corpus, "validation", others) is None


def test_without_a_stamp_of_all_or_of_two_assets_there_is_less_to_judge(
    fit: Dependence, panel: Panel, period: JointPeriod
) -> None:
    found = judge_panel(without(panel, FIRST), period.first, fit, config=FEW_DRAWS)
    assert found is not None
    assert (found.portfolios, found.num_stamps > 100) == ([], True)
    assert judge_panel(without(panel, ~FIRST), period.first, fit, config=FEW_DRAWS) is None


@pytest.mark.parametrize(("stamps", "judged"), [(0, False), (99, False), (100, True)])
def test_portfolios_are_judged_after_as_many_whole_stamps_as_a_limit_needs(
    fit: Dependence, panel: Panel, period: JointPeriod, stamps: int, judged: bool
) -> None:
    """An asset that begins just before the split leaves the other forecasts of risk nothing to be
    made from.
    """
    before = panel.stamps < period.first
    whole = np.flatnonzero((panel.rows >= 0).all(axis=1) & before)
    begins = whole[len(whole) - stamps] if stamps else before.sum()
    late = FIRST & (np.arange(len(panel.stamps)) < begins)[:, None]
    found = judge_panel(without(panel, late), period.first, fit, config=FEW_DRAWS)
    assert found is not None
    assert bool(found.portfolios) is judged
    json.dumps(to_json(found), allow_nan=False)  # as it is stored


def test_the_state_of_a_stamp_is_blind_to_later_bars(world: World, fit: Dependence) -> None:
    end = np.datetime64(TINY_SPLITS.validation[0])
    short, long = (
        make_panel(world.model, world.corpus, end, last, 300)
        for last in (end, end + np.timedelta64(200, "h"))
    )
    assert len(long.stamps) > len(short.stamps) == 300
    for before, after in zip(short.states(fit), long.states(fit), strict=False):
        assert np.array_equal(before.covariance, after.covariance)


def test_the_audit_finds_a_dependence_that_reads_the_future(world: World) -> None:
    fitted = partial(fit_dependence, grid=GRID)
    uniform = np.full(16, 1 / 16)

    def model_of(predict_proba: Any, **changes: Any) -> Any:
        card = SimpleNamespace(**{**vars(world.model.checkpoint), **changes})
        return SimpleNamespace(checkpoint=card, predict_proba=predict_proba)

    def reads_ahead(corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        probs = np.tile(uniform, (len(rows), 1))
        later = corpus.columns["log_ret"][np.minimum(rows + 5, len(corpus) - 1)]
        probs[:, 0] += np.abs(np.nan_to_num(later))
        return probs / probs.sum(axis=1, keepdims=True)

    config = AuditConfig(cuts=2, seed=1)
    honest = model_of(lambda _, rows: np.tile(uniform, (len(rows), 1)))
    fit = fitted(honest, world.corpus)

    def examine(fit: Dependence, model: Any) -> Proof:
        proof = Proof(name="dependence")
        check_dependence(proof, fit, model, world.corpus, config, fitted)
        return proof

    assert examine(fit, honest).verdict == PASSED
    leaky = model_of(reads_ahead)
    found = examine(fitted(leaky, world.corpus), leaky)
    assert "with other rows after it" in found.findings[0]
    # One that was fitted on more than Train, and two that were edited.
    splits = replace(world.corpus.splits, train_end=TINY_SPLITS.validation[0]).to_json()
    greedy = model_of(honest.predict_proba, provenance=SimpleNamespace(splits=splits))
    for other in (
        fitted(greedy, world.corpus),
        replace(fit, degrees={"1": 4.0}),
        replace(fit, covariance=fit.covariance * 1.01),
    ):
        found = examine(other, honest)
        assert found.verdict == FAILED
        assert "Train gives another" in found.findings[0]


def test_the_true_risk_has_the_least_fissler_ziegel_loss() -> None:
    losses = np.random.default_rng(0).standard_normal(200_000)
    true = np.array([1.6449, 2.0627])
    least = fissler_ziegel(losses, true, 0.95).mean()
    for factor in ([0.9, 1.0], [1.1, 1.0], [1.0, 0.9], [1.0, 1.1]):
        assert least < fissler_ziegel(losses, true * factor, 0.95).mean()


def test_the_decay_of_riskmetrics_is_chosen_after_its_start_and_before_what_is_judged() -> None:
    """A tenth of the stamps is left for the matrix to forget where it began."""
    draw = np.random.default_rng(3)
    shares = np.array([[0.5, 0.5]])
    returns = 0.01 * draw.standard_normal((400, 2))
    # For which the shortest memory is best.
    returns[150:] *= np.where(np.arange(250) // 25 % 2, 3, 1)[:, None]

    def chosen(*ruined: int) -> np.ndarray:
        losses = -returns @ shares.T
        losses[list(ruined)] = 1.0
        return riskmetrics_risks(returns, shares, losses, 300)

    as_it_is = chosen()
    np.testing.assert_array_equal(chosen(*range(40)), as_it_is)
    np.testing.assert_array_equal(chosen(*range(300, 400)), as_it_is)
    assert not np.array_equal(chosen(*range(40, 44)), as_it_is)
    # Fewer than a tenth of all come before what is judged, and still decide.
    calm, wild = (
        riskmetrics_risks(returns, shares, np.full((400, 1), each), 30) for each in (0.0, 1.0)
    )
    assert not np.array_equal(calm, wild)


@pytest.mark.parametrize("degrees", [None, 5.0])
def test_elliptic_risk_is_the_quantile_and_the_mean_beyond_it(degrees: float | None) -> None:
    found = elliptic_risks(np.array([[1.0, 2.0]]), degrees)
    for place, level in enumerate(LEVELS):
        beyond = level + (1 - level) * (np.arange(200_000) + 0.5) / 200_000
        risk = [scores_of(np.array(level), degrees), scores_of(beyond, degrees).mean()]
        np.testing.assert_allclose(found[0, :, place], np.outer([1, 2], risk), rtol=1e-4)


def test_a_mean_counts_every_stamp_once_and_independence_as_one_more() -> None:
    values = np.random.default_rng(1).standard_normal((7, 3))
    products = [np.outer(each, each) for each in values]
    first = np.diag(np.diagonal(np.mean(products, axis=0)))
    np.testing.assert_allclose(mean_of_products(values), np.mean([first, *products], axis=0))


def test_portfolios_are_what_their_names_say() -> None:
    named = portfolios_of(5)
    assert named["equal"].sum() == pytest.approx(1)
    assert named["dollar_neutral"].sum() == pytest.approx(0)
    assert all(np.abs(each).sum() == pytest.approx(1) for each in named.values())
    assert len(named) == 12


def test_a_correlated_market_has_other_prices() -> None:
    config = MarketConfig(assets=2, bars=50)
    correlated = simulate(replace(config, correlation=0.5))
    assert all(
        not one.bars["Close"].equals(simulate(config)[symbol].bars["Close"])
        for symbol, one in correlated.items()
    )


def test_a_run_is_fitted_judged_reported_and_audited(
    vaiom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Drawing takes seconds.
    monkeypatch.setattr("vaiom.report.drawing.Drawing.to_svg", lambda *_: "<svg></svg>")
    run = tmp_path / "run"
    corpus = tiny_corpus(tmp_path, splits=TINY_SPLITS.shifted_by(1), rows=3_100)
    train(corpus, TINY.with_changes(steps=2, num_layers=1), run, device="cpu")
    here = ("--corpus", corpus.path)
    cpu = ("--device", "cpu", "--json")
    fitted = json.loads(vaiom("dependence", run, *here, *cpu).out)
    kept = json.loads(Run(run).dependence.read_text())
    shared = ("symbols", "decay", "shrinkage", "degrees", "num_stamps", "references")
    assert fitted == {name: kept[name] for name in shared}
    scored = vaiom("evaluate", run, *here, "--split", "validation", *cpu)
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
    assert vaiom("report", run, *here).code == 0
    page = Run(run).report.read_text()
    assert 'id="joint"' in page
    assert "historical_simulation" in page
    file = Run(run).evaluation("validation")
    stored = json.loads(file.read_text())
    stored["joint"]["copulas"][1]["gain_bits"] += 0.5
    file.write_text(json.dumps(stored))
    words = ("--cuts", 1, "--baselines", "frequency", "--json")
    audited = json.loads(vaiom("audit", run, *here, *words).out)
    proofs = {proof["name"]: proof for proof in audited["proofs"]}
    assert proofs["f. provenance"]["verdict"] == PASSED
    [finding, *_] = proofs["e. evaluation"]["findings"]
    assert "joint.copulas[1].gain_bits" in finding
