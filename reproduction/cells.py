"""What the tables share: columns, names of periods, cells of gains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reproduction import paper
from reproduction.findings import Records
from reproduction.paper import MAIN
from reproduction.records import ALL_TESTS
from vaiom.evaluation.inference import PairedGain
from vaiom.evaluation.scores import MODEL
from vaiom.report.tables import Column, Table, ratio, text

STRONG = "lightgbm"
"""The paper's strongest baseline."""
PAPER_BASELINES = tuple(name for name in paper.TEST_BITS["test-h1"] if name != MODEL)
PERIODS = {"test-h1": "2025H1", "test-h2": "2025H2", ALL_TESTS: "both halves"}
"""The splits as the paper names them."""

Noted = tuple[Table, str]
"""A table and a note on it."""


def plain(value: object) -> str:
    """Text that stands to the right, as numbers do."""
    return text(value)


def columns(show: Callable[[Any], str], *names: str) -> list[Column]:
    """Columns whose values are spelled alike."""
    return [Column(name, show) for name in names]


def period(split: str) -> str:
    """A split as the paper names it."""
    return PERIODS.get(split, split)


def wins(gain: PairedGain | None) -> list[Any]:
    """Cells: won blocks of all asset-months, and won months of all."""
    blocks = [gain.asset_months, gain.months] if gain else []
    return [ratio((each.block_wins, each.num_blocks)) for each in blocks] or [None, None]


def is_above_zero(gain: PairedGain) -> bool:
    """Whether the interval of a gain lies above zero."""
    interval = gain.asset_months.interval
    return interval is not None and interval[0] > 0


def first_gain(records: Records, split: str) -> PairedGain | None:
    """The gain of the paper's model over its strongest baseline, for the first seed."""
    record = next(iter(records.runs(MAIN).values()), None)
    return record.scored[split].gains.get(STRONG) if record and split in record.scored else None
