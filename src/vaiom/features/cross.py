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
from vaiom.features.typing import AnyArray, Columns, Floats, Halves
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
    out = {
        symbol: np.empty((len(CROSS_FIELDS), len(columns["timestamp"])), np.float16)
        for symbol, columns in assets.items()
    }
    stamps = np.unique(np.concatenate([columns["timestamp"] for columns in assets.values()]))
    for start in range(0, len(stamps), block_stamps):
        block = stamps[start : start + block_stamps]
        for symbol, means in read_others(assets, known, block).items():
            own_stamps = assets[symbol]["timestamp"]
            first = own_stamps.searchsorted(block[0])
            rows = slice(first, own_stamps.searchsorted(block[-1], "right"))
            at = block.searchsorted(own_stamps[rows])
            out[symbol][:, rows] = means.take(at, axis=1, mode="clip")
    return {symbol: dict(zip(CROSS_FIELDS, rows, strict=True)) for symbol, rows in out.items()}


def read_others(
    assets: Mapping[str, Columns], known: Sequence[str] | None, stamps: npt.NDArray[np.uint32]
) -> dict[str, Halves]:
    """(cross fields, stamps) for each asset: what a row at these stamps reads of the others.

    An asset without a bar since the first stamp is left out. Each field is a mean of the others'
    values, weighted, so an asset's own part is taken off the sum of all.
    """
    # Always in symbol order: the order of a sum affects its bits.
    symbols = [symbol for symbol in sorted(assets) if _reaches(assets[symbol], stamps[0])]
    places = [assets[symbol]["timestamp"].searchsorted(stamps) for symbol in symbols]

    def gathered(name: str) -> AnyArray:
        """(assets, stamps) of a column, each asset's row at or after the stamp."""
        rows = [
            assets[symbol][name].take(place, mode="clip")
            for symbol, place in zip(symbols, places, strict=True)
        ]
        return np.array(rows)

    flags, ret_z, relative_log_vol = map(gathered, CROSS_SOURCES)
    # Masked, unknown and absent assets add nothing.
    counts = (is_readable(flags) & (gathered("timestamp") == stamps)).astype(np.float64)
    for number, symbol in enumerate(symbols):
        if known is not None and symbol not in known:
            counts[number] = 0
    capped = np.minimum(np.maximum(ret_z.astype(np.float64), -OTHERS_LIMIT), OTHERS_LIMIT)
    vol = relative_log_vol.astype(np.float64)
    dollar = np.array([dollar_sign(symbol) for symbol in symbols])[:, None]
    # (assets, sums and weights, fields, stamps)
    parts = np.empty((len(symbols), 2, len(CROSS), len(stamps)))
    for index, formula in enumerate(CROSS.values()):
        values, weight = formula(capped, vol, dollar)
        np.multiply(counts, values, out=parts[:, 0, index])
        np.multiply(counts, weight, out=parts[:, 1, index])
    of_others: Floats = np.subtract(sum(parts), parts, out=parts)
    sums, weights = of_others.swapaxes(0, 1)
    means = np.where(weights > 0, sums / np.maximum(weights, 1), 0.0)
    return dict(zip(symbols, to_half(means), strict=True))


def _reaches(columns: Columns, stamp: np.uint32) -> bool:
    """Whether an asset has a bar at or after a stamp."""
    stamps = columns["timestamp"]
    return bool(len(stamps) and stamps[-1] >= stamp)
