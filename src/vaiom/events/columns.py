"""The columns of a corpus while it is made: arrays in memory, or files of which each use holds a part.

Enters: how many rows each asset has, then values of some of them. Leaves: the arrays, or the files of a corpus folder.
NumPy alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.events.corpus import slices_of
from vaiom.events.fields import BUCKETED, COLUMN_TYPES, CROSS_FIELDS, CROSS_SOURCES, Columns, cross_columns

EXACT = {value: f"{value}_exact" for _, value in BUCKETED.values()}
"""Values that buckets are taken from, and the columns that hold their 64 bits until then."""
CROSS_ROWS = 1 << 20
"""Rows of all assets together whose cross fields are made at once."""

_TYPES = {**COLUMN_TYPES, **dict.fromkeys(EXACT.values(), "<f8")}
_HEADER_BYTES = 128


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of all assets, one asset after another; processes may write different ones of the same files at once."""

    slices: Mapping[str, slice]
    folder: Path | None
    arrays: dict[str, npt.NDArray[Any]]

    @classmethod
    def create(cls, sizes: Mapping[str, int], folder: Path | None = None) -> Rows:
        """Rows of so many bars of each asset, in memory or in the files of a folder."""
        count = sum(sizes.values())
        if folder is None:
            return cls(slices_of(sizes), None, {name: np.empty(count, dtype) for name, dtype in _TYPES.items()})
        for name, dtype in _TYPES.items():
            with (folder / f"{name}.npy").open("wb") as stream:
                header = {"descr": dtype, "fortran_order": False, "shape": (count,)}
                np.lib.format.write_array_header_1_0(stream, header)
                assert stream.tell() == _HEADER_BYTES
        return cls(slices_of(sizes), folder, {})

    def read(self, names: Iterable[str], inside: slice) -> dict[str, npt.NDArray[Any]]:
        """Some columns of some rows."""
        if self.folder is None:
            return {name: self.arrays[name][inside] for name in names}
        out = {}
        for name in names:
            dtype, file = np.dtype(_TYPES[name]), self.folder / f"{name}.npy"
            out[name] = np.empty(inside.stop - inside.start, dtype)
            with file.open("rb") as stream:
                stream.seek(_HEADER_BYTES + inside.start * dtype.itemsize)
                stream.readinto(out[name].data)
        return out

    def write(self, start: int, columns: Columns) -> None:
        """Columns of the rows from `start` on."""
        for name, values in columns.items():
            if self.folder is None:
                self.arrays[name][start : start + len(values)] = values
                continue
            array = np.ascontiguousarray(values, _TYPES[name])
            with (self.folder / f"{name}.npy").open("r+b") as stream:
                stream.seek(_HEADER_BYTES + start * array.itemsize)
                stream.write(array.data)  # NumPy's own writer does not say that the disk is full

    def write_cross(self) -> None:
        """Make the fields that need the other assets, for some stamps of all assets at a time."""
        count = max((rows.stop for rows in self.slices.values()), default=0)
        stamps = np.unique(self.read(["timestamp"], slice(0, count))["timestamp"])
        size = max(1, CROSS_ROWS // len(self.slices))
        places = {symbol: rows.start for symbol, rows in self.slices.items()}
        for last in (*stamps[size - 1 :: size], *stamps[-1:]):
            assets = {}
            for symbol, rows in self.slices.items():
                # Stamps of an asset do not repeat: no more of its rows than a block has stamps are in it.
                ahead = slice(places[symbol], min(places[symbol] + size, rows.stop))
                columns = self.read(("timestamp", *CROSS_SOURCES), ahead)
                inside = int(columns["timestamp"].searchsorted(last, "right"))
                assets[symbol] = {name: column[:inside] for name, column in columns.items()}
            for symbol, columns in cross_columns(assets).items():
                self.write(places[symbol], columns)
                places[symbol] += len(columns[CROSS_FIELDS[0]])

    def sha256(self) -> str:
        """Of the bytes of all columns of a corpus in files, one after another."""
        assert self.folder
        digest = hashlib.sha256()
        for name in COLUMN_TYPES:
            with (self.folder / f"{name}.npy").open("rb") as stream:
                stream.seek(_HEADER_BYTES)
                hashlib.file_digest(stream, lambda: digest)
        return digest.hexdigest()
