"""Assign events to splits by the timestamp of their target bar, including the sealed interval.

Events outside the named intervals are buffer: they feed recursions and contexts, but are never
fitted on or scored.
Paper: Methods, "Corpus Construction and Split Protocol".
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom import codec
from vaiom.codec import decode
from vaiom.errors import ConfigError

TRAIN, BUFFER, VALIDATION, SEALED = "train", "buffer", "validation", "sealed"
NO_TARGET_CODE = 255

Interval = tuple[datetime, datetime]


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """Split boundaries, half-open intervals of target time; the defaults are the paper's."""

    train_end: datetime = datetime(2024, 1, 1)
    validation: Interval = (datetime(2024, 7, 1), datetime(2025, 1, 1))
    tests: tuple[Interval, ...] = (
        (datetime(2025, 1, 1), datetime(2025, 7, 1)),
        (datetime(2025, 7, 1), datetime(2026, 1, 1)),
    )
    seal: datetime = datetime(2026, 1, 1)

    def __post_init__(self) -> None:
        flat = [
            self.train_end,
            *self.validation,
            *(edge for test in self.tests for edge in test),
            self.seal,
        ]
        if any(later < earlier for earlier, later in pairwise(flat)):
            raise ValueError(
                "boundaries must follow each other: Train, Validation, tests in order, seal"
            )
        if any(start == end for start, end in (self.validation, *self.tests)):
            raise ValueError("a Validation or test interval is empty")

    @classmethod
    def covered_by(cls, first: datetime, last: datetime) -> SplitConfig:
        """The paper's boundaries if covered, else whole days: 70% Train, 5% buffer, 10% Validation,
        the rest test.
        """
        paper, month = cls(), timedelta(days=31)
        if (
            first <= paper.train_end - (paper.seal - paper.train_end)
            and last >= paper.tests[0][1] - month
        ):
            return paper
        day, end = (
            timedelta(days=1),
            (last + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0),
        )
        train_end, start, stop = (
            end - round((end - first) * share / day) * day for share in (0.3, 0.25, 0.15)
        )
        try:
            return cls(
                train_end=train_end, validation=(start, stop), tests=((stop, end),), seal=end
            )
        except ValueError as error:
            problem, got = "too few days for Train, Validation and a test", f"{first} to {last}"
            raise ConfigError(problem, expected="some weeks", got=got) from error

    def to_options(self) -> str:
        """As command-line options."""
        (start, stop), tests = (
            self.validation,
            ",".join(f"{a:%Y-%m-%d}:{b:%Y-%m-%d}" for a, b in self.tests),
        )
        ends = (
            f"--train-end {self.train_end:%Y-%m-%d} --validation {start:%Y-%m-%d}:{stop:%Y-%m-%d}"
        )
        return f"{ends} --test {tests} --seal {self.seal:%Y-%m-%d}"

    @property
    def names(self) -> tuple[str, ...]:
        """Split names; a split's code is its position."""
        return (TRAIN, BUFFER, VALIDATION, *self.test_names, SEALED)

    @property
    def test_names(self) -> tuple[str, ...]:
        return tuple(f"test-h{number}" for number in range(1, len(self.tests) + 1))

    def code(self, name: str) -> int:
        if name not in self.names:
            raise ConfigError("unknown split", expected=", ".join(self.names), got=name)
        return self.names.index(name)

    def shifted_to(self, train_end: datetime) -> SplitConfig:
        """The same protocol, shifted by whole months so that Train ends at `train_end`."""
        months = (
            12 * (train_end.year - self.train_end.year) + train_end.month - self.train_end.month
        )
        if train_end != _add_months(self.train_end, months):
            problem = (
                "Train must end at the start of a month for the other boundaries to move along"
            )
            raise ConfigError(
                problem, got=train_end.date(), fix="name --validation, --test and --seal as well"
            )
        return self.shifted_by(months)

    def shifted_by(self, months: int) -> SplitConfig:
        """The same protocol, shifted by some months."""

        def moved(value: Any) -> Any:
            return (
                _add_months(value, months)
                if isinstance(value, datetime)
                else tuple(map(moved, value))
            )

        return SplitConfig(**{name: moved(value) for name, value in vars(self).items()})

    def codes(self, target_timestamps: npt.NDArray[np.datetime64]) -> npt.NDArray[np.uint8]:
        """The split code of each event; rows without a target have `NO_TARGET_CODE`."""
        out = np.full(len(target_timestamps), self.code(BUFFER), np.uint8)
        out[target_timestamps < np.datetime64(self.train_end)] = self.code(TRAIN)
        for name, (start, end) in zip(
            (VALIDATION, *self.test_names), (self.validation, *self.tests), strict=True
        ):
            inside = (target_timestamps >= np.datetime64(start)) & (
                target_timestamps < np.datetime64(end)
            )
            out[inside] = self.code(name)
        out[target_timestamps >= np.datetime64(self.seal)] = self.code(SEALED)
        out[np.isnat(target_timestamps)] = NO_TARGET_CODE
        return out

    def to_json(self) -> dict[str, Any]:
        return dict(codec.to_json(self))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SplitConfig:
        return decode(cls, value, "not the boundaries of a protocol", fix="build or train again")


def _add_months(moment: datetime, months: int) -> datetime:
    year, month = divmod(12 * moment.year + moment.month - 1 + months, 12)
    return moment.replace(year=year, month=month + 1)
