"""What Train fits beside a model, fitted again: the dependence of assets and the horizons.

An `AuditedRun` enters; findings go into a proof. Rows after Train are scrambled before the fit, so
that one which reads them comes out otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from vaiom.auditing.audited_run import AuditedRun
from vaiom.auditing.chronology import PROBABILITY_TOLERANCE
from vaiom.auditing.proof import AuditConfig, Proof
from vaiom.auditing.rounding import FIT_TOLERANCE, MEAN_BITS
from vaiom.codec import to_json
from vaiom.corpus.splits import VALIDATION
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import fit_target
from vaiom.distribution.dependence import Dependence
from vaiom.evaluation.copula_fit import fit_dependence
from vaiom.evaluation.horizon_scores import horizon_events, judge_horizons
from vaiom.evaluation.panel import make_panel
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import MODEL
from vaiom.model.horizon_heads import load_horizons

CHANGED_RETURNS = 200
"""Returns that are changed to see which targets follow."""
CHANGE = 1e-3
DEPENDENCE_STAMPS = 64
"""Stamps before a cut over which the dependence of assets is followed."""


def check_dependence(
    proof: Proof,
    fit: Dependence,
    model: ModelPredictor,
    corpus: Corpus,
    config: AuditConfig,
    fit_again: Callable[[ModelPredictor, Corpus], Dependence] = fit_dependence,
) -> None:
    """Train alone fits the same dependence, and what it knows at a stamp comes from before it.

    `fit` is the stored one. It is fitted again by `fit_again` on a corpus whose rows after Train
    are scrambled. Then the state that it has at random stamps of Validation is compared with the
    state after all later rows were scrambled: a scale or score that reads ahead changes it.
    """
    rng = np.random.default_rng(config.seed)
    again = fit_again(model, scramble_after(corpus, _end_of_train(corpus), rng))
    for name, stored in vars(fit).items():
        fitted = getattr(again, name)
        if isinstance(stored, np.ndarray):
            same = stored.shape == fitted.shape
            same = same and np.allclose(stored, fitted, rtol=0, atol=FIT_TOLERANCE)
        else:
            same = stored == fitted
        proof.check(same, f"dependence: Train gives another {name}: {fitted}, not {stored}")
    held_out = corpus.split_codes == corpus.splits.code(VALIDATION)
    for cut in rng.choice(np.unique(corpus.timestamps[held_out]), config.cuts):
        stamps, before = _state_at(model, fit, corpus, cut)
        damaged_stamps, after = _state_at(model, fit, scramble_after(corpus, cut, rng), cut)
        same = np.array_equal(stamps, damaged_stamps)
        same = same and np.allclose(before, after, rtol=0, atol=PROBABILITY_TOLERANCE)
        problem = f"dependence: another state after {cut} with other rows after it"
        proof.check(same, problem, len(stamps))
    proof.note(f"dependence: {config.cuts} cuts, {DEPENDENCE_STAMPS} stamps before each")


def _state_at(
    model: ModelPredictor, fit: Dependence, corpus: Corpus, cut: np.datetime64
) -> tuple[np.ndarray, np.ndarray]:
    """The stamps up to a cut, and the covariance (assets, assets) that is known after them."""
    panel = make_panel(model, corpus, cut + 1, cut + 1, DEPENDENCE_STAMPS)
    *_, last = panel.states(fit)
    return panel.stamps, last.covariance


def check_horizons(proof: Proof, run: AuditedRun) -> None:
    """Train alone fits the same targets; they span their own bars; heads claim the right bits.

    Buckets, shape, scale and zero shares of each horizon are fitted again with all rows after Train
    scrambled. The events of Validation must cost what the file of the heads says.
    """
    corpus = run.corpus
    horizons = load_horizons(run.files.horizons, run.checkpoint)
    rng = np.random.default_rng(run.config.seed)
    train = scramble_after(corpus, _end_of_train(corpus), rng)
    for fit in horizons.fitted.fits:
        same = to_json(fit_target(train, fit.bars)) == to_json(fit)
        proof.check(same, f"{fit.bars} bars: Train fits other buckets, shape or scale")
        _check_target(proof, corpus.with_target(fit), run.config.seed)
    events_of = horizon_events(run.model, horizons, corpus, VALIDATION)
    for score, events, _ in judge_horizons(run.model, horizons, corpus, events_of):
        claimed = horizons.fitted.validation_bits.get(str(score.bars), math.nan)
        bits = score.bits[MODEL]
        problem = f"{score.bars} bars: the heads claim {claimed} Validation bits, not {bits:.6f}"
        proof.check(abs(claimed - bits) <= MEAN_BITS, problem, len(events))


def _check_target(proof: Proof, view: Corpus, seed: int) -> None:
    """Change returns far from each other: only targets that span one may change, and no scale.

    A target of other bars than the next h, or a scale that has seen its target, is found so.
    """
    bars = view.horizon
    size = len(view)
    apart = 2 * bars + 1
    places = np.arange(bars, size, apart)
    places = np.random.default_rng(seed).permutation(places)[:CHANGED_RETURNS]
    returns = np.array(view.columns["log_ret"])
    returns[places] += CHANGE
    other = replace(view, columns={**view.columns, "log_ret": returns})
    same = np.isclose(other.log_ret_next, view.log_ret_next, rtol=0, atol=1e-9, equal_nan=True)
    spans = np.zeros(size, bool)
    for ahead in range(1, bars + 1):
        spans[places - ahead] = True
    spans &= np.isfinite(view.log_ret_next)
    problem = f"{bars} bars: targets of other bars than the next"
    proof.check(np.array_equal(~same, spans), problem, len(places))
    same_scale = np.array_equal(other.target_scale, view.target_scale)
    proof.check(same_scale, f"{bars} bars: a scale that sees its target", size)


def _end_of_train(corpus: Corpus) -> np.datetime64:
    """The last moment of Train."""
    return np.datetime64(corpus.splits.train_end, "us") - np.timedelta64(1, "us")


def scramble_after(corpus: Corpus, cut: np.datetime64, rng: np.random.Generator) -> Corpus:
    """The corpus with each asset's rows after a cut in another order, at the same stamps."""
    order = np.arange(len(corpus))
    for rows in corpus.asset_slices.values():
        later = rows.start + int((corpus.timestamps[rows] <= cut).sum())
        order[later : rows.stop] = rng.permutation(order[later : rows.stop])
    damaged = {name: column[order] for name, column in corpus.columns.items()}
    damaged["timestamp"] = corpus.columns["timestamp"]
    return replace(corpus, columns=damaged)
