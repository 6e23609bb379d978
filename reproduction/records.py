"""What a finished task leaves: one small JSON file that says everything a table asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vaiom.codec import decode, to_json
from vaiom.evaluation.inference import PairedComparison, PairedGain, compare
from vaiom.evaluation.scores import ScoredEvents
from vaiom.files import read_json, write_json

# Kinds of tasks and of their records.
RUN = "run"
WALK = "walk-forward"
BASELINES = "baselines"
CORPUS = "corpus"
PAIR = "pair"
ENSEMBLE = "ensemble"
# Scored besides the splits: all tests together, the year of a walk-forward.
ALL_TESTS = "all"
YEAR = "year"


@dataclass(frozen=True, kw_only=True)
class SplitScores:
    """One split, or several together, scored with one checkpoint."""

    bits: dict[str, float]
    gains: dict[str, PairedGain]
    """Over each baseline."""
    looks: int | None = None

    @classmethod
    def of_events(cls, events: ScoredEvents, looks: int | None = None) -> SplitScores:
        """The scores of events, and of each baseline against the model."""
        return cls(bits=events.mean_bits, gains=gains_of(compare(events)), looks=looks)


def gains_of(comparisons: Sequence[PairedComparison]) -> dict[str, PairedGain]:
    """The gains of a model's comparisons, by baseline."""
    return {each.baseline: each.gain for each in comparisons}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One file of the records folder; which fields are filled depends on its kind."""

    kind: str
    key: str
    """Hash of everything that decides the contents."""
    name: str
    timeframe: str
    seed: int = 0
    year: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    shortened: str = ""
    """How the run differs from the published one, in words; empty if it does not."""
    claimed: bool = True
    """Whether the run supports a claim: enough updates, full size."""
    num_params: int = 0
    num_params_positional: int = 0
    windows_per_step: int = 0
    validation: dict[int, float] = field(default_factory=dict)  # bits per event by step
    scored: dict[str, SplitScores] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    device: str = ""
    vaiom_version: str = ""

    @property
    def last_step(self) -> int:
        """Step of the last Validation; 0 where there is none."""
        return max(self.validation, default=0)

    def best_step(self, within: int | None = None) -> int:
        """The checkpoint with the fewest Validation bits, of those up to a step; 0 where there is
        none.
        """
        steps = [step for step in self.validation if within is None or step <= within]
        return min(steps, key=lambda step: self.validation[step], default=0)

    def best_bits(self, within: int | None = None) -> float | None:
        """The fewest Validation bits, of the steps up to one."""
        return self.validation.get(self.best_step(within))

    def write(self, file: Path) -> None:
        """Write the record as JSON."""
        write_json(file, to_json(self))


def read_record(file: Path) -> Record:
    """One record; a file that is none is an error that names it."""
    fix = "remove it and run `vaiom reproduce` again"
    return decode(Record, read_json(file), "not a record of a finished run", where=file, fix=fix)


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, in the order of their names; hidden ones were being written when a
    run was killed.
    """
    return [read_record(file) for file in sorted(folder.glob("[!.]*.json"))]
