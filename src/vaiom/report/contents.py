"""What a run has to report: evaluations, scored events, training log, checkpoint and, if it can be reached, corpus.

Enters: a run folder and, if it moved, the path of its corpus. Leaves: a `RunContents`, typed and checked: what
`vaiom evaluate` left is read back into the classes that it came from, and an evaluation of another checkpoint than the
selected one is refused.
"""

from __future__ import annotations

import json
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from vaiom.errors import DataError, UserError
from vaiom.evaluation.evaluate import Evaluation, evaluation_path
from vaiom.evaluation.events_file import ScoredEvents, read_events
from vaiom.evaluation.ledger import NO_CHECKPOINT, Look, read_ledger
from vaiom.events.corpus import Corpus, open_corpus
from vaiom.events.quality import SplitQuality, split_quality
from vaiom.events.splits import SEALED, VALIDATION, SplitConfig
from vaiom.files import read_json
from vaiom.model.checkpoint import Checkpoint, load_checkpoint
from vaiom.training.loop import BEST_NAME, CONFIG_NAME, METRICS_NAME, corpus_of_run

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """One split that was evaluated."""

    period: str
    """When its targets lie, as people write it."""
    evaluation: Evaluation
    events: ScoredEvents

    @property
    def name(self) -> str:
        return self.evaluation.split

    @property
    def label(self) -> str:
        return f"{self.name} ({self.period})"

    @property
    def is_test(self) -> bool:
        return self.name != VALIDATION


@dataclass(frozen=True, kw_only=True, eq=False)
class CorpusFacts:
    """What the corpus itself says."""

    path: Path
    sha256: str
    timeframe: str
    quality: list[SplitQuality]
    looks: list[Look]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunContents:
    run: Path
    checkpoint: Checkpoint
    config: Mapping[str, Any]
    metrics: list[dict[str, Any]]
    splits: list[Split]
    """In the order of time."""
    corpus: CorpusFacts | None
    corpus_problem: str | None
    """Why the corpus could not be read."""

    @property
    def judged(self) -> list[Split]:
        """The test splits, or what there is where none was scored."""
        return [split for split in self.splits if split.is_test] or self.splits


def read_run(run: Path, corpus: Path | None = None) -> RunContents:
    """Everything that the report of a run is made of; a corpus that is not named and not there is no error."""
    checkpoint = load_checkpoint(run / BEST_NAME)
    facts, problem = _corpus_facts(run, corpus, checkpoint)
    return RunContents(
        run=run,
        checkpoint=checkpoint,
        config=_read_config(run / CONFIG_NAME),
        metrics=_read_metrics(run / METRICS_NAME),
        splits=_read_splits(run, checkpoint),
        corpus=facts,
        corpus_problem=problem,
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


def from_json(cls: type[T], value: Any) -> T:
    """A dataclass, or whatever its fields are made of, back from the JSON that `asdict` gave."""
    out: T = _build(cls, value)
    return out


def _build(hint: Any, value: Any) -> Any:
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _build(next(each for each in inside if each is not type(None)), value)
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        return hint(**{field.name: _build(hints[field.name], value[field.name]) for field in fields(hint)})
    if origin is list:
        return [_build(inside[0], each) for each in value]
    if origin is tuple:
        return tuple(_build(each, part) for each, part in zip(inside, value, strict=True))
    if origin is dict:
        return {key: _build(inside[1], each) for key, each in value.items()}
    if hint is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, hint):
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value


def _read_splits(run: Path, checkpoint: Checkpoint) -> list[Split]:
    splits = SplitConfig.from_json(checkpoint.provenance.splits)
    found = [name for name in (VALIDATION, *splits.test_names, SEALED) if evaluation_path(run, name).is_file()]
    if not found:
        raise DataError(
            "this run was not evaluated yet: there is nothing to report",
            where=run,
            expected=evaluation_path(run, VALIDATION).name,
            fix=f"vaiom evaluate {run} --split {VALIDATION}",
        )
    intervals = dict(zip((VALIDATION, *splits.test_names), (splits.validation, *splits.tests), strict=True))
    out = []
    for name in found:
        evaluation = _read_evaluation(run, name, checkpoint)
        period = f"{splits.seal:%Y-%m-%d} and later" if name == SEALED else period_label(*intervals[name])
        events = read_events(run, name)
        if len(events) != evaluation.num_events or list(events.bits) != list(evaluation.bits):
            raise DataError(
                "the scored events are not those of the evaluation beside them",
                where=run,
                expected=f"{evaluation.num_events} events of {', '.join(evaluation.bits)}",
                got=f"{len(events)} events of {', '.join(events.bits)}",
                fix=f"vaiom evaluate {run} --split {name}",
            )
        out.append(Split(period=period, evaluation=evaluation, events=events))
    return out


def _read_evaluation(run: Path, split: str, checkpoint: Checkpoint) -> Evaluation:
    file, again = evaluation_path(run, split), f"vaiom evaluate {run} --split {split}"
    try:
        evaluation = from_json(Evaluation, read_json(file))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            "not an evaluation of this version of vaiom", where=file, got=str(error).splitlines()[0], fix=again
        ) from error
    if evaluation.checkpoint_sha256 != checkpoint.sha256:
        raise DataError(
            "the evaluation is of another checkpoint than the run's best one",
            where=file,
            expected=checkpoint.sha256,
            got=evaluation.checkpoint_sha256,
            fix=again,
        )
    return evaluation


def _corpus_facts(run: Path, named: Path | None, checkpoint: Checkpoint) -> tuple[CorpusFacts | None, str | None]:
    try:
        corpus = open_corpus(named or corpus_of_run(run))
    except UserError as error:
        if named is not None:
            raise
        return None, f"{error.problem} ({error.where})"
    if corpus.tokenizer.sha256 != checkpoint.tokenizer.sha256:
        raise DataError(
            "this corpus is not the run's: its tokenizer is another",
            where=corpus.path,
            expected=checkpoint.tokenizer.sha256,
            got=corpus.tokenizer.sha256,
            fix="name the corpus that the run was trained on with --corpus",
        )
    return _facts(corpus), None


def _facts(corpus: Corpus) -> CorpusFacts:
    assert corpus.path is not None
    return CorpusFacts(
        path=corpus.path,
        sha256=corpus.sha256,
        timeframe=str(corpus.manifest["timeframe"]),
        quality=split_quality(corpus),
        looks=[look for look in read_ledger(corpus) if look.checkpoint_sha256 != NO_CHECKPOINT],
    )


def _read_config(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError as error:
        raise DataError("not a run folder", where=file.parent, expected=file.name, fix="vaiom train") from error
    except (ValueError, RecursionError) as error:
        raise DataError("not readable as TOML", where=file, got=str(error)) from error


def _read_metrics(file: Path) -> list[dict[str, Any]]:
    """The training log; a run that was packed without it has no training curve."""
    if not file.is_file():
        return []
    try:
        entries = [json.loads(line) for line in file.read_bytes().splitlines() if line]
        if not all(isinstance(entry, dict) and "step" in entry for entry in entries):
            raise ValueError("a line without a step")
        return entries
    except (ValueError, RecursionError) as error:
        raise DataError("the training log is damaged", where=file, got=str(error)) from error
