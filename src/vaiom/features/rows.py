"""Bars become stored columns, a history and one live bar to the same bits.

Enters: bars of one asset and its state before them. Leaves: columns (N,) known at each bar's close,
and the state after. A row contains nothing of the next one: targets are the next row's values,
joined when a corpus is read. Paper: Methods, "Continuous dynamic features" and "Data-quality
masks".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

import numpy as np
import polars as pl

from vaiom.errors import DataError
from vaiom.features.asset_state import AssetState
from vaiom.features.calendar import LAST_SECOND, log_waits
from vaiom.features.fields import (
    BAD_GAP,
    BAD_RETURN,
    BLOCK_ROWS,
    BUCKETED,
    COLUMN_TYPES,
    CROSS_FIELDS,
    EXTRA_FIELDS,
    MASK_BITS,
    MASKS,
    OWN,
    OWN_FIELDS,
    PAPER_COLUMNS,
    bucket_of,
    to_half,
)
from vaiom.features.quantities import BarArrays, BarQuantities
from vaiom.features.recursions import where
from vaiom.features.typing import AnyArray, Columns, Floats
from vaiom.market.folder import NUMBER_COLUMNS
from vaiom.market.timeframes import step_seconds

_MICROSECONDS = 1_000_000

RowColumns = dict[str, AnyArray]
"""Columns of rows that are being made."""


def bars_of(frame: pl.DataFrame, where: object = None) -> BarArrays:
    """Sorted bars as arrays; nulls become NaN. `where` names them in an error."""
    microseconds = frame["Datetime"].cast(pl.Datetime("us")).to_physical().to_numpy()
    seconds = microseconds // _MICROSECONDS
    is_whole = seconds * _MICROSECONDS == microseconds
    unstorable = ~is_whole | (seconds < 0) | (seconds > LAST_SECOND)
    if unstorable.any():
        row = int(unstorable.argmax())
        raise DataError(
            "a bar's stamp cannot be stored",
            where=f"{where}, row {row + 1}",
            expected="whole seconds between 1970 and 2106",
            got=frame["Datetime"][row],
            fix="leave the bar out, or check how its stamp was parsed; `vaiom data resample` makes "
            "whole seconds",
        )
    numbers = [frame[name].cast(pl.Float64).to_numpy() for name in NUMBER_COLUMNS]
    return BarArrays(seconds, *numbers)


def rows_of(
    bars: BarArrays, state: AssetState, block_rows: int = BLOCK_ROWS
) -> tuple[RowColumns, AssetState]:
    """Columns of all bars after `state` in float64, NaN where undefined, as a fit needs them."""
    blocks = list(blocks_of(bars, state, block_rows))
    first, after = blocks[0]
    if len(blocks) == 1:
        return first, after
    joined = {name: np.concatenate([columns[name] for columns, _ in blocks]) for name in first}
    return joined, blocks[-1][1]


def blocks_of(
    bars: BarArrays, state: AssetState, block_rows: int = BLOCK_ROWS
) -> Iterator[tuple[RowColumns, AssetState]]:
    """The same in blocks that fit a processor's cache, each with the state after it."""
    if not isinstance(bars.seconds, np.ndarray):
        yield _columns_of(bars, state)
        return
    for start in range(0, len(bars.seconds) or 1, block_rows):
        block = BarArrays._make(column[start : start + block_rows] for column in bars)
        columns, state = _columns_of(block, state)
        yield columns, state


def _columns_of(bars: BarArrays, state: AssetState) -> tuple[RowColumns, AssetState]:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        quantities = BarQuantities(bars, state)
        columns: RowColumns = {name: formula(quantities) for name, formula in PAPER_COLUMNS.items()}
        flags = ~quantities.clean * BAD_RETURN | ~quantities.clean_gap * BAD_GAP
        for name, bit in MASK_BITS.items():
            flags |= MASKS[name](quantities) * bit
        columns["timestamp"] = bars.seconds
        columns["log_ret"] = quantities.log_ret
        columns["flags"] = flags
        if state.slots is not None:
            values = to_half(np.array([formula(quantities) for formula in OWN.values()]))
            columns |= zip(OWN_FIELDS, values, strict=True)
    return columns, quantities.after


def stored(columns: Columns) -> RowColumns:
    """The paper's columns as stored: non-finite inputs become 0, an undefined return stays NaN."""
    out = dict(columns)
    for name in PAPER_COLUMNS:
        finite = where(np.isfinite(out[name]), out[name], 0.0)
        out[name] = finite.astype(COLUMN_TYPES[name])
    out["timestamp"] = out["timestamp"].astype(COLUMN_TYPES["timestamp"])
    return out


class BarFeatures:
    """Makes the rows that one model reads; recursions that none of its fields needs do not run.

    Parameters
    ----------
    input_fields : the model's fields
    edges : bucket edges by map, with the infinities
    timeframe : the length of a bar, such as 1h
    """

    def __init__(
        self, input_fields: Sequence[str], edges: Mapping[str, Floats], timeframe: str
    ) -> None:
        self.edges = edges
        self.extra_fields = tuple(name for name in EXTRA_FIELDS if name in input_fields)
        """The fields beyond the paper's that the model reads."""
        self.own_fields = tuple(name for name in OWN_FIELDS if name in self.extra_fields)
        """Those of them that read the asset's own bars."""
        self.needs_means = bool(self.own_fields)
        """Whether a field needs recursions beyond the paper's."""
        self.reads_others = any(name in CROSS_FIELDS for name in self.extra_fields)
        """Whether a field reads other assets, which the caller adds."""
        self.step = step_seconds(timeframe)
        """Seconds of a bar."""

    def start(self) -> AssetState:
        """The state before an asset's first bar."""
        return AssetState.empty(timedelta(seconds=self.step) if self.needs_means else None)

    def __call__(
        self, bars: BarArrays, state: AssetState | None = None, last: int | None = None
    ) -> tuple[RowColumns, AssetState]:
        """Stored columns of the bars after `state` and the stamp `last`, and the state after
        them.
        """
        rows, after = rows_of(bars, state or self.start())
        columns = stored(rows)
        for name, (edges, value) in BUCKETED.items():
            columns[name] = bucket_of(self.edges[edges], rows[value])
        if not isinstance(bars.seconds, np.ndarray):
            columns = {name: np.array([value]) for name, value in columns.items()}
        if "log_wait" in self.extra_fields:
            columns["log_wait"] = log_waits(columns["timestamp"], self.step, last)
        return columns, after
