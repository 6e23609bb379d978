"""The arrays that a model reads, made of stored columns.

Enters: stored columns of rows, and the ids of their assets. Leaves: the paper's schemas, or the
fields of one model in its order, unclipped. Paper: Methods, "Input Representations".
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from vaiom.features.calendar import calendar_channels, calendar_fields
from vaiom.features.fields import (
    ANY_MASK,
    BLOCK_ROWS,
    BUCKETED,
    CONT_FIELDS,
    DISC_FIELDS,
    MASK_BITS,
    META_FIELDS,
    PAPER_COLUMNS,
    has_flag,
)
from vaiom.features.typing import Columns, Shorts, Singles

_FIRST_MASK = CONT_FIELDS.index(f"mask_{next(iter(MASK_BITS))}")
_PLACES = {name: index for index, name in enumerate(CONT_FIELDS)}
_FLAGS = np.arange(256, dtype=np.uint8)
_MASKS = [has_flag(_FLAGS, bit) for bit in MASK_BITS.values()]
_MASK_CHANNELS = np.stack([*_MASKS, has_flag(_FLAGS, ANY_MASK)], axis=1).astype(np.float32)
"""Row f holds the six mask channels of a row whose flags are f."""


class InputConfig(Protocol):
    """The part of a model's configuration that determines its inputs."""

    @property
    def input(self) -> str:
        """The schema: cont or disc."""

    @property
    def input_fields(self) -> tuple[str, ...]:
        """The fields in the model's order."""


def inputs_of(config: InputConfig, columns: Columns, meta: npt.NDArray[np.integer]) -> Singles:
    """(N, F) unclipped: the fields that a model reads, in its order."""
    fields = config.input_fields
    if config.input == "disc":
        chosen = [DISC_FIELDS.index(name) for name in fields]
        return discrete_inputs(columns, meta)[:, chosen].astype(np.float32)
    continuous = continuous_inputs(columns)
    if fields == CONT_FIELDS:
        return continuous
    out = np.empty((len(continuous), len(fields)), np.float32)
    for index, name in enumerate(fields):
        place = _PLACES.get(name)
        out[:, index] = columns[name] if place is None else continuous[:, place]
    return out


def continuous_inputs(columns: Columns) -> Singles:
    """(N, 25) unclipped: ContIn."""
    num_rows = len(columns["timestamp"])
    out = np.empty((num_rows, len(CONT_FIELDS)), np.float32)
    for start in range(0, len(out), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        part = {name: column[block] for name, column in columns.items()}
        fill_continuous(part, out[block])
    return out


def fill_continuous(columns: Columns, out: Singles) -> None:
    """Fill `out` (N, 25); fastest for blocks of rows that fit a processor's cache."""
    for index, name in enumerate(PAPER_COLUMNS):
        out[:, index] = columns[name]
    calendar_channels(columns["timestamp"], out[:, len(PAPER_COLUMNS) : _FIRST_MASK])
    masks = _MASK_CHANNELS.take(columns["flags"], axis=0, mode="clip")
    out[:, _FIRST_MASK:] = masks


def discrete_inputs(columns: Columns, meta: npt.NDArray[np.integer]) -> Shorts:
    """(N, 15) DiscIn, `meta` (3,) of one asset or (N, 3); under any mask the three bucket fields
    are 0.
    """
    num_rows = len(columns["timestamp"])
    out = np.empty((num_rows, len(DISC_FIELDS)), np.int16)
    masked = has_flag(columns["flags"], ANY_MASK)
    for index, name in enumerate(BUCKETED):
        out[:, index] = columns[name] * ~masked
    first_calendar = len(BUCKETED) + len(META_FIELDS)
    out[:, len(BUCKETED) : first_calendar] = meta
    out[:, first_calendar:-1] = calendar_fields(columns["timestamp"])
    out[:, -1] = masked
    return out
