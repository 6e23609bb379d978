"""Fit the dependence of assets on Train: the most likely setting of a small grid.

Enters: a model, a corpus. Leaves: a `Dependence` for the run folder, with the reference copulas
that it is judged against. A correlation is never of the stamp that it is judged on. Not in the
paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from vaiom.baselines.base import Floats
from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus
from vaiom.distribution.copula import correlation_of
from vaiom.distribution.dependence import Dependence, ReferenceCopula, update_ewma
from vaiom.errors import DataError
from vaiom.evaluation.panel import Panel, make_panel, select
from vaiom.evaluation.predictor import ModelPredictor, seen_by

GRID_DEGREES = 8.0
"""Degrees of freedom of the copula under which decay and shrinkage are chosen."""


@dataclass(frozen=True, kw_only=True)
class DependenceGrid:
    """The settings that are tried, and on how much of Train."""

    train_stamps: int = 20_000
    """Stamps at the end of Train."""
    least_stamps: int = 1_000
    """Fewer teach nothing."""
    judged_stamps: int = 600
    """Stamps of the second half, evenly spread, whose likelihood decides."""
    half_lives: tuple[int, ...] = (60, 120, 240, 480)
    """Of the EWMA, in stamps."""
    shrinkages: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    """Weights of the Train covariance."""
    weights: tuple[float, ...] = (0.5, 0.7, 0.8, 0.9, 0.95)
    """Weights of the EWMA in the DCC copulas (Engle 2002)."""
    degrees: tuple[float | None, ...] = (4.0, 5.0, 6.0, 8.0, 10.0, 14.0, 20.0, 30.0, None)
    """Degrees of freedom; None is Gaussian."""

    @property
    def decays(self) -> list[float]:
        """EWMA decays per stamp."""
        return [0.5 ** (1 / half_life) for half_life in self.half_lives]


PUBLISHED_GRID = DependenceGrid()
"""The audit fits every stored dependence again with this grid."""


def fit_dependence(
    model: ModelPredictor, corpus: Corpus, grid: DependenceGrid = PUBLISHED_GRID
) -> Dependence:
    """Fit the dependence of the corpus's assets on the last stamps of the model's Train."""
    corpus = seen_by(model.checkpoint, corpus)
    end = np.datetime64(corpus.splits.train_end)
    panel = make_panel(model, corpus, end, end, grid.train_stamps)
    return fit_panel(
        panel,
        model.checkpoint.sha256,
        corpus.tokenizer.classes,
        grid,
        where=f"{corpus.path}, {TRAIN}",
    )


def fit_panel(
    panel: Panel,
    checkpoint_sha256: str,
    classes: tuple[str, ...],
    grid: DependenceGrid = PUBLISHED_GRID,
    *,
    where: object = None,
) -> Dependence:
    """Fit a dependence on a panel; `classes` are the asset classes of its symbols.

    The shrinkage target is that of the first half while its weight is chosen on the second; the
    final target is of both.
    """
    half = len(panel.stamps) // 2
    _require_enough(panel, half, grid, where)
    covariance, correlation = train_moments(panel, half)
    start = Dependence(
        checkpoint_sha256=checkpoint_sha256,
        symbols=panel.symbols,
        classes=classes,
        covariance=covariance,
        correlation=correlation,
        decay=0.5,
        shrinkage=1.0,
        degrees={"1": None},
        references={},
        num_stamps=len(panel.stamps),
    )
    spread = np.linspace(half, len(panel.stamps) - 1, grid.judged_stamps).astype(np.int64)
    chosen = np.intersect1d(spread, panel.joint_stamps()).tolist()
    fit, correlations = _choose_memory(panel, start, chosen, grid)
    nats = {each: panel.copula_nats(chosen, correlations, each).sum() for each in grid.degrees}
    covariance, correlation = train_moments(panel, len(panel.stamps))
    return replace(
        fit,
        degrees={"1": max(nats, key=lambda each: float(nats[each]))},
        references=_fit_references(panel, start.correlation, chosen, grid),
        covariance=covariance,
        correlation=correlation,
    )


def train_moments(panel: Panel, stop: int) -> tuple[Floats, Floats]:
    """Covariance of scores times scales, and correlation of scores, over the first stamps.

    Scales are divided by their geometric mean over the assets of a stamp, so that calm and volatile
    stamps weigh alike; the variances have mean log 0.
    """
    scores = panel.scores[:stop]
    scales = np.log(panel.scale[:stop])
    level = np.nanmean(scales - np.nanmean(scales, axis=0), axis=1, keepdims=True)
    covariance = mean_of_products(scores * np.exp(scales - level))
    covariance /= math.exp(float(np.log(np.diag(covariance)).mean()))
    return covariance, correlation_of(mean_of_products(scores))


def mean_of_products(values: Floats) -> Floats:
    """Mean outer product (n, n) over stamps (stamps, n), NaN where absent; positive definite.

    Each stamp counts once, and independent assets as one more.
    """
    matrix = np.diag(np.nanmean(values**2, axis=0))
    for number, row in enumerate(values, start=1):
        matrix = update_ewma(matrix, row, number / (number + 1))
    return matrix


def _require_enough(panel: Panel, half: int, grid: DependenceGrid, where: object) -> None:
    """Refuse a panel with too few assets or stamps, or with an asset that begins late."""
    num_early = np.isfinite(panel.scores[:half]).sum(axis=0)
    late = [symbol for symbol, count in zip(panel.symbols, num_early, strict=True) if not count]
    if not late and len(panel.symbols) > 1 and len(panel.stamps) >= grid.least_stamps:
        return
    got = f"{len(panel.symbols)} and {len(panel.stamps)}"
    if late:
        got += f", none of {', '.join(late)}"
    raise DataError(
        "too little to learn a dependence from",
        where=where,
        expected=(
            f"two assets and {grid.least_stamps} stamps at least, and bars of every asset in "
            f"their first half"
        ),
        got=got,
        fix="leave out assets that begin late, or bring in a longer history",
    )


def _choose_memory(
    panel: Panel, start: Dependence, chosen: list[int], grid: DependenceGrid
) -> tuple[Dependence, list[Floats]]:
    """The likeliest decay and shrinkage, and the correlations that they give at chosen stamps."""
    candidates = []
    for decay in grid.decays:
        states = select(panel.states(replace(start, decay=decay)), chosen)
        for shrinkage in grid.shrinkages:
            fit = replace(start, decay=decay, shrinkage=shrinkage)
            shrunk = [replace(state, fit=fit) for state in states]
            correlations = panel.correlations(chosen, shrunk)
            nats = panel.copula_nats(chosen, correlations, GRID_DEGREES).sum()
            candidates.append((float(nats), fit, correlations))
    _, fit, correlations = max(candidates, key=lambda candidate: candidate[0])
    return fit, correlations


def _fit_references(
    panel: Panel, start: Floats, chosen: list[int], grid: DependenceGrid
) -> dict[str, ReferenceCopula]:
    """The likeliest copula of each kind that knows the scores alone, not the forecast scales."""
    averages = {decay: select(panel.averages(start, decay), chosen) for decay in grid.decays}

    def likeliest(candidates: Sequence[ReferenceCopula]) -> ReferenceCopula:
        return max(candidates, key=nats)

    def nats(reference: ReferenceCopula) -> float:
        matrices = [reference.correlation(each, start) for each in averages[reference.decay]]
        return float(panel.copula_nats(chosen, matrices, reference.degrees).sum())

    ewma = [ReferenceCopula(weight=1.0, decay=decay) for decay in grid.decays]
    mixed = [
        ReferenceCopula(weight=weight, decay=decay)
        for weight, decay in product(grid.weights, grid.decays)
    ]
    dcc = likeliest(mixed)
    return {
        "constant_gaussian": ReferenceCopula(),
        "ewma_gaussian": likeliest(ewma),
        "dcc_gaussian": dcc,
        "dcc_t": likeliest([replace(dcc, degrees=degrees) for degrees in grid.degrees]),
    }
