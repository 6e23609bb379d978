"""Turn bars into rows, each known at its bar's close, and hold the rows of a corpus while it is
built.

A row contains nothing of the next one: targets are the next row's values, joined when a corpus is
read.
Paper: Methods, "Continuous dynamic features" and "Data-quality masks".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.corpus.store import slices_of
from vaiom.corpus.tokenizer import Tokenizer, bucket_of
from vaiom.errors import DataError
from vaiom.features import fields
from vaiom.features.calendar import LAST_SECOND, log_waits
from vaiom.features.fields import (
    BUCKETED,
    COLUMN_TYPES,
    CROSS_FIELDS,
    CROSS_SOURCES,
    EXTRA_FIELDS,
    OWN_FIELDS,
)
from vaiom.features.recursions import AssetState, Bars, Series
from vaiom.market.folder import NUMBER_COLUMNS
from vaiom.market.timeframes import step_seconds

EXACT = {value: f"{value}_exact" for _, value in BUCKETED.values()}
"""Values that are bucketed later, and the columns that keep them in float64 until then."""
CROSS_ROWS = 1 << 20
"""Rows of all assets whose cross fields are computed at once."""

_EXACT_TYPES = dict.fromkeys(EXACT.values(), "<f8")
_HEADER_BYTES = 128

Columns = dict[str, npt.NDArray[Any]]


def bars_of(frame: pl.DataFrame, where: object = None) -> Bars:
    """Sorted bars as arrays; nulls become NaN."""
    microseconds = frame["Datetime"].cast(pl.Datetime("us")).to_physical().to_numpy()
    seconds = microseconds // 1_000_000
    unstorable = (seconds * 1_000_000 != microseconds) | (seconds < 0) | (seconds > LAST_SECOND)
    if unstorable.any():
        row = int(unstorable.argmax())
        problem, where = "a bar's stamp cannot be stored", f"{where}, row {row + 1}"
        expected, got = "whole seconds between 1970 and 2106", frame["Datetime"][row]
        fix = (
            "leave the bar out, or check how its stamp was parsed; `vaiom data resample` makes "
            "whole seconds"
        )
        raise DataError(problem, where=where, expected=expected, got=got, fix=fix)
    return Bars(seconds, *(frame[name].cast(pl.Float64).to_numpy() for name in NUMBER_COLUMNS))


def rows_of(bars: Bars, state: AssetState) -> tuple[Columns, AssetState]:
    """Rows of bars after `state`, in float64 with NaN where undefined, as the fit needs them, and
    the state after.
    """
    blocks = list(blocks_of(bars, state))
    if len(blocks) == 1:
        return blocks[0]
    return {
        name: np.concatenate([columns[name] for columns, _ in blocks]) for name in blocks[0][0]
    }, blocks[-1][1]


def blocks_of(bars: Bars, state: AssetState) -> Iterator[tuple[Columns, AssetState]]:
    """Rows in blocks that fit a processor's cache, each with the state after it."""
    for start in range(0, np.size(bars.seconds) or 1, fields.BLOCK_ROWS):
        block = bars
        if isinstance(bars.seconds, np.ndarray):
            block = Bars._make(column[start : start + fields.BLOCK_ROWS] for column in bars)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            series = Series(block, state)
            columns, state = fields.columns_of(series), series.after
        yield columns, state


