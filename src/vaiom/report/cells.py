"""Cells of the reproduction's tables: a number and how it is spelled, a dash where there is none."""

from __future__ import annotations

from collections.abc import Sequence

from vaiom.report.numbers import NOTHING, bits, count, signed
from vaiom.report.tables import Cell, Column, number, text

_PERIODS = {"test-h1": "2025H1", "test-h2": "2025H2", "all": "both halves"}


def columns_of(*names: str, words: Sequence[str] = ()) -> list[Column]:
    return [Column(name, text if name in words else signed) for name in names]


def bits_cell(value: float | None) -> Cell:
    return number(NOTHING if value is None else bits(value), value)


def signed_cell(value: float | None) -> Cell:
    return number(signed(value), value)


def count_cell(value: int | None) -> Cell:
    return number(NOTHING if value is None else count(value), value)


def period(split: str) -> str:
    """A split by the name that the paper gives its interval."""
    return _PERIODS.get(split, split)
