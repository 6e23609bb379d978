"""The paper's published figures, as `paper.toml` has them.

Leaves: `COMPARISONS`, the tables of Validation bits with the experiment of each row, and the other
figures by name.
Paper: Results; Appendices A to F. Every table is named by its label there.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAIN = "main"
BEST = "best"
FORMER = "best-512"
JUDGED = (MAIN, BEST)  # what is scored on the tests
MAIN_TIMEFRAME = "1h"


@dataclass(frozen=True)
class Row:
    """One run of a table."""

    label: str
    experiment: str
    steps: int  # optimizer steps of the published figure
    bits: float | None = None  # published, on Validation, per event
    against: str | None = None  # label of the row that it is compared with
    timeframe: str = MAIN_TIMEFRAME
    at_step: bool = (
        False  # whether our figure is of exactly this step, or of the best checkpoint up to it
    )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows that belong together, in the order of the paper."""

    name: str
    title: str
    label: str = ""  # of the paper's table; empty for ours
    rows: tuple[Row, ...]
    num_seeds: int = 3
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says, and what decides it here: a row of a table against its reference, or a
    baseline.
    """

    text: str
    table: str = ""
    row: str = ""
    baseline: str = ""


def _comparison(
    name: str, rows: list[dict[str, Any]], all_rows: dict[str, Any], **about: Any
) -> Comparison:
    """A table of `paper.toml` with its rows."""
    return Comparison(name=name, rows=tuple(Row(**(all_rows | row)) for row in rows), **about)


def _by_seed(table: dict[str, Any]) -> dict[int, Any]:
    """A table with its keys, which are seeds, as numbers."""
    return {int(seed): figures for seed, figures in table.items()}


_PAPER: dict[str, Any] = tomllib.loads(Path(__file__).with_name("paper.toml").read_text())
COMPARISONS = tuple(
    _comparison(name, **({"all_rows": {}} | each)) for name, each in _PAPER["comparison"].items()
)
CLAIMS = tuple(Claim(**each) for each in _PAPER["claim"])
SEEDS: tuple[int, ...] = tuple(_PAPER["seeds"])
SELECTED_STEP: int = _PAPER["selected_step"]
VALIDATION_LIGHTGBM: float = _PAPER["validation_lightgbm"]
VALIDATION_SEEDS: dict[int, float] = _by_seed(_PAPER["validation_seeds"])
TEST_BITS: dict[str, dict[str, float]] = _PAPER["test_bits"]
TEST_SEEDS: dict[str, dict[int, Any]] = {
    split: _by_seed(table) for split, table in _PAPER["test_seeds"].items()
}
TAILS: dict[str, dict[str, float]] = _PAPER["tails"]
BOOTSTRAP: dict[str, Any] = _PAPER["bootstrap"]
SPLIT_EVENTS: dict[str, int] = _PAPER["split_events"]
EDGES: dict[str, list[float]] = _PAPER["edges"]
ASSETS: dict[str, list[int]] = _PAPER["assets"]
RUNG_PARAMETERS: dict[str, list[int]] = _PAPER["rung_parameters"]
TARGET_EXPOSURE: dict[str, float] = _PAPER["target_exposure"]


def comparison(name: str) -> Comparison:
    """The comparison of a name."""
    return next(each for each in COMPARISONS if each.name == name)
