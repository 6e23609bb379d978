"""Fields of the same closed bar in the other assets: how much they moved, which way the dollar went, how wild they are.

Enters: stored columns of all assets. Leaves: float16 columns in the order of `schema.CROSS_FIELDS`, 0 where no other
asset has an unmasked row with the same stamp. NumPy alone. Not in the paper.

They depend on which assets have a bar at a stamp, and on nothing of another stamp, so one function serves a history
and a live hour. Bars of an asset that come late change these fields of the others at the late stamps, and an append
makes them anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vaiom.events.inputs import ANY_MASK, Columns, Halves, has_flag, to_half
from vaiom.events.schema import CROSS_FIELDS

RET_Z_LIMIT = 10.0
"""Larger moves count as this much: one asset's bad print must not become everyone's news."""


def cross_fields(assets: Mapping[str, Columns]) -> dict[str, dict[str, Halves]]:
    """The columns of `CROSS_FIELDS` per symbol, from `timestamp`, `ret_z`, `relative_log_vol` and `flags`."""
    symbols = sorted(assets)
    stamps = np.unique(np.concatenate([assets[symbol]["timestamp"] for symbol in symbols]))
    totals = np.zeros((2 * len(CROSS_FIELDS), len(stamps)))
    own, places = {}, {}
    # Always in the order of the symbols: the order of a sum is part of its bits.
    for symbol in symbols:
        own[symbol] = _terms(symbol, assets[symbol])
        places[symbol] = np.searchsorted(stamps, assets[symbol]["timestamp"])
        totals[:, places[symbol]] += own[symbol]
    fields = {}
    for symbol in symbols:
        others = totals[:, places[symbol]] - own[symbol]
        sums, counts = np.split(others, 2)
        means = to_half(np.where(counts > 0, sums / np.maximum(counts, 1), 0.0))
        fields[symbol] = dict(zip(CROSS_FIELDS, means, strict=True))
    return fields


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossNow:
    """The cross fields of one live stamp, and the assets of the corpus that had no bar there."""

    fields: Mapping[str, Mapping[str, Halves]]
    absent: tuple[str, ...]


def cross_now(latest: Mapping[str, Columns], symbols: Sequence[str]) -> CrossNow:
    """Cross fields of the newest stamp among the assets' last rows; `symbols` are all that a corpus has."""
    newest = max(int(columns["timestamp"][-1]) for columns in latest.values())
    present = {
        symbol: {name: columns[name][-1:] for name in ("timestamp", "ret_z", "relative_log_vol", "flags")}
        for symbol, columns in latest.items()
        if int(columns["timestamp"][-1]) == newest
    }
    return CrossNow(fields=cross_fields(present), absent=tuple(symbol for symbol in symbols if symbol not in present))


def dollar_sign(symbol: str) -> int:
    """1 where the quote rises with the dollar, -1 where it falls, 0 where there is no dollar in it."""
    name = symbol.upper()
    return int(name[:3] == "USD") - int(name[3:6] == "USD")


def _terms(symbol: str, columns: Columns) -> npt.NDArray[np.float64]:
    """What an asset adds to the sums and the counts of each field at its stamps."""
    counts = ~has_flag(columns["flags"], ANY_MASK)
    ret_z = np.clip(columns["ret_z"].astype(np.float64), -RET_Z_LIMIT, RET_Z_LIMIT)
    sign = dollar_sign(symbol)
    sums = (np.abs(ret_z), sign * ret_z, columns["relative_log_vol"].astype(np.float64))
    return np.stack([*(counts * term for term in sums), counts, counts * abs(sign), counts]).astype(np.float64)
