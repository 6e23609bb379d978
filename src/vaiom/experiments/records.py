"""What a finished task leaves for the tables: one small JSON file that says everything a table asks for.

Enters: what was measured, or a folder of records. Leaves: a record, written whole or not at all and checked when it is
read; the records that a table asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vaiom.errors import DataError
from vaiom.evaluation.evaluate import Against, Evaluation
from vaiom.experiments.paper import MAIN_TIMEFRAME
from vaiom.files import read_json, write_json

RUN, WALK, BASELINES, CORPUS = "run", "walk-forward", "baselines", "corpus"
PAIR, ENSEMBLE = "pair", "ensemble"
ALL_TESTS, YEAR = "all", "year"
"""What is scored besides the splits: the tests together, the test year of a walk-forward."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The model beside one baseline on one set of events."""

    num_events: int
    gain_bits: float
    num_blocks: int
    block_wins: int
    win_rate: float
    interval: tuple[float, float] | None
    win_rate_interval: tuple[float, float] | None
    num_months: int
    months_won: int
    month_interval: tuple[float, float] | None
    tails: dict[str, float | None]
    tail_events: int

    @classmethod
    def of(cls, against: Against) -> Gain:
        gain = against.gain
        return cls(
            num_events=gain.num_events,
            gain_bits=gain.gain_bits,
            num_blocks=gain.asset_months.num_blocks,
            block_wins=gain.asset_months.block_wins,
            win_rate=gain.asset_months.win_rate,
            interval=gain.asset_months.interval,
            win_rate_interval=gain.asset_months.win_rate_interval,
            num_months=gain.months.num_blocks,
            months_won=gain.months.block_wins,
            month_interval=gain.months.interval,
            tails={name: tail.gain_bits for name, tail in gain.tails.items()},
            tail_events=gain.tails["both"].num_events,
        )

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Gain:
        pairs = ("interval", "win_rate_interval", "month_interval")
        plain: dict[str, Any] = {k: tuple(item) if k in pairs and item else item for k, item in value.items()}
        return cls(**plain)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One split, or several together, scored with one checkpoint."""

    bits: dict[str, float]
    gains: dict[str, Gain]
    looks: int | None = None

    @classmethod
    def of(cls, result: Evaluation) -> Scored:
        return cls(
            bits=result.bits, gains={each.baseline: Gain.of(each) for each in result.against}, looks=result.looks
        )

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Scored:
        gains = {name: Gain.from_json(gain) for name, gain in value["gains"].items()}
        return cls(bits=value["bits"], gains=gains, looks=value["looks"])


@dataclass(frozen=True, kw_only=True)
class Record:
    """One file of the records folder; which fields are filled depends on its kind."""

    kind: str
    key: str
    """A hash of everything that decides the contents."""
    name: str
    timeframe: str
    seed: int = 0
    year: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    shortened: str = ""
    """How the run differs from the published one, in words; empty where it does not."""
    claimed: bool = True
    """Whether a comparison with this run may be claimed: enough updates, full size."""
    num_params: int = 0
    num_params_positional: int = 0
    windows_per_step: int = 0
    validation: dict[int, float] = field(default_factory=dict)
    """Bits per event at each checkpoint that was validated."""
    scored: dict[str, Scored] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    device: str = ""
    vaiom_version: str = ""

    @property
    def last_step(self) -> int:
        return max(self.validation, default=0)

    def best_step(self, within: int | None = None) -> int:
        """The checkpoint with the fewest Validation bits, of those up to a step; 0 where there is none."""
        steps = [step for step in self.validation if within is None or step <= within]
        return min(steps, key=lambda step: self.validation[step], default=0)

    def best_bits(self, within: int | None = None) -> float | None:
        return self.validation.get(self.best_step(within))

    def write(self, file: Path) -> None:
        write_json(file, asdict(self))


def read_record(file: Path) -> Record:
    value = read_json(file)
    try:
        value["validation"] = {int(step): bits for step, bits in value["validation"].items()}
        value["scored"] = {split: Scored.from_json(scored) for split, scored in value["scored"].items()}
        return Record(**value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            "not a record of a finished run",
            where=file,
            got=str(error),
            fix="remove it and run `vaiom reproduce` again",
        ) from error


class Records:
    """All records of a folder, found by what a table asks for."""

    def __init__(self, records: list[Record]) -> None:
        self.all = records

    @classmethod
    def read(cls, folder: Path, *, required: bool = False) -> Records:
        # Hidden ones were being written when a runner was killed.
        files = sorted(file for file in folder.glob("*.json") if not file.name.startswith("."))
        if required and not files:
            raise DataError(
                "no records to make tables from", where=folder, fix="name a --corpus to run on, or the --out"
            )
        return cls([read_record(file) for file in files])

    def runs(self, experiment: str, timeframe: str) -> dict[int, Record]:
        """By seed, in their order; of several lengths of one run the longest."""
        chosen = [r for r in self._of(RUN) if (r.name, r.timeframe) == (experiment, timeframe)]
        return {r.seed: r for r in sorted(chosen, key=lambda r: (r.seed, *_weight(r)))}

    def walk_forward(self, timeframe: str = MAIN_TIMEFRAME) -> dict[int, Record]:
        """By test year, in their order; of several lengths of one run the longest."""
        chosen = [r for r in self._of(WALK) if r.timeframe == timeframe]
        return {r.year: r for r in sorted(chosen, key=lambda r: (r.year, *_weight(r)))}

    def pairs(self, timeframe: str = MAIN_TIMEFRAME) -> dict[int, Record]:
        """Our own model beside the paper's, by seed."""
        chosen = [r for r in self._of(PAIR) if r.timeframe == timeframe]
        return {r.seed: r for r in sorted(chosen, key=lambda r: r.seed)}

    def ensemble(self, timeframe: str = MAIN_TIMEFRAME) -> Record | None:
        """The seeds of our own model together."""
        return next((r for r in self._of(ENSEMBLE) if r.timeframe == timeframe), None)

    def facts(self, kind: str, timeframe: str = MAIN_TIMEFRAME) -> Mapping[str, Any]:
        """Of the corpus or of its baselines; empty where they are not recorded."""
        return next((r.facts for r in self._of(kind) if r.timeframe == timeframe), {})

    def _of(self, kind: str) -> Iterator[Record]:
        return (record for record in self.all if record.kind == kind)


def _weight(record: Record) -> tuple[bool, int]:
    return record.claimed, record.last_step * record.windows_per_step
