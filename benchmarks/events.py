"""Bars to the 25 continuous inputs, against plain pandas over the same frames.

Enters: a bar folder, or nothing for the simulated market. Leaves: a `Measurement`; both ways must
give one array.
Paper: "Market Data, Price Convention and Bar Construction" and Appendix B, as in `events_pandas`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks.race import Measurement, race, reference_library
from vaiom.errors import VaiomError
from vaiom.features.asset_state import AssetState
from vaiom.features.fields import CONT_FIELDS
from vaiom.features.inputs import fill_continuous
from vaiom.features.rows import bars_of, blocks_of, stored
from vaiom.market.folder import read_bars

REPEATS = 7


def run(bars: Path | None = None, _corpus: Path | None = None) -> Measurement:
    """Race the building of events against the same rules in pandas."""
    if bars is not None:
        return measure(read_bars(bars), str(bars))
    from vaiom.simulation.market import simulate

    return measure({symbol: asset.bars for symbol, asset in simulate().items()}, "simulated market")


def measure(bars: Mapping[str, pl.DataFrame], source: str, repeats: int = REPEATS) -> Measurement:
    """Race both ways over frames that are in memory already, each in its own library's form."""
    reference_library("pandas")
    from benchmarks import events_pandas

    frames = {symbol: frame.to_pandas() for symbol, frame in bars.items()}

    def ours() -> npt.NDArray[np.float32]:
        return cont_of_market(bars)

    def reference() -> npt.NDArray[np.float32]:
        return events_pandas.cont_of_bars(frames)

    inputs = ours()
    equal = require_equal(inputs, reference())
    ours_seconds, reference_seconds = race(ours, reference, repeats)
    return Measurement(
        name="events",
        input=f"{len(inputs):,} rows of {len(bars)} assets: {source}",
        ours_seconds=ours_seconds,
        reference_seconds=reference_seconds,
        equal=equal,
        extra={"rows_per_second": round(len(inputs) / ours_seconds)},
    )


def cont_of_bars(
    bars: pl.DataFrame, out: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """(N, 25) continuous inputs of one asset's bars: the events without a corpus around them."""
    if out is None:
        out = np.empty((len(bars), len(CONT_FIELDS)), np.float32)
    done = 0
    for block, _ in blocks_of(bars_of(bars), AssetState.empty(None)):
        size = len(block["timestamp"])
        fill_continuous(stored(block), out[done : done + size])
        done += size
    return out


def cont_of_market(bars: Mapping[str, pl.DataFrame]) -> npt.NDArray[np.float32]:
    """(N, 25) of all assets, one after another in sorted-symbol order; a thread per core works on
    them.
    """
    ends = np.cumsum([len(bars[symbol]) for symbol in sorted(bars)])
    out = np.empty((int(ends[-1]), len(CONT_FIELDS)), np.float32)
    parts = np.split(out, ends[:-1])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(cont_of_bars, (bars[symbol] for symbol in sorted(bars)), parts))
    return out


def require_equal(ours: npt.NDArray[np.float32], reference: npt.NDArray[np.float32]) -> str:
    """Say what was compared, or name the first value that differs in float32."""
    if ours.shape != reference.shape or ours.dtype != reference.dtype:
        raise VaiomError(
            f"events differ: {ours.shape} {ours.dtype} against {reference.shape} {reference.dtype}"
        )
    different = np.argwhere(ours != reference)
    if len(different):
        row, field = different[0]
        raise VaiomError(
            f"events differ in {len(different)} values, first {CONT_FIELDS[field]} of row {row}: "
            f"{ours[row, field]!r} against {reference[row, field]!r}"
        )
    return f"all {ours.size:,} float32 values, exactly"
