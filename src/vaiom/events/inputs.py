"""The input schemas assembled from what is stored of a row: 25 continuous, 15 discrete, 3 metadata, the extra fields.

Enters: stored columns. Leaves: arrays whose columns follow `schema`. NumPy alone.
Paper: Methods, "Input Representations"; masked rows keep their metadata and calendar.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.events.calendar import calendar_channels, calendar_fields, log_waits
from vaiom.events.schema import (
    CONT_FIELDS,
    DISC_FIELDS,
    DYNAMIC_FIELDS,
    EXTRA_FIELDS,
    MASK_NAMES,
    META_FIELDS,
    STORED_EXTRA_FIELDS,
)

# Bits of the stored flags: the five masks in the order of the schema, then whether the row's own return and gap
# may serve as the target of the row before it.
MASK_BITS = {name: np.uint8(1 << bit) for bit, name in enumerate(MASK_NAMES)}
ANY_MASK = np.uint8((1 << len(MASK_NAMES)) - 1)
BAD_RETURN = np.uint8(1 << 5)
BAD_GAP = np.uint8(1 << 6)

BLOCK_ROWS = 1 << 15
"""Rows that are worked on together: their columns stay in a processor's cache."""

_FIRST_MASK = CONT_FIELDS.index(f"mask_{MASK_NAMES[0]}")
_FIRST_CALENDAR = DISC_FIELDS.index("years_since_2000")

# Row f holds the six mask channels of a row whose flags are f.
_MASK_CHANNELS = np.stack(
    [(np.arange(256, dtype=np.uint8) & bit) != 0 for bit in (*MASK_BITS.values(), ANY_MASK)], axis=1
).astype(np.float32)

EXTRA_LIMIT = 1000.0
"""Extra fields end here: far beyond what a model reads, and far inside float16."""

Columns = Mapping[str, npt.NDArray[Any]]
Halves = npt.NDArray[np.float16]


def has_flag(flags: npt.NDArray[np.uint8], bits: np.uint8) -> npt.NDArray[np.bool_]:
    """Rows where any of the bits is set."""
    hit: npt.NDArray[np.bool_] = (flags & bits) != 0
    return hit


def timestamps_of(columns: Columns) -> npt.NDArray[np.datetime64]:
    """Stored seconds as naive timestamps."""
    return columns["timestamp"].astype(np.int64).astype("datetime64[s]")


def continuous_inputs(columns: Columns) -> npt.NDArray[np.float32]:
    """(N, 25) unclipped."""
    out = np.empty((len(columns["timestamp"]), len(CONT_FIELDS)), np.float32)
    for start in range(0, len(out), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        fill_continuous({name: column[block] for name, column in columns.items()}, out[block])
    return out


def fill_continuous(columns: Columns, out: npt.NDArray[np.float32]) -> None:
    """Fill `out` (N, 25); best called for blocks of rows that stay in a processor's cache."""
    for index, name in enumerate(DYNAMIC_FIELDS):
        out[:, index] = columns["sigma20" if name == "sigma_through_t" else name]
    calendar_channels(columns["timestamp"], out[:, len(DYNAMIC_FIELDS) : _FIRST_MASK])
    out[:, _FIRST_MASK:] = _MASK_CHANNELS.take(columns["flags"], axis=0, mode="clip")


def to_half(values: npt.NDArray[np.float64]) -> Halves:
    """What is stored of an extra field: 0 where undefined, bounded, float16."""
    defined = np.where(np.isfinite(values), values, 0.0)
    return np.clip(defined, -EXTRA_LIMIT, EXTRA_LIMIT).astype(np.float16)


def extra_inputs(columns: Columns, asset_slices: Iterable[slice], step: int) -> npt.NDArray[np.float32]:
    """(N, extra fields) unclipped, of all assets, whose rows lie at `asset_slices`; `step` is a bar in seconds."""
    out = np.empty((len(columns["timestamp"]), len(EXTRA_FIELDS)), np.float32)
    for index, name in enumerate(STORED_EXTRA_FIELDS):
        out[:, index] = columns[name]
    for rows in asset_slices:
        out[rows, -1] = log_waits(columns["timestamp"][rows], step)
    return out


def discrete_inputs(columns: Columns, meta: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """(N, 15); the three bucket fields are 0 under any mask."""
    out = np.empty((len(meta), len(DISC_FIELDS)), np.int16)
    unmasked = ~has_flag(columns["flags"], ANY_MASK)
    for index, name in enumerate(("return_bucket", "gap_bucket", "vol_regime")):
        out[:, index] = columns[name] * unmasked
    out[:, 3 : 3 + len(META_FIELDS)] = meta
    out[:, _FIRST_CALENDAR:-1] = calendar_fields(columns["timestamp"])
    out[:, -1] = ~unmasked
    return out