class RowMaker:
    """Makes the rows that one model reads; recursions that none of its fields needs do not run."""

    def __init__(self, input_fields: Sequence[str], tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.beyond = tuple(name for name in EXTRA_FIELDS if name in input_fields)
        """The fields beyond the paper's that the model reads."""
        self.extra = any(name in OWN_FIELDS for name in self.beyond)
        self.cross = any(name in CROSS_FIELDS for name in self.beyond)
        self.step = step_seconds(tokenizer.timeframe)

    def start(self) -> AssetState:
        """The state before an asset's first bar."""
        return AssetState.empty(timedelta(seconds=self.step) if self.extra else None)

    def __call__(
        self, bars: Bars, state: AssetState | None = None, last: int | None = None
    ) -> tuple[Columns, AssetState]:
        """Stored columns of bars after `state` and the stamp `last`, and the state after them."""
        rows, state = rows_of(bars, state or self.start())
        edges = self.tokenizer.edges
        columns = fields.stored(rows)
        columns |= {
            name: bucket_of(edges[of], rows[value]) for name, (of, value) in BUCKETED.items()
        }
        if not isinstance(bars.seconds, np.ndarray):
            columns = {name: np.array([value]) for name, value in columns.items()}
        if "log_wait" in self.beyond:
            columns["log_wait"] = log_waits(columns["timestamp"], self.step, last)
        return columns, state


def meta_of(tokenizer: Tokenizer, symbol: str) -> npt.NDArray[np.int64]:
    """(3,): asset id, class id, timeframe id."""
    return np.array([tokenizer.asset_id(symbol), tokenizer.class_id(symbol), 0], np.int64)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of all assets, one asset after another; processes may write different rows of the files
    concurrently.
    """

    slices: Mapping[str, slice]
    types: Mapping[str, str]
    """Of its columns; values of other columns are not kept."""
    folder: Path | None
    arrays: dict[str, npt.NDArray[Any]]

    @classmethod
    def create(
        cls,
        sizes: Mapping[str, int],
        folder: Path | None = None,
        names: Iterable[str] = tuple(COLUMN_TYPES),
    ) -> Rows:
        """Allocate these columns for so many bars of each asset, in memory or in files."""
        count = sum(sizes.values())
        types = {name: COLUMN_TYPES[name] for name in names} | _EXACT_TYPES
        if folder is None:
            arrays = {name: np.empty(count, dtype) for name, dtype in types.items()}
            return cls(slices_of(sizes), types, None, arrays)
        for name, dtype in types.items():
            with (folder / f"{name}.npy").open(
                "wb"
            ) as stream:  # not mapped: some file systems only map to read
                header = {"descr": dtype, "fortran_order": False, "shape": (count,)}
                np.lib.format.write_array_header_1_0(stream, header)
                assert stream.tell() == _HEADER_BYTES
        return cls(slices_of(sizes), types, folder, {})

    @property
    def stored(self) -> list[str]:
        """The columns that the corpus keeps."""
        return [name for name in COLUMN_TYPES if name in self.types]

    def read(self, names: Iterable[str], inside: slice) -> dict[str, npt.NDArray[Any]]:
        """Some columns of some rows."""
        if self.folder is None:
            return {name: self.arrays[name][inside] for name in names}
        out = {name: np.empty(inside.stop - inside.start, self.types[name]) for name in names}
        for name, values in out.items():
            with (self.folder / f"{name}.npy").open("rb") as stream:
                stream.seek(_HEADER_BYTES + inside.start * values.itemsize)
                stream.readinto(values.data)
        return out

    def write(self, start: int, columns: fields.Columns) -> None:
        """Write columns from row `start` on."""
        for name, values in columns.items():
            if name not in self.types:
                continue
            if self.folder is None:
                self.arrays[name][start : start + len(values)] = values
                continue
            array = np.ascontiguousarray(values, self.types[name])
            with (self.folder / f"{name}.npy").open("r+b") as stream:
                stream.seek(_HEADER_BYTES + start * array.itemsize)
                stream.write(array.data)  # NumPy's writer does not report a full disk

    def write_cross(self) -> None:
        """Compute the cross fields, for a block of stamps of all assets at a time."""
        count = max((rows.stop for rows in self.slices.values()), default=0)
        stamps = np.unique(self.read(["timestamp"], slice(0, count))["timestamp"])
        size = max(1, CROSS_ROWS // len(self.slices))
        places = {symbol: rows.start for symbol, rows in self.slices.items()}
        for last in (*stamps[size - 1 :: size], *stamps[-1:]):
            assets = {}
            for symbol, rows in self.slices.items():
                # An asset's stamps are unique: at most as many of its rows as a block has stamps
                # are in it.
                ahead = slice(places[symbol], min(places[symbol] + size, rows.stop))
                columns = self.read(("timestamp", *CROSS_SOURCES), ahead)
                inside = int(columns["timestamp"].searchsorted(last, "right"))
                assets[symbol] = {name: column[:inside] for name, column in columns.items()}
            for symbol, columns in fields.cross_columns(assets).items():
                self.write(places[symbol], columns)
                places[symbol] += len(columns[CROSS_FIELDS[0]])

    def sha256(self) -> str:
        """Hash of the bytes of a corpus's columns, in file order."""
        assert self.folder
        digest = hashlib.sha256()
        for name in self.stored:
            with (self.folder / f"{name}.npy").open("rb") as stream:
                stream.seek(_HEADER_BYTES)
                hashlib.file_digest(stream, lambda: digest)
        return digest.hexdigest()
