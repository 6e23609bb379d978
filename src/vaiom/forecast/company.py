"""What a row reads of the other assets at its own stamp, and which of them had no bar there.

Enters: rows of several assets, and the assets that a model was trained with. Leaves: the rows with the columns of
`schema.CROSS_FIELDS`, and who was absent. Only assets that the model was trained with are read, so that a foreign one
in the same call changes nobody's forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.events.cross import cross_fields
from vaiom.events.schema import CROSS_FIELDS
from vaiom.forecast.inputs import Columns

_READ = ("timestamp", "ret_z", "relative_log_vol", "flags")

Stamps = npt.NDArray[Any]


def with_others(assets: Mapping[str, Columns], known: Sequence[str]) -> dict[str, Columns]:
    """Histories of assets with what each row reads of the others."""
    fields = _cross(assets, known)
    return {symbol: {**columns, **fields[symbol]} for symbol, columns in assets.items()}


def refreshed(assets: Mapping[str, Columns], known: Sequence[str], stamps: Stamps) -> dict[str, Columns]:
    """Assets with a row at one of these stamps, what those rows read of each other made anew."""
    touched = {}
    for symbol, columns in assets.items():
        at, there = _found(columns["timestamp"], stamps)
        if there.any():
            touched[symbol] = at[there]
    rows = {symbol: {name: assets[symbol][name][at] for name in _READ} for symbol, at in touched.items()}
    fields = _cross(rows, known)
    out = {}
    for symbol, at in touched.items():
        out[symbol] = dict(assets[symbol])
        for name in CROSS_FIELDS:
            # A copy: a window that was handed out must stay what it was.
            out[symbol][name] = assets[symbol][name].copy()
            out[symbol][name][at] = fields[symbol][name]
    return out


def absent(assets: Mapping[str, Columns], known: Sequence[str], symbol: str, stamps: Stamps) -> npt.NDArray[np.bool_]:
    """(stamps, known assets): True where another asset has no bar."""
    out = np.zeros((len(stamps), len(known)), bool)
    for column, other in enumerate(known):
        if other != symbol:
            out[:, column] = ~_found(assets[other]["timestamp"], stamps)[1] if other in assets else True
    return out


def named(absent_row: npt.NDArray[np.bool_], known: Sequence[str]) -> tuple[str, ...]:
    """The assets that a row of `absent` stands for."""
    return tuple(symbol for symbol, missing in zip(known, absent_row, strict=True) if missing)


def _cross(assets: Mapping[str, Columns], known: Sequence[str]) -> dict[str, Any]:
    """The cross fields of all assets, over the known ones."""
    company = {symbol: columns for symbol, columns in assets.items() if symbol in known}
    fields = cross_fields(company) if company else {}
    foreign = [symbol for symbol in assets if symbol not in company]
    return fields | {symbol: cross_fields({**company, symbol: assets[symbol]})[symbol] for symbol in foreign}


def _found(ordered: Stamps, stamps: Stamps) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Where each stamp would be among the ordered ones, and whether it is there."""
    at = np.minimum(np.searchsorted(ordered, stamps), len(ordered) - 1)
    return at, np.asarray(ordered[at] == stamps)
