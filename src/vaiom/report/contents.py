"""What a run has to report: evaluations, scored events, training log, checkpoint and, if it can be
reached, corpus.
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
from vaiom.evaluation.evaluate import Evaluation, ForecastScore
from vaiom.evaluation.ledger import NO_CHECKPOINT, Look, ledger_heads, read_ledger
from vaiom.evaluation.predictor import require_tokenizer
from vaiom.evaluation.scores import MODEL, ScoredEvents, read_events
from vaiom.model.checkpoint import Checkpoint, load_checkpoint
from vaiom.run import Run


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """One split that was evaluated."""

    period: str
    """When its targets lie, as people write it."""
    evaluation: Evaluation
    events: ScoredEvents
    forecasts: dict[str, ForecastScore]
    """Of others, scored against the run, by name."""

    @property
    def name(self) -> str:
        return self.evaluation.split

    @property
    def label(self) -> str:
        return f"{self.name} ({self.period})"

    @property
    def title(self) -> str:
        return f"{self.name}, {self.period}" if len(self.period) < 12 else self.name

    @property
    def baselines(self) -> list[str]:
        return [name for name in self.evaluation.bits if name != MODEL]

    @property
    def strongest(self) -> str:
        """The baseline with the fewest bits."""
        return min(self.baselines, key=lambda name: self.evaluation.bits[name])


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a report is made from other than the files of its run; the page has it as JSON, for the
    audit.
    """

    run: str
    corpus: str | None
    corpus_problem: str | None
    """Why the corpus could not be read."""
    ledger_sha256: str | None
    """Of the corpus's ledger, up to the last look that the report shows."""
    matplotlib: str


@dataclass(frozen=True, kw_only=True, eq=False)
class RunContents:
    run: Path
    inputs: Inputs
    checkpoint: Checkpoint
    metrics: list[dict[str, Any]]
    splits: list[Split]
    """In the order of time."""
    corpus: Corpus | None

    @property
    def judged(self) -> list[Split]:
        """The test splits, or Validation where none was scored."""
        return [split for split in self.splits if split.name != VALIDATION] or self.splits

    @property
    def looks(self) -> list[Look]:
        """The scorings of a test split of the corpus by any model."""
        if self.corpus is None or self.inputs.ledger_sha256 is None:
            return []
        looks = read_ledger(self.corpus)[
            : ledger_heads(self.corpus).index(self.inputs.ledger_sha256)
        ]
        return [look for look in looks if look.checkpoint_sha256 != NO_CHECKPOINT]


def read_run(run: Path, corpus: Path | None = None) -> RunContents:
    """Everything that a report shows; without a named corpus, one that cannot be read is
    no error.
    """
    folder, opened, problem = Run(run), None, None
    checkpoint = load_checkpoint(folder.best)
    try:
        opened = open_corpus(corpus or folder.corpus_path())
    except UserError as error:
        if corpus is not None:
            raise
        problem = f"{error.problem} ({error.where})"
    else:
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
    if start.day == 1 and end.day == 1 and start.time() == end.time() == time():
        months = 12 * (end.year - start.year) + end.month - start.month
        if months == 6 and start.month in (1, 7):
            return f"{start.year}H{1 if start.month == 1 else 2}"
        if months == 12 and start.month == 1:
            return str(start.year)
    return f"{start:%Y-%m-%d} to {end - timedelta(microseconds=1):%Y-%m-%d}"


def period_of(config: SplitConfig, split: str) -> str:
    """When the targets of a held-out split lie."""
    if split == SEALED:
        return f"{config.seal:%Y-%m-%d} and later"
    return period_label(
        *dict(zip(config.test_names, config.tests, strict=True)).get(split, config.validation)
    )


def _read_splits(run: Run, checkpoint: Checkpoint) -> list[Split]:
    config, splits = SplitConfig.from_json(checkpoint.provenance.splits), []
    for name in (VALIDATION, *config.test_names, SEALED):
        if not run.evaluation(name).is_file():
            continue
        evaluation, events = (
            Evaluation.read(run.path, name, checkpoint.sha256),
            read_events(run.path, name),
        )
        expected = f"{evaluation.num_events} events of {', '.join(evaluation.bits)}"
        got = f"{len(events)} events of {', '.join(events.bits)}"
        if got != expected:
            problem = "the scored events are not those of the evaluation"
            fix = f"vaiom evaluate {run.path} --split {name}"
            raise DataError(problem, where=run.path, expected=expected, got=got, fix=fix)
        scores = {}
        for folder in sorted(run.forecasts.glob("*")):
            if Run(folder).evaluation(name).is_file():
                scores[folder.name] = score = ForecastScore.read(folder, name)
                if score.run_sha256 != checkpoint.sha256:
                    fix = score.remade_by.format(run=folder, split=name)
                    raise DataError(
                        "these forecasts were scored against another model", where=folder, fix=fix
                    )
        splits.append(
            Split(
                period=period_of(config, name),
                evaluation=evaluation,
                events=events,
                forecasts=scores,
            )
        )
    if not splits:
        expected, fix = (
            run.evaluation(VALIDATION).name,
            f"vaiom evaluate {run.path} --split {VALIDATION}",
        )
        problem = "this run was not evaluated yet: there is nothing to report"
        raise DataError(problem, where=run.path, expected=expected, fix=fix)
    return splits
