"""What a row reads of the other assets at the same stamp, by the fields' `others` formulas.

Enters: stored columns of all assets. Leaves: the cross fields as stored, 0 where no other asset
counts. They depend only on the assets with a bar at that stamp, so that histories and live bars
agree; an append recomputes them where late bars of an asset arrive. Ours, not the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from vaiom.features.events import is_readable
from vaiom.features.fields import BLOCK_ROWS, CROSS, CROSS_FIELDS, CROSS_SOURCES, to_half
from vaiom.features.typing import AnyArray, Columns, Halves
from vaiom.market.symbols import dollar_sign

OTHERS_LIMIT = 10.0
"""Moves of other assets are clipped to this many sigmas, so that one bad print does not reach every
asset.
"""

CrossColumns = dict[str, Halves]


def cross_columns(
    assets: Mapping[str, Columns],
    known: Sequence[str] | None = None,
    block_stamps: int = BLOCK_ROWS,
) -> dict[str, CrossColumns]:
    """The stored cross fields per symbol, read from the other `known` assets at each stamp."""
    own_stamps = {symbol: columns["timestamp"] for symbol, columns in assets.items()}
    fields_of = {}
    for symbol, stamps in own_stamps.items():
        shape = (len(CROSS_FIELDS), len(stamps))
        fields_of[symbol] = np.empty(shape, np.float16)
    all_stamps = np.concatenate([*own_stamps.values()])
    every_stamp = np.unique(all_stamps)
    for start in range(0, len(every_stamp), block_stamps):
        block = every_stamp[start : start + block_stamps]
        for symbol, means in read_others(assets, known, block).items():
            stamps = own_stamps[symbol]
            first = stamps.searchsorted(block[0])
            stop = stamps.searchsorted(block[-1], "right")
            place = block.searchsorted(stamps[first:stop])
            fields_of[symbol][:, first:stop] = means.take(place, axis=1, mode="clip")
    out = {}
    for symbol, rows in fields_of.items():
        out[symbol] = dict(zip(CROSS_FIELDS, rows, strict=True))
    return out


def read_others(
    assets: Mapping[str, Columns], known: Sequence[str] | None, stamps: npt.NDArray[np.uint32]
) -> dict[str, Halves]:
    """(cross fields, stamps) for each asset: what a row at these stamps reads of the others.

    An asset without a bar since the first stamp is left out. Each field is a mean of the others'
    values, weighted, so an asset's own part is taken off the sum of all.
    """
    # Always in symbol order: the order of a sum affects its bits.
    symbols = [symbol for symbol in sorted(assets) if _reaches(assets[symbol], stamps[0])]
    at_stamps = _rows_at([assets[symbol] for symbol in symbols], stamps)
    # Masked, absent and unknown assets add nothing.
    is_present = at_stamps["timestamp"] == stamps
    is_counted = is_present & is_readable(at_stamps["flags"])
    counts = is_counted.astype(np.float64)
    if known is not None:
        is_unknown = [symbol not in known for symbol in symbols]
        counts[is_unknown] = 0
    ret_z = np.maximum(at_stamps["ret_z"], -OTHERS_LIMIT)
    ret_z = np.minimum(ret_z, OTHERS_LIMIT)
    signs = [[dollar_sign(symbol)] for symbol in symbols]
    dollar = np.array(signs)
    shape = (len(symbols), len(CROSS), len(stamps))
    sums = np.empty(shape)
    weights = np.empty(shape)
    for index, formula in enumerate(CROSS.values()):
        values, weight = formula(ret_z, at_stamps["relative_log_vol"], dollar)
        sums[:, index] = counts * values
        weights[:, index] = counts * weight
    sum_of_others = sum(sums) - sums
    weight_of_others = sum(weights) - weights
    means = sum_of_others / np.maximum(weight_of_others, 1)
    means = np.where(weight_of_others > 0, means, 0.0)
    return dict(zip(symbols, to_half(means), strict=True))


def _rows_at(assets: Sequence[Columns], stamps: npt.NDArray[np.uint32]) -> dict[str, AnyArray]:
    """(assets, stamps) of each column that others read: an asset's row at or after the stamp."""
    places = [columns["timestamp"].searchsorted(stamps) for columns in assets]
    out = {}
    for name in ("timestamp", *CROSS_SOURCES):
        taken = []
        for columns, place in zip(assets, places, strict=True):
            taken.append(columns[name].take(place, mode="clip"))
        rows = np.array(taken)
        is_float = rows.dtype.kind == "f"
        out[name] = rows.astype(np.float64) if is_float else rows
    return out


def _reaches(columns: Columns, stamp: np.uint32) -> bool:
    """Whether an asset has a bar at or after a stamp."""
    stamps = columns["timestamp"]
    return bool(len(stamps) and stamps[-1] >= stamp)
