"""The columns of a corpus while it is built, in memory or in files.

Enters: rows of each asset, in any order. Leaves: the columns of all assets, one after another, with
the fields that read other assets, and the hash of their bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaiom.corpus.store import slices_of
from vaiom.features.cross import cross_columns
from vaiom.features.fields import BUCKETED, COLUMN_TYPES, CROSS_FIELDS, CROSS_SOURCES
from vaiom.features.typing import AnyArray, Columns

EXACT = {value: f"{value}_exact" for _, value in BUCKETED.values()}
"""Values that are bucketed later, and the columns that keep them in float64 until then."""
CROSS_ROWS = 1 << 20
"""Rows of all assets whose cross fields are computed at once."""

_EXACT_TYPES = dict.fromkeys(EXACT.values(), "<f8")
_HEADER_BYTES = 128  # of an .npy file of this format


@dataclass(frozen=True, eq=False)
class CorpusWriter:
    """Rows of all assets, one asset after another; processes may write different rows of the files
    concurrently.
    """

    slices: Mapping[str, slice]
    types: Mapping[str, str]
    """Of its columns; values of other columns are not kept."""
    folder: Path | None
    arrays: dict[str, AnyArray]
    """The columns, if they are in memory."""

    @classmethod
    def create(
        cls,
        sizes: Mapping[str, int],
        folder: Path | None = None,
        names: Iterable[str] = tuple(COLUMN_TYPES),
    ) -> CorpusWriter:
        """Allocate these columns for so many bars of each asset, in memory or in files."""
        count = sum(sizes.values())
        types = {name: COLUMN_TYPES[name] for name in names} | _EXACT_TYPES
        writer = cls(slices_of(sizes), types, folder, {})
        for name, dtype in types.items():
            if folder is None:
                writer.arrays[name] = np.empty(count, dtype)
            else:
                _write_header(folder / f"{name}.npy", dtype, count)
        return writer

    @property
    def stored(self) -> list[str]:
        """The columns that the corpus keeps."""
        return [name for name in COLUMN_TYPES if name in self.types]

    def read(self, name: str, rows: slice) -> AnyArray:
        """A column of some rows."""
        if self.folder is None:
            return self.arrays[name][rows]
        values = np.empty(rows.stop - rows.start, self.types[name])
        with (self.folder / f"{name}.npy").open("rb") as stream:
            stream.seek(_HEADER_BYTES + rows.start * values.itemsize)
            stream.readinto(values.data)
        return values

    def write(self, start: int, columns: Columns) -> None:
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

    def write_cross(self, rows_at_once: int = CROSS_ROWS) -> None:
        """Compute the cross fields, for a block of stamps of all assets at a time."""
        every_row = slice(0, max(rows.stop for rows in self.slices.values()))
        stamps = np.unique(self.read("timestamp", every_row))
        block = max(1, rows_at_once // len(self.slices))
        starts = {symbol: rows.start for symbol, rows in self.slices.items()}
        for last in (*stamps[block - 1 :: block], *stamps[-1:]):
            assets = {
                symbol: self._sources_through(last, starts[symbol], rows.stop, block)
                for symbol, rows in self.slices.items()
            }
            for symbol, columns in cross_columns(assets).items():
                self.write(starts[symbol], columns)
                starts[symbol] += len(columns[CROSS_FIELDS[0]])

    def _sources_through(self, last: np.uint32, start: int, stop: int, most: int) -> Columns:
        """What others read of an asset's rows from `start` through a stamp, `most` of them at
        most: an asset's stamps are unique.
        """
        ahead = slice(start, min(start + most, stop))
        num_rows = int(self.read("timestamp", ahead).searchsorted(last, "right"))
        rows = slice(start, start + num_rows)
        return {name: self.read(name, rows) for name in ("timestamp", *CROSS_SOURCES)}

    def sha256(self) -> str:
        """Hash of the bytes of a corpus's columns, in file order."""
        assert self.folder
        digest = hashlib.sha256()
        for name in self.stored:
            with (self.folder / f"{name}.npy").open("rb") as stream:
                stream.seek(_HEADER_BYTES)
                hashlib.file_digest(stream, lambda: digest)
        return digest.hexdigest()


def _write_header(file: Path, dtype: str, count: int) -> None:
    header = {"descr": dtype, "fortran_order": False, "shape": (count,)}
    with file.open("wb") as stream:  # not mapped: some file systems only map to read
        np.lib.format.write_array_header_1_0(stream, header)
        assert stream.tell() == _HEADER_BYTES
