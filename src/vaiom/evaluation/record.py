"""What an evaluation leaves: every figure of a run, or of forecasts of others, on one split.

`evaluation-<split>.json` is an `Evaluation` as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from vaiom.codec import decode
from vaiom.errors import DataError
from vaiom.evaluation.calibration import Calibration, Scores, TailTest
from vaiom.evaluation.horizon_scores import HorizonScore
from vaiom.evaluation.inference import ConfidenceSet, PairedComparison, SeedSummary
from vaiom.evaluation.joint_scores import JointEvaluation
from vaiom.evaluation.mixture import MixtureReport
from vaiom.evaluation.scores import GroupBits, TargetScore
from vaiom.files import read_json
from vaiom.model.checkpoint import USE
from vaiom.run import Run

RUN_PREFIX = "run "
"""Before the name of the run that forecasts are scored against, as a predictor."""
FORMS = ("probabilities", "quantiles", "samples")
"""In which tables of forecasts of others may hold them."""
FEW_BLOCKS = 6
"""So many blocks give an interval that is no more than a rough width."""


@dataclass(frozen=True, kw_only=True)
class SampleSize:
    """The size of a split, from which its caveats follow."""

    num_assets: int
    num_months: int
    empty_buckets: list[int]
    """Buckets in which no event ended."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(TargetScore):
    """All figures of one run on one split; `bits` and every breakdown have the model first."""

    remade_by: ClassVar = "vaiom evaluate {run} --split {split}"
    split: str
    run: str
    corpus: str
    corpus_sha256: str
    checkpoint_sha256: str
    experiment: str
    seed: int
    step: int
    looks: int | None
    """How often models were scored on the split, this time included; None where that is not
    recorded.
    """
    against: list[PairedComparison]
    all_tests: list[PairedComparison] | None
    """Over all test splits together, where each was scored with this checkpoint and these
    baselines.
    """
    confidence_set: ConfidenceSet | None
    seeds: dict[str, SeedSummary] | None
    """By baseline, where other runs of the experiment were named."""
    by: dict[str, list[GroupBits]]
    """By asset, by month, hour and bucket of the target, by the volatility regime of the row."""
    calibration: Calibration
    calibration_by: dict[str, list[Scores]]
    backtests: list[TailTest]
    """Value at risk and expected shortfall of the served distributions."""
    backtests_by: dict[str, list[TailTest]]
    mixture: MixtureReport | None
    caveats: list[str]
    """What weakens these figures, in words."""
    sample: SampleSize | None = None
    ledger_sha256: str | None = None
    """Of the corpus's ledger after this access; None for a corpus in memory."""
    precision: str | None = None
    """The number format of matrix products."""
    baselines: str | None = None
    """The folder of stored losses; None where the plain baselines were fitted on the spot."""
    bits_alone: float | None = None
    """Mean bits of the model without the bars of other assets; None where it reads none, and for
    models that score by windows.
    """
    joint: JointEvaluation | None = None
    """Of the assets together, where their dependence was fitted (`vaiom dependence`)."""
    horizons: list[HorizonScore] | None = None
    """Beyond the next bar; None where the run has no such horizons."""

    def __repr__(self) -> str:
        bits = ", ".join(f"{name} {value:.4f}" for name, value in self.bits.items())
        return (
            f"<{type(self).__name__} of {self.experiment} on {self.split}, {self.num_events:,} "
            f"events, bits: {bits}>"
        )

    @classmethod
    def read(cls, run: Path, split: str, checkpoint_sha256: str | None = None) -> Self:
        """Read what `evaluate_run` wrote; an evaluation of another checkpoint is refused."""
        file = Run(run).evaluation(split)
        fix = cls.remade_by.format(run=run, split=split)
        problem = "not an evaluation of this version of vaiom"
        result = decode(cls, read_json(file), problem, where=file, fix=fix)
        if checkpoint_sha256 not in (None, result.checkpoint_sha256):
            raise DataError(
                "the evaluation is of another checkpoint than the run's best one",
                where=file,
                expected=checkpoint_sha256,
                got=result.checkpoint_sha256,
                fix=fix,
            )
        return result


@dataclass(frozen=True, kw_only=True, repr=False)
class ForecastScore(Evaluation):
    """Forecasts of others, judged as a model is.

    `experiment` is their name, `checkpoint_sha256` the hash of their probabilities.
    """

    remade_by: ClassVar = (
        "vaiom score FORECASTS --against RUN --split {split} --save, or remove {run}"
    )
    form: str
    num_missing: int
    """Events of the split without a forecast, or without a loss of the run: they are not scored."""
    num_unused: int = 0
    """Forecasts that belong to no event of the split."""
    run_sha256: str | None
    """The checkpoint of the run that they were scored against."""


def caveats_of(sample: SampleSize, purpose: str) -> list[str]:
    """What limits the figures of a split, in words."""
    caveats = []
    if purpose == USE:
        caveats.append("The model is a refit, for use and not for evidence.")
    if sample.num_months == 1:
        caveats.append("One month only: the month-clustered interval is undefined.")
    if sample.num_months * sample.num_assets == 1:
        caveats.append("One asset in one month is a single block: no interval can be given.")
    elif sample.num_assets == 1:
        caveats.append("One asset only: asset-months and months are the same blocks.")
    if 1 < sample.num_months <= FEW_BLOCKS:
        caveats.append(
            f"The month-clustered interval rests on {sample.num_months} blocks only: take it as a "
            f"rough width."
        )
    if sample.empty_buckets:
        empty = ", ".join(map(str, sample.empty_buckets))
        caveats.append(
            f"No event ended in bucket {empty}: no figure there, and calibration is untested."
        )
    return caveats


def caveat_of_missing(missing: int, num_events: int, unused: int, form: str) -> str:
    """How many events of a split have no forecast, and how many forecasts no event, in words."""
    share = missing / num_events
    return (
        f"{missing:,} of the {num_events:,} events of the split ({share:.2%}) are missing and not "
        f"scored; {unused:,} lines of the table, which holds {form}, belong to no event of it."
    )
