"""The dependence of assets judged on a split.

Enters: a model, a corpus, a `Dependence` that was fitted on Train. Leaves: a `JointEvaluation` with
the log density of the copula at the PITs of each stamp, against other copulas on the same
marginals, and the backtests of portfolios. A state is made of the stamps before the one that it is
judged on. Not in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaiom.corpus.store import Corpus
from vaiom.distribution.dependence import Dependence
from vaiom.evaluation.inference import BlockBootstrap, bootstrap_blocks
from vaiom.evaluation.panel import Ints, Panel, make_panel, panel_rows, select
from vaiom.evaluation.portfolios import (
    PUBLISHED_CONFIG,
    EllipticScales,
    JointConfig,
    PortfolioBacktest,
    backtest_portfolios,
    garch_scales,
)
from vaiom.evaluation.predictor import ModelPredictor


@dataclass(frozen=True, kw_only=True)
class CopulaGain:
    """Bits per stamp that the copula has more than another."""

    against: str
    bits: float
    """Of the other copula, over independence."""
    gain_bits: float
    weeks: BlockBootstrap
    """Of the gain, with calendar weeks as blocks."""


@dataclass(frozen=True, kw_only=True)
class JointEvaluation:
    """The gain of a dependence on one split."""

    num_stamps: int
    bits: float
    """Mean log2 density of the copula per stamp: what it knows more than independence."""
    copulas: list[CopulaGain]
    portfolios: list[PortfolioBacktest]


@dataclass(frozen=True, kw_only=True)
class JointPeriod:
    """The targets of a split, and how many stamps before them the state is made of."""

    first: np.datetime64
    last: np.datetime64
    """The first moment after the targets."""
    before: int

    @classmethod
    def of(
        cls, corpus: Corpus, split: str, fit: Dependence, config: JointConfig = PUBLISHED_CONFIG
    ) -> JointPeriod:
        """The period of a split, with the history that portfolios and the dependence need."""
        inside = corpus.split_codes == corpus.splits.code(split)
        times = corpus.target_timestamps[inside]
        return cls(
            first=times.min(),
            last=times.max() + np.timedelta64(1, "s"),
            before=config.history + fit.memory,
        )

    def rows(self, corpus: Corpus, history: int) -> Ints:
        """The rows whose forecasts are needed."""
        return panel_rows(corpus, history, self.first, self.last, self.before)


def judge_joint(
    model: ModelPredictor,
    corpus: Corpus,
    split: str,
    fit: Dependence,
    fits: Path | None = None,
    config: JointConfig = PUBLISHED_CONFIG,
) -> JointEvaluation | None:
    """Judge a dependence on the stamps of a split; the folder `fits` may hold a `garch_t`.

    None where the corpus has other assets than Train had, or no stamp has two of them.
    """
    if corpus.tokenizer.symbols != fit.symbols:
        return None
    period = JointPeriod.of(corpus, split, fit, config)
    panel = make_panel(model, corpus, period.first, period.last, period.before)
    garch = garch_scales(panel, corpus, model.checkpoint.config.history, fits)
    return judge_panel(panel, period.first, fit, garch, config)


def judge_panel(
    panel: Panel,
    first: np.datetime64,
    fit: Dependence,
    garch: EllipticScales | None = None,
    config: JointConfig = PUBLISHED_CONFIG,
) -> JointEvaluation | None:
    """Judge a dependence on the stamps of a panel from `first` on."""
    scored = panel.joint_stamps(int(np.searchsorted(panel.stamps, first))).tolist()
    if not scored:
        return None
    correlations = panel.correlations(scored, select(panel.states(fit), scored))
    ours = panel.copula_nats(scored, correlations, fit.degrees["1"]) / math.log(2)
    others = {"independence": np.zeros(len(scored))}
    for name, reference in fit.references.items():
        averages = select(panel.averages(fit.correlation, reference.decay), scored)
        matrices = [reference.correlation(average, fit.correlation) for average in averages]
        others[name] = panel.copula_nats(scored, matrices, reference.degrees) / math.log(2)
    weeks = panel.stamps[scored].astype("datetime64[W]").astype(np.int64)
    by_stamp = dict(zip(scored, correlations, strict=True))
    return JointEvaluation(
        num_stamps=len(scored),
        bits=float(ours.mean()),
        copulas=[
            CopulaGain(
                against=name,
                bits=float(theirs.mean()),
                gain_bits=float((ours - theirs).mean()),
                weeks=bootstrap_blocks(ours - theirs, weeks),
            )
            for name, theirs in others.items()
        ],
        portfolios=backtest_portfolios(panel, by_stamp, fit, garch, config),
    )
