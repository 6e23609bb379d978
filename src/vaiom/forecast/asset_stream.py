"""The rows of one live asset, which every bar extends in constant time.

Enters: the rows of new bars, and what they read of other assets. Leaves: the asset's last rows for
a forecast. Streams are immutable: those that part share the rows before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import numpy.typing as npt

from vaiom.features.asset_state import AssetState
from vaiom.features.fields import CROSS_FIELDS
from vaiom.features.rows import RowColumns
from vaiom.forecast.bars import moment_of
from vaiom.model.incremental import KVCache

SPARE_ROWS = 512
"""Unused rows of a new buffer: copying all rows is paid once for so many bars."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AssetStream:
    """All rows of one asset, and the state of its recursions after the last bar."""

    recursion: AssetState
    columns: RowColumns
    """(bars,) each: what follows from the asset's own bars."""
    buffer: RowColumns = field(default_factory=dict)
    """What `columns` are the beginning of; unused rows have the stamp 0."""
    cross: npt.NDArray[np.float16] | None = None
    """(fields, rows): what the rows from `cross_start` on read of other assets."""
    cross_start: int = 0
    caches: list[KVCache] = field(default_factory=list)
    """The decoder's KV cache after each of the last rows, as far as it was computed."""

    @property
    def num_bars(self) -> int:
        """Number of bars taken so far."""
        return len(self.columns["timestamp"])

    @property
    def seconds(self) -> int:
        """The stored stamp of the last bar."""
        return int(self.columns["timestamp"].item(-1))

    @property
    def last(self) -> datetime:
        """The stamp of the last bar."""
        return moment_of(self.seconds)

    def extended(self, recursion: AssetState, new: RowColumns) -> AssetStream:
        """The stream after more bars, whose rows are `new`; this one stays as it is."""
        start = self.num_bars
        stop = start + len(new["timestamp"])
        buffer = self.buffer
        is_full = not buffer or stop > len(buffer["timestamp"])
        if is_full or buffer["timestamp"][start]:  # or another stream has gone on from here
            buffer = {}
            for name, column in self.columns.items():
                buffer[name] = np.zeros(stop + SPARE_ROWS, column.dtype)
                buffer[name][:start] = column
        for name, column in buffer.items():
            column[start:stop] = new[name]
        columns = {name: column[:stop] for name, column in buffer.items()}
        # A list of its own: streams that part compute other rows.
        caches = list(self.caches)
        return replace(self, recursion=recursion, columns=columns, buffer=buffer, caches=caches)

    def rows(self, number: int, *, before: int = 0) -> RowColumns:
        """At most `number` rows that end `before` rows before the last, with cross fields."""
        stop = self.num_bars - before
        start = max(0, stop - number)
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        if self.cross is not None:
            assert start >= self.cross_start
            known = self.cross[:, start - self.cross_start : stop - self.cross_start]
            columns |= zip(CROSS_FIELDS, known, strict=True)
        return columns

    def with_cross(self, fields: npt.NDArray[np.float16], changed: int, number: int) -> AssetStream:
        """The stream whose last cross fields are `fields` (fields, rows), where rows from `changed`
        on are new; the last `number` rows keep theirs, and caches of changed rows go.
        """
        start = max(0, self.num_bars - number)
        before = fields[:, :0]
        if self.cross is not None:
            stop = self.num_bars - fields.shape[1]
            before = self.cross[:, start - self.cross_start : stop - self.cross_start]
        # A new array: windows that were handed out must not change.
        cross = np.concatenate([before, fields], axis=1)
        caches = [each for each in self.caches if each.position <= changed]
        return replace(self, cross=cross, cross_start=start, caches=caches)
