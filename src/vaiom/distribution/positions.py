"""The positions of a portfolio, from a file that a person or a broker wrote.

Enters: a table with a line for each position, or JSON. Leaves: amounts of money by symbol.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from vaiom.errors import DataError
from vaiom.files import parse_json
from vaiom.market.symbols import usual_symbol

DELIMITERS = (";", "\t", ",")
_AMOUNT = ["symbol", "amount"]
_QUANTITY = ["symbol", "quantity", "price"]
_EXPECTED = (
    "symbol,amount with a finite amount of money, or, below a line that names the columns, "
    "symbol,quantity,price; each symbol once"
)


def read_positions(file: Path, known: Collection[str] = ()) -> dict[str, float]:
    """Read amounts of money by symbol; negative ones are short.

    The file is a table of `symbol,amount` lines, with or without a line of column names; or of
    `symbol,quantity,price` lines below such a line, whose amount is quantity x price. Semicolons
    and tabs separate too. Or it is JSON: `{"EURUSD": 1e6}`, or a list of objects with the names of
    the columns. Symbols may be spelled in any way (`usual_symbol`).
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
        is_json = text.lstrip()[:1] in ("[", "{")
        lines = _json_lines(parse_json(text)) if is_json else _table_lines(text)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        got = getattr(error, "strerror", None) or error
        expected = None if isinstance(error, OSError) else _EXPECTED
        problem = "the positions cannot be read"
        raise DataError(problem, where=file, expected=expected, got=got) from error
    names = _AMOUNT
    positions: dict[str, float] = {}
    has_names = is_json and text.lstrip().startswith("[")
    for number, cells in enumerate(lines, start=0 if has_names else 1):
        lowered = [str(cell).lower() for cell in cells]
        if cells is lines[0] and sorted(lowered) in (sorted(_AMOUNT), sorted(_QUANTITY)):
            names = lowered
            continue
        try:
            position = dict(zip(names, cells, strict=True))
            symbol = usual_symbol(str(position.pop("symbol")), known)
            amount = math.prod(_number(value) for value in position.values())
            if not math.isfinite(amount) or symbol in positions:
                raise ValueError("not finite, or a symbol that was there before")
        except (ValueError, OverflowError) as error:
            raise DataError(
                "not a position",
                where=f"{file}, {'position' if is_json else 'line'} {number}",
                expected=_EXPECTED,
                got=", ".join(map(str, cells)),
            ) from error
        positions[symbol] = amount
    if not positions:
        raise DataError("there are no positions", where=file, expected=_EXPECTED)
    return positions


def _table_lines(text: str) -> list[list[str]]:
    """The cells of every line that is not empty, without surrounding spaces."""
    separator = next((mark for mark in DELIMITERS if mark in text), ",")
    lines = csv.reader(text.splitlines(), delimiter=separator)
    return [[cell.strip() for cell in line] for line in lines if line]


def _json_lines(value: Any) -> list[Sequence[Any]]:
    """The cells of positions in JSON; objects must have the names of one kind of table."""
    if isinstance(value, dict):
        return list(value.items())
    names: list[str] = []
    lines: list[Sequence[Any]] = []
    for each in value:
        if not isinstance(each, dict):
            raise ValueError(f"{each!r} is not an object")
        if not names:
            names = list(each)
            lines.append(names)
        if each.keys() != set(names):
            raise ValueError(f"{each!r} has not the keys of those before it")
        lines.append([each[name] for name in names])
    return lines


def _number(value: Any) -> float:
    """A number of JSON, or the text of one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number")
    return float(value)
