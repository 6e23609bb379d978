"""What Train fits: bucket edges, the shape inside buckets, each asset's share of zero returns.

Enters: the own values of every asset's rows and the end of Train. Leaves: a `Tokenizer`. NumPy alone.
Paper: Methods, "Return Bucket Construction"; the fit sets are Train events whose row is unmasked and whose own target
is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vaiom.errors import DataError
from vaiom.events.buckets import fit_regime_edges, fit_signed_edges
from vaiom.events.inputs import ANY_MASK, BAD_GAP, BAD_RETURN, has_flag
from vaiom.events.schema import NUM_RETURN_BUCKETS
from vaiom.events.shape import fit_shape
from vaiom.events.tokenizer import Tokenizer

Floats = npt.NDArray[np.float64]


class OwnValues(Protocol):
    """What consecutive rows of one asset say of themselves; undefined values are NaN."""

    @property
    def timestamp(self) -> npt.NDArray[np.int64]: ...
    @property
    def ret_z(self) -> Floats: ...
    @property
    def gap_z(self) -> Floats: ...
    @property
    def relative_log_vol(self) -> Floats: ...
    @property
    def log_ret(self) -> Floats: ...
    @property
    def flags(self) -> npt.NDArray[np.uint8]: ...


def fit_on_train(
    rows: Mapping[str, OwnValues], train_end: datetime, timeframe: str, classes: Mapping[str, str]
) -> Tokenizer:
    """Fit edges, shape and zero shares on Train events: unmasked row, valid own target, target time inside Train."""
    symbols = sorted(rows)
    end = int(np.datetime64(train_end, "s").astype(np.int64))
    returns, gaps, regimes, zero_share = [], [], [], []
    for symbol in symbols:
        asset = rows[symbol]
        event = ~has_flag(asset.flags[:-1], ANY_MASK) & (asset.timestamp[1:] < end)
        flags = asset.flags[1:]
        good = event & (~has_flag(flags, BAD_RETURN))
        zero = event & (asset.log_ret[1:] == 0)
        returns.append(asset.ret_z[1:][good])
        gaps.append(asset.gap_z[1:][event & (~has_flag(flags, BAD_GAP))])
        regimes.append(asset.relative_log_vol[1:][event])
        zero_share.append(float(zero.sum() / max(1, (zero | good).sum())))
    pooled = {name: _finite(np.concatenate(values)) for name, values in (("r", returns), ("g", gaps), ("v", regimes))}
    edges = {
        "return": fit_signed_edges(pooled["r"]),
        "gap": fit_signed_edges(pooled["g"]),
        "vol_regime": fit_regime_edges(pooled["v"]),
    }
    if len(edges["return"]) != NUM_RETURN_BUCKETS + 1:
        raise DataError(
            "the Train returns are too coarse for the return buckets: some quantiles coincide",
            expected=f"{NUM_RETURN_BUCKETS} buckets",
            got=len(edges["return"]) - 1,
            fix="bring in prices with more digits, or more history before the end of Train",
        )
    return Tokenizer(
        symbols=tuple(symbols),
        classes=tuple(classes[symbol] for symbol in symbols),
        timeframe=timeframe,
        edges=edges,
        zero_share=tuple(zero_share),
        return_shape=fit_shape(edges["return"], pooled["r"]),
    )


def _finite(values: Any) -> Any:
    return values[np.isfinite(values)]
