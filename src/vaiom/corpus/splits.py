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

from vaiom import codec
from vaiom.codec import decode
from vaiom.errors import ConfigError
from vaiom.features.typing import Codes, Stamps

TRAIN = "train"
BUFFER = "buffer"
VALIDATION = "validation"
SEALED = "sealed"
NO_TARGET_CODE = 255
"""The code of a row without a target, or with one whose bars lie in several splits."""

Interval = tuple[datetime, datetime]

_DAY = timedelta(days=1)
_MONTH = timedelta(days=31)
# Of the bars after Train, after the buffer and after Validation, if the paper's dates do not fit.
_SHARES_LEFT = (0.3, 0.25, 0.15)


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
        intervals = (self.validation, *self.tests)
        ends = [end for interval in intervals for end in interval]
        for earlier, later in pairwise([self.train_end, *ends, self.seal]):
            if later < earlier:
                raise ValueError(
                    "boundaries must follow each other: Train, Validation, tests in order, seal"
                )
        if any(start == end for start, end in intervals):
            raise ValueError("a Validation or test interval is empty")

    @classmethod
    def covered_by(cls, first: datetime, last: datetime) -> SplitConfig:
        """The paper's boundaries if covered, else whole days: 70% Train, 5% buffer, 10% Validation,
        the rest test.
        """
        paper = cls()
        has_train = first <= paper.train_end - (paper.seal - paper.train_end)
        if has_train and last >= paper.tests[0][1] - _MONTH:
            return paper
        end = (last + _DAY).replace(hour=0, minute=0, second=0, microsecond=0)
        span = end - first
        train_end, start, stop = (end - round(span * share / _DAY) * _DAY for share in _SHARES_LEFT)
        try:
            return cls(
                train_end=train_end, validation=(start, stop), tests=((stop, end),), seal=end
            )
        except ValueError as error:
            raise ConfigError(
                "too few days for Train, Validation and a test",
                expected="some weeks",
                got=f"{first} to {last}",
            ) from error

    def to_options(self) -> str:
        """As command-line options."""
        tests = ",".join(map(_as_option, self.tests))
        return (
            f"--train-end {self.train_end:%Y-%m-%d} --validation {_as_option(self.validation)} "
            f"--test {tests} --seal {self.seal:%Y-%m-%d}"
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Split names; a split's code is its position."""
        return (TRAIN, BUFFER, VALIDATION, *self.test_names, SEALED)

    @property
    def test_names(self) -> tuple[str, ...]:
        """test-h1, test-h2, ... in the order of their intervals."""
        return tuple(f"test-h{number}" for number in range(1, len(self.tests) + 1))

    def code(self, name: str) -> int:
        """The code of a split; an unknown name is an error that lists the known ones."""
        if name not in self.names:
            raise ConfigError("unknown split", expected=", ".join(self.names), got=name)
        return self.names.index(name)

    def shifted_to(self, train_end: datetime) -> SplitConfig:
        """The same protocol, shifted by whole months so that Train ends at `train_end`."""
        years = train_end.year - self.train_end.year
        months = 12 * years + train_end.month - self.train_end.month
        if train_end != _add_months(self.train_end, months):
            raise ConfigError(
                "Train must end at the start of a month for the other boundaries to move along",
                got=train_end.date(),
                fix="name --validation, --test and --seal as well",
            )
        return self.shifted_by(months)

    def shifted_by(self, months: int) -> SplitConfig:
        """The same protocol, shifted by some months."""

        def moved(interval: Interval) -> Interval:
            start, end = interval
            return _add_months(start, months), _add_months(end, months)

        return SplitConfig(
            train_end=_add_months(self.train_end, months),
            validation=moved(self.validation),
            tests=tuple(map(moved, self.tests)),
            seal=_add_months(self.seal, months),
        )

    def codes(self, stamps: Stamps) -> Codes:
        """(N,) the code of the split in which each bar lies; NaT has `NO_TARGET_CODE`."""
        codes = np.full(len(stamps), self.code(BUFFER), np.uint8)
        codes[stamps < np.datetime64(self.train_end)] = self.code(TRAIN)
        names = (VALIDATION, *self.test_names)
        intervals = (self.validation, *self.tests)
        for name, (start, end) in zip(names, intervals, strict=True):
            inside = (stamps >= np.datetime64(start)) & (stamps < np.datetime64(end))
            codes[inside] = self.code(name)
        codes[stamps >= np.datetime64(self.seal)] = self.code(SEALED)
        codes[np.isnat(stamps)] = NO_TARGET_CODE
        return codes

    def to_json(self) -> dict[str, Any]:
        """A JSON object with ISO dates."""
        return dict(codec.to_json(self))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SplitConfig:
        """The boundaries from their `to_json`."""
        return decode(cls, value, "not the boundaries of a protocol", fix="build or train again")


def _as_option(interval: Interval) -> str:
    start, end = interval
    return f"{start:%Y-%m-%d}:{end:%Y-%m-%d}"


def _add_months(moment: datetime, months: int) -> datetime:
    since_year_0 = 12 * moment.year + moment.month - 1
    year, month = divmod(since_year_0 + months, 12)
    return moment.replace(year=year, month=month + 1)
