"""What a run has to report: evaluations, scored events, training log, checkpoint and corpus.

A run folder enters; `RunContents`, from which the page and its tables are made, leaves. Files that
do not belong together are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vaiom.corpus.splits import SEALED, VALIDATION, SplitConfig
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import DataError, UserError
from vaiom.evaluation.access_ledger import NO_CHECKPOINT, TestAccess, ledger_heads, read_ledger
from vaiom.evaluation.predictor import require_tokenizer
from vaiom.evaluation.record import Evaluation, ForecastScore
from vaiom.evaluation.scores import MODEL, ScoredEvents, read_events
from vaiom.model.checkpoint import Checkpoint, load_checkpoint
from vaiom.run import Run

LONGEST_PERIOD_IN_TITLE = 12
"""Characters from which a period is left out of the title of a figure."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """One split that was evaluated, with the scored events behind its figures."""

    period: str
    """When its targets lie, as people write it."""
    evaluation: Evaluation
    events: ScoredEvents
    forecasts: dict[str, ForecastScore]
    """Forecasts of others that were scored against the run, by name."""

    @property
    def name(self) -> str:
        """The split: Validation, a test interval or the sealed one."""
        return self.evaluation.split

    @property
    def label(self) -> str:
        """The name with the period, for captions of tables."""
        return f"{self.name} ({self.period})"

    @property
    def title(self) -> str:
        """The name with the period where that is short, for figures."""
        short = len(self.period) < LONGEST_PERIOD_IN_TITLE
        return f"{self.name}, {self.period}" if short else self.name

    @property
    def baselines(self) -> list[str]:
        """Every predictor but the model."""
        return [name for name in self.evaluation.bits if name != MODEL]

    @property
    def strongest(self) -> str:
        """The baseline with the fewest bits."""
        return min(self.baselines, key=self.evaluation.bits.__getitem__)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a report is made from besides the files of its run.

    The page carries it as JSON, so that the audit can make the same page again.
    """

    run: str
    corpus: str | None
    corpus_problem: str | None
    """Why the corpus could not be read."""
    ledger_sha256: str | None
    """Of the corpus's ledger, up to the last look that the report shows."""
    matplotlib: str
    """The version that drew the figures."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunContents:
    """Everything that a report shows."""

    run: Path
    inputs: Inputs
    checkpoint: Checkpoint
    metrics: list[dict[str, Any]]
    """The training log, a dictionary per line; empty where the run was packaged without it."""
    splits: list[Split]
    """In the order of time."""
    corpus: Corpus | None
    """None where it could not be read."""

    @property
    def judged(self) -> list[Split]:
        """The test splits, or Validation where none was scored."""
        tests = [split for split in self.splits if split.name != VALIDATION]
        return tests or self.splits

    @property
    def looks(self) -> list[TestAccess]:
        """The scorings of a test split of the corpus by any model."""
        if self.corpus is None or self.inputs.ledger_sha256 is None:
            return []
        num_shown = ledger_heads(self.corpus).index(self.inputs.ledger_sha256)
        looks = read_ledger(self.corpus)[:num_shown]
        return [look for look in looks if look.checkpoint_sha256 != NO_CHECKPOINT]


def read_run(run: Path, corpus: Path | None = None) -> RunContents:
    """Everything that a report shows.

    A corpus that is named must be readable; one that the run alone names may be gone, and the
    report then says why.
    """
    folder = Run(run)
    checkpoint = load_checkpoint(folder.best)
    opened = None
    problem = None
    try:
        opened = open_corpus(corpus or folder.corpus_path())
    except UserError as error:
        if corpus is not None:
            raise
        problem = f"{error.problem} ({error.where})"
    if opened is not None:
        require_tokenizer(opened, checkpoint)
    inputs = Inputs(
        run=str(run),
        corpus=str(opened.path) if opened is not None else None,
        corpus_problem=problem,
        ledger_sha256=ledger_heads(opened)[-1] if opened is not None else None,
        matplotlib=version("matplotlib"),
    )
    return RunContents(
        run=run,
        inputs=inputs,
        checkpoint=checkpoint,
        metrics=folder.read_metrics(),
        splits=_read_splits(folder, checkpoint),
        corpus=opened,
    )


def period_label(start: datetime, end: datetime) -> str:
    """A half-open interval as people write it: 2025H1, 2025, or its first and last day."""
    whole_months = start.day == end.day == 1 and start.time() == end.time() == time()
    if whole_months:
        months = 12 * (end.year - start.year) + end.month - start.month
        if months == 6 and start.month in (1, 7):
            return f"{start.year}H{1 if start.month == 1 else 2}"
        if months == 12 and start.month == 1:
            return str(start.year)
    last = end - timedelta(microseconds=1)
    return f"{start:%Y-%m-%d} to {last:%Y-%m-%d}"


def period_of(config: SplitConfig, split: str) -> str:
    """When the targets of a held-out split lie."""
    if split == SEALED:
        return f"{config.seal:%Y-%m-%d} and later"
    tests = dict(zip(config.test_names, config.tests, strict=True))
    start, end = tests.get(split, config.validation)
    return period_label(start, end)


def _read_splits(run: Run, checkpoint: Checkpoint) -> list[Split]:
    """Every split with an evaluation, in the order of time."""
    config = SplitConfig.from_json(checkpoint.provenance.splits)
    names = (VALIDATION, *config.test_names, SEALED)
    evaluated = [name for name in names if run.evaluation(name).is_file()]
    if not evaluated:
        raise DataError(
            "this run was not evaluated yet: there is nothing to report",
            where=run.path,
            expected=run.evaluation(VALIDATION).name,
            fix=f"vaiom evaluate {run.path} --split {VALIDATION}",
        )
    return [_read_split(run, name, period_of(config, name), checkpoint) for name in evaluated]


def _read_split(run: Run, name: str, period: str, checkpoint: Checkpoint) -> Split:
    """The evaluation and events of a split; both must name the same predictors and events."""
    evaluation = Evaluation.read(run.path, name, checkpoint.sha256)
    events = read_events(run.path, name)
    expected = f"{evaluation.num_events} events of {', '.join(evaluation.bits)}"
    got = f"{len(events)} events of {', '.join(events.bits)}"
    if got != expected:
        raise DataError(
            "the scored events are not those of the evaluation",
            where=run.path,
            expected=expected,
            got=got,
            fix=f"vaiom evaluate {run.path} --split {name}",
        )
    forecasts = {}
    for folder in sorted(run.forecasts.glob("*")):
        if Run(folder).evaluation(name).is_file():
            forecasts[folder.name] = _read_forecasts(folder, name, checkpoint)
    return Split(period=period, evaluation=evaluation, events=events, forecasts=forecasts)


def _read_forecasts(folder: Path, split: str, checkpoint: Checkpoint) -> ForecastScore:
    """Forecasts of others, which must have been scored against this checkpoint."""
    score = ForecastScore.read(folder, split)
    if score.run_sha256 != checkpoint.sha256:
        raise DataError(
            "these forecasts were scored against another model",
            where=folder,
            fix=score.remade_by.format(run=folder, split=split),
        )
    return score
