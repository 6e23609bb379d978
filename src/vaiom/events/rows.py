"""One asset's bars as rows: every number a row carries, known at the row's own time.

Enters: bars that follow a state. Leaves: float64 rows, the state after them, and, given a tokenizer, the columns a
corpus stores. A row holds nothing of the next one: targets are the next row's own values, joined when a corpus is read.
Paper: Methods, "Continuous dynamic features" and "Data-quality masks".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.errors import DataError
from vaiom.events.buckets import bucket_of
from vaiom.events.calendar import LAST_SECOND
from vaiom.events.inputs import ANY_MASK, BAD_GAP, BAD_RETURN, BLOCK_ROWS, MASK_BITS, fill_continuous, has_flag
from vaiom.events.masks import bad_gap, bad_return, row_masks
from vaiom.events.scales import Floats, Scales, ScaleState, run_scales
from vaiom.events.schema import COLUMN_TYPES as COLUMN_TYPES
from vaiom.events.schema import CONT_FIELDS
from vaiom.events.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Consecutive rows of one asset, float64, undefined values NaN."""

    timestamp: npt.NDArray[np.int64]
    ret_z: Floats
    gap_z: Floats
    relative_log_vol: Floats
    sigma20: Floats
    log_ret: Floats
    flags: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.timestamp)

    @property
    def unmasked(self) -> npt.NDArray[np.bool_]:
        return ~has_flag(self.flags, ANY_MASK)

    def numeric_columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """Stored columns that need no tokenizer; non-finite inputs become 0, an undefined return stays NaN."""
        columns: dict[str, npt.NDArray[np.generic]] = {
            name: np.nan_to_num(getattr(self, name), nan=0.0, posinf=0.0, neginf=0.0).astype(COLUMN_TYPES[name])
            for name in ("ret_z", "gap_z", "relative_log_vol", "sigma20")
        }
        columns["timestamp"] = self.timestamp.astype(COLUMN_TYPES["timestamp"])
        columns["log_ret"] = self.log_ret
        columns["flags"] = self.flags
        return columns

    def columns(self, tokenizer: Tokenizer) -> dict[str, npt.NDArray[np.generic]]:
        """All stored columns but the extra ones; buckets are taken from the float64 values."""
        buckets = {
            "return_bucket": bucket_of(tokenizer.edges["return"], self.ret_z),
            "gap_bucket": bucket_of(tokenizer.edges["gap"], self.gap_z),
            "vol_regime": bucket_of(tokenizer.edges["vol_regime"], self.relative_log_vol),
        }
        return {**self.numeric_columns(), **buckets}


def rows_of(bars: pl.DataFrame, state: ScaleState | None = None, where: object = None) -> tuple[Rows, ScaleState]:
    """Rows of ordered bars that follow `state`, and the state after them."""
    blocks, states = zip(*_blocks(bars, state or ScaleState(), where), strict=True)
    joined = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in Rows.__dataclass_fields__}
    return Rows(**joined), states[-1]


def cont_of_bars(bars: pl.DataFrame, out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """(N, 25) continuous inputs of one asset's bars: the events without a corpus around them."""
    if out is None:
        out = np.empty((len(bars), len(CONT_FIELDS)), np.float32)
    done = 0
    for block, _ in _blocks(bars, ScaleState(), None):
        fill_continuous(block.numeric_columns(), out[done : done + len(block)])
        done += len(block)
    return out


def cont_of_market(bars: Mapping[str, pl.DataFrame]) -> npt.NDArray[np.float32]:
    """(N, 25) of all assets, one after another in sorted-symbol order; a thread per core works on them."""
    ends = np.cumsum([len(bars[symbol]) for symbol in sorted(bars)])
    out = np.empty((int(ends[-1]), len(CONT_FIELDS)), np.float32)
    parts = np.split(out, ends[:-1])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(cont_of_bars, (bars[symbol] for symbol in sorted(bars)), parts))
    return out


def _blocks(bars: pl.DataFrame, state: ScaleState, where: object) -> Iterator[tuple[Rows, ScaleState]]:
    """Rows in blocks that stay in a processor's cache, each with the state after it."""
    seconds = _stamps(bars, where)
    # Nulls become NaN here.
    open_, close = (bars[name].cast(pl.Float64).to_numpy() for name in ("Open", "Close"))
    for start in range(0, max(len(seconds), 1), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        scales, state = run_scales(open_[block], close[block], state)
        rows = Rows(
            timestamp=seconds[block],
            ret_z=scales.ret_z,
            gap_z=scales.gap_z,
            relative_log_vol=scales.relative_log_vol,
            sigma20=scales.sigma20,
            log_ret=scales.log_ret,
            flags=_flags(scales),
        )
        yield rows, state


def _stamps(bars: pl.DataFrame, where: object) -> npt.NDArray[np.int64]:
    microseconds = bars["Datetime"].cast(pl.Datetime("us")).to_physical().to_numpy()
    seconds, fraction = np.divmod(microseconds, 1_000_000)
    unstorable = (fraction != 0) | (seconds < 0) | (seconds > LAST_SECOND)
    if unstorable.any():
        row = int(unstorable.argmax())
        raise DataError(
            "a bar's stamp cannot be stored",
            where=f"{where}, row {row + 1}",
            expected="whole seconds between 1970 and 2106",
            got=bars["Datetime"][row],
            fix="resample the bars with `vaiom data resample`, or check how the stamps were parsed",
        )
    return seconds


def _flags(scales: Scales) -> npt.NDArray[np.uint8]:
    bits = {MASK_BITS[name]: mask for name, mask in row_masks(scales).items()}
    bits |= {BAD_RETURN: bad_return(scales), BAD_GAP: bad_gap(scales)}
    flags = np.zeros(len(scales.log_ret), np.uint8)
    for bit, mask in bits.items():
        flags |= mask * bit
    return flags
