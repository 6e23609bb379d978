"""Rows of assets: the window that a forecast depends on, and what a row reads of other assets at its own stamp.

Enters: rows of several assets, and the assets that a model was trained with. Leaves: windows; the rows with the columns
of `schema.CROSS_FIELDS`, and who was absent. Only assets that the model was trained with are read, so that a foreign
one in the same call changes nobody's forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.events.fields import CROSS_FIELDS, cross_columns
from vaiom.events.rows import Columns

_READ = ("timestamp", "ret_z", "relative_log_vol", "flags")

Stamps = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """The last rows of one asset, at most as many as the model's context: all that a forecast depends on."""

    symbol: str
    columns: Columns
    missing_assets: tuple[str, ...] = ()
    """Assets that the model reads and that had no bar at the last stamp."""

    def __len__(self) -> int:
        return len(self.columns["timestamp"])


def cut_window(assets: Mapping[str, Columns], known: Sequence[str], symbol: str, context: int) -> Window:
    """The last rows of an asset; `known` are the assets that the model reads."""
    [absent] = find_absent(assets, known, symbol, assets[symbol]["timestamp"][-1:])
    columns = {name: column[-context:] for name, column in assets[symbol].items()}
    return Window(symbol=symbol, columns=columns, missing_assets=tuple(compress(known, absent)))


def add_cross_fields(assets: Mapping[str, Columns], known: Sequence[str]) -> dict[str, Columns]:
    """Histories of assets with what each row reads of the others."""
    fields = _cross(assets, known)
    return {symbol: {**columns, **fields[symbol]} for symbol, columns in assets.items()}


def refresh_cross_fields(assets: Mapping[str, Columns], known: Sequence[str], stamps: Stamps) -> dict[str, Columns]:
    """Assets with a row at one of these stamps, what those rows read of each other made anew."""
    found = {symbol: _find(columns["timestamp"], stamps) for symbol, columns in assets.items()}
    touched = {symbol: at[there] for symbol, (at, there) in found.items() if there.any()}
    fields = _cross({s: {name: assets[s][name][at] for name in _READ} for s, at in touched.items()}, known)
    out = {}
    for symbol, at in touched.items():
        # Copies: a window that was handed out must stay what it was.
        out[symbol] = {**assets[symbol], **{name: assets[symbol][name].copy() for name in CROSS_FIELDS}}
        for name in CROSS_FIELDS:
            out[symbol][name][at] = fields[symbol][name]
    return out


def find_absent(
    assets: Mapping[str, Columns], known: Sequence[str], symbol: str, stamps: Stamps
) -> npt.NDArray[np.bool_]:
    """(stamps, known assets): True where another asset has no bar."""
    out = np.zeros((len(stamps), len(known)), bool)
    for column, other in enumerate(known):
        if other != symbol:
            out[:, column] = ~_find(assets[other]["timestamp"], stamps)[1] if other in assets else True
    return out


def _cross(assets: Mapping[str, Columns], known: Sequence[str]) -> dict[str, Any]:
    """The cross fields of all assets, over the known ones."""
    read = {symbol: columns for symbol, columns in assets.items() if symbol in known}
    fields = cross_columns(read) if read else {}
    foreign = [symbol for symbol in assets if symbol not in read]
    return fields | {symbol: cross_columns({**read, symbol: assets[symbol]})[symbol] for symbol in foreign}


def _find(ordered: Stamps, stamps: Stamps) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Where each stamp would be among the ordered ones, and whether it is there."""
    at = np.minimum(np.searchsorted(ordered, stamps), len(ordered) - 1)
    return at, np.asarray(ordered[at] == stamps)
