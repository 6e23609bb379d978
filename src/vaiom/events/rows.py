"""One asset's bars as rows: every number a row carries, known at the row's own time.

Enters: bars that follow a state. Leaves: float64 rows, the state after them, and, given a tokenizer, the columns a
corpus stores. A row holds nothing of the next one: targets are the next row's own values, joined when a corpus is read.
Paper: Methods, "Continuous dynamic features" and "Data-quality masks".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.errors import DataError
from vaiom.events.buckets import bucket_of
from vaiom.events.inputs import ANY_MASK, BAD_GAP, BAD_RETURN, MASK_BITS, continuous_inputs, has_flag
from vaiom.events.masks import bad_gap, bad_return, row_masks
from vaiom.events.scales import Floats, ScaleState, run_scales
from vaiom.events.tokenizer import Tokenizer

COLUMN_TYPES = {
    "timestamp": "<u4",  # seconds of the stored clock since 1970
    "ret_z": "<f4",
    "gap_z": "<f4",
    "relative_log_vol": "<f4",
    "sigma20": "<f8",
    "log_ret": "<f8",
    "flags": "|u1",
    "return_bucket": "|u1",
    "gap_bucket": "|u1",
    "vol_regime": "|u1",
}
"""What a corpus keeps of a row."""

_LAST_STAMP = np.iinfo(np.uint32).max


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
        """All stored columns; buckets are taken from the float64 values."""
        buckets = {
            "return_bucket": bucket_of(tokenizer.edges["return"], self.ret_z),
            "gap_bucket": bucket_of(tokenizer.edges["gap"], self.gap_z),
            "vol_regime": bucket_of(tokenizer.edges["vol_regime"], self.relative_log_vol),
        }
        return {**self.numeric_columns(), **buckets}


def rows_of(bars: pl.DataFrame, state: ScaleState | None = None, where: object = None) -> tuple[Rows, ScaleState]:
    """Rows of ordered bars that follow `state`, and the state after them."""
    microseconds = bars["Datetime"].dt.epoch("us").to_numpy()
    seconds, fraction = np.divmod(microseconds, 1_000_000)
    unstorable = (fraction != 0) | (seconds < 0) | (seconds > _LAST_STAMP)
    if unstorable.any():
        row = int(unstorable.argmax())
        raise DataError(
            "a bar's stamp cannot be stored",
            where=f"{where}, row {row + 1}",
            expected="whole seconds between 1970 and 2106",
            got=bars["Datetime"][row],
            fix="resample the bars with `vaiom data resample`, or check how the stamps were parsed",
        )
    scales, after = run_scales(_prices(bars, "Open"), _prices(bars, "Close"), state)
    flags = np.zeros(len(seconds), np.uint8)
    for name, mask in row_masks(scales).items():
        flags[mask] |= MASK_BITS[name]
    flags[bad_return(scales)] |= BAD_RETURN
    flags[bad_gap(scales)] |= BAD_GAP
    rows = Rows(
        timestamp=seconds,
        ret_z=scales.ret_z,
        gap_z=scales.gap_z,
        relative_log_vol=scales.relative_log_vol,
        sigma20=scales.sigma20,
        log_ret=scales.log_ret,
        flags=flags,
    )
    return rows, after


def cont_of_bars(bars: pl.DataFrame) -> npt.NDArray[np.float32]:
    """(N, 25) continuous inputs of one asset's bars: the events without a corpus around them."""
    return continuous_inputs(rows_of(bars)[0].numeric_columns())


def _prices(bars: pl.DataFrame, name: str) -> Floats:
    return bars[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
