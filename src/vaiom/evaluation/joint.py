"""The dependence of assets: fitted on Train, judged on a split.

Enters: a model, a corpus. Leaves: a `Dependence` for the run folder; a `JointEvaluation` with the log density of the
copula at the PITs of each stamp, against other copulas on the same marginals, and the risk of portfolios.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vaiom.baselines.base import Floats
from vaiom.errors import DataError
from vaiom.evaluation.inference import BlockBootstrap, bootstrap_blocks
from vaiom.evaluation.portfolios import HISTORY, Panel, PortfolioBacktest, backtest, garch_scales, make_panel
from vaiom.evaluation.predictor import ModelPredictor, seen_by
from vaiom.events.corpus import Corpus
from vaiom.events.dependence import Dependence, ReferenceCopula, average, correlation_of, log_density
from vaiom.events.splits import TRAIN

TRAIN_STAMPS = 20_000
"""Of the end of Train, on which the dependence is fitted."""
HALF_LIVES = (60, 120, 240, 480)
SHRINKAGES = (0.05, 0.1, 0.2, 0.4)
WEIGHTS = (0.5, 0.7, 0.8, 0.9, 0.95)
DEGREES = (4.0, 5.0, 6.0, 8.0, 10.0, 14.0, 20.0, 30.0, None)

T = TypeVar("T")
_FITTED_STAMPS = 600


def fit_dependence(model: ModelPredictor, corpus: Corpus) -> Dependence:
    """The most likely of a small grid on the last stamps of Train; correlations are never of the stamp they judge."""
    corpus = seen_by(model.checkpoint, corpus)
    end = np.datetime64(corpus.splits.train_end)
    panel = make_panel(model, corpus, end, end, TRAIN_STAMPS)
    if len(panel.symbols) < 2 or len(panel.stamps) < HISTORY:
        raise DataError(
            "too little to learn a dependence from",
            where=f"{corpus.path}, {TRAIN}",
            expected=f"two assets and {HISTORY} stamps at least",
            got=f"{len(panel.symbols)} and {len(panel.stamps)}",
        )
    # What is shrunk to is of the first half, what decides how far of the second; in the end it is of both.
    half = len(panel.stamps) // 2
    fit = Dependence(
        checkpoint_sha256=model.checkpoint.sha256,
        symbols=panel.symbols,
        classes=corpus.tokenizer.classes,
        **_moments(panel, half),
        decay=0.5,
        shrinkage=1.0,
        degrees={"1": 8.0},
        references={},
        num_stamps=len(panel.stamps),
    )
    spread = np.unique(np.linspace(half, len(panel.stamps) - 1, _FITTED_STAMPS).astype(np.int64))
    chosen = [at for at in spread.tolist() if len(panel.there(at)) > 1]
    decays, shrunk = [0.5 ** (1 / each) for each in HALF_LIVES], []
    for decay in decays:
        states = _at(chosen, panel.states(replace(fit, decay=decay)))
        for shrinkage in SHRINKAGES:
            new = replace(fit, decay=decay, shrinkage=shrinkage)
            pairs = zip(chosen, states, strict=True)
            shrunk.append((new, [replace(state, fit=new).correlation(*panel.asked(at)) for at, state in pairs]))
    fit, found = max(shrunk, key=lambda each: _nats(panel, chosen, each[1], 8.0))
    degrees = max(DEGREES, key=lambda each: _nats(panel, chosen, found, each))
    references = _fit_references(panel, fit.correlation, chosen, decays)
    return replace(fit, degrees={"1": degrees}, references=references, **_moments(panel, len(panel.stamps)))


def _moments(panel: Panel, stop: int) -> dict[str, Any]:
    """Covariance and correlation over the first stamps."""
    scores, scales = panel.scores[:stop], np.log(panel.scale[:stop])
    unit = np.nanmean(scales - np.nanmean(scales, axis=0), axis=1, keepdims=True)
    covariance = _mean(scores * np.exp(scales - unit))
    covariance /= math.exp(float(np.log(np.diag(covariance)).mean()))
    return {"covariance": covariance, "correlation": correlation_of(_mean(scores))}


def _fit_references(panel: Panel, start: Floats, chosen: list[int], decays: list[float]) -> dict[str, ReferenceCopula]:
    averages = {decay: _at(chosen, panel.averages(start, decay)) for decay in decays}

    def nats(reference: ReferenceCopula) -> float:
        own = [np.ix_(panel.there(at), panel.there(at)) for at in chosen]
        found = [
            reference.correlation(each, start)[at] for each, at in zip(averages[reference.decay], own, strict=True)
        ]
        return _nats(panel, chosen, found, reference.degrees)

    dcc = max([ReferenceCopula(weight=weight, decay=decay) for weight in WEIGHTS for decay in decays], key=nats)
    return {
        "constant_gaussian": ReferenceCopula(),
        "ewma_gaussian": max([ReferenceCopula(weight=1.0, decay=decay) for decay in decays], key=nats),
        "dcc_gaussian": dcc,
        "dcc_t": max([replace(dcc, degrees=degrees) for degrees in DEGREES], key=nats),
    }


def _mean(values: Floats) -> Floats:
    """Mean of products over stamps (stamps, n), NaN where absent; positive definite."""
    matrix = np.diag(np.nanmean(values**2, axis=0))
    for number, each in enumerate(values, start=1):
        matrix = average(matrix, each, number / (number + 1))
    return matrix


def _nats(panel: Panel, chosen: list[int], correlations: list[Floats], degrees: float | None) -> float:
    pits = [panel.pit[at, panel.there(at)] for at in chosen]
    return sum(log_density(*pair, degrees) for pair in zip(correlations, pits, strict=True))


def _at(chosen: list[int], values: Iterator[T]) -> list[T]:
    wanted = set(chosen)
    return [value for at, value in enumerate(values) if at in wanted]


@dataclass(frozen=True, kw_only=True)
class CopulaGain:
    """Bits per stamp that the copula has more than another; weeks are the blocks of the interval."""

    against: str
    bits: float
    """Of the other copula, over independence."""
    gain_bits: float
    weeks: BlockBootstrap


@dataclass(frozen=True, kw_only=True)
class JointEvaluation:
    """What a dependence is worth on one split."""

    num_stamps: int
    bits: float
    """Mean log2 density of the copula per stamp: what it knows more than independence."""
    copulas: list[CopulaGain]
    portfolios: list[PortfolioBacktest]


def judge_joint(
    model: ModelPredictor, corpus: Corpus, split: str, fit: Dependence, fits: Path | None = None
) -> JointEvaluation | None:
    """Judge a dependence on the stamps of a split, each from what was known before it; `fits` may have a GARCH-t.

    None where the corpus has other assets than Train had.
    """
    if corpus.tokenizer.symbols != fit.symbols:
        return None
    times = corpus.target_timestamps[corpus.split_codes == corpus.splits.code(split)]
    panel = make_panel(model, corpus, times.min(), times.max() + 1, HISTORY + fit.memory)
    begin = int(np.searchsorted(panel.stamps, times.min()))
    scored = [at for at in range(begin, len(panel.stamps)) if len(panel.there(at)) > 1]
    pairs = zip(scored, _at(scored, panel.states(fit)), strict=True)
    found = {at: state.correlation(*panel.asked(at)) for at, state in pairs}
    pits, degrees = {at: panel.pit[at, panel.there(at)] for at in scored}, fit.degrees["1"]
    bits = {"": np.array([log_density(found[at], pits[at], degrees) for at in scored]) / math.log(2)}
    bits["independence"] = np.zeros(len(scored))
    for name, reference in fit.references.items():
        averages = zip(scored, _at(scored, panel.averages(fit.correlation, reference.decay)), strict=True)
        own = {at: reference.correlation(each, fit.correlation) for at, each in averages}
        places = {at: np.ix_(panel.there(at), panel.there(at)) for at in scored}
        nats = [log_density(own[at][places[at]], pits[at], reference.degrees) for at in scored]
        bits[name] = np.array(nats) / math.log(2)
    weeks, ours = panel.stamps.astype("datetime64[W]").astype(np.int64), bits.pop("")
    return JointEvaluation(
        num_stamps=len(scored),
        bits=float(ours.mean()),
        copulas=[
            CopulaGain(
                against=name,
                bits=float(theirs.mean()),
                gain_bits=float((ours - theirs).mean()),
                weeks=bootstrap_blocks(ours - theirs, weeks[scored]),
            )
            for name, theirs in bits.items()
        ],
        portfolios=backtest(panel, found, degrees, weeks, fit.correlation, garch_scales(model, corpus, panel, fits)),
    )
