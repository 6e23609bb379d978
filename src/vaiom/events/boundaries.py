"""The same rows under other boundaries: splits moved, and everything that Train fits fitted anew.

Enters: an open corpus and other boundaries. Leaves: a corpus in memory, as if it had been built with them. NumPy alone,
so that a machine without the bars can move the protocol.
Return buckets are those of a build, to the bit; gap and volatility-regime buckets are taken from the stored 32-bit
values, so that a value within rounding of an edge may fall on its other side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.events.buckets import bucket_of
from vaiom.events.corpus import Corpus
from vaiom.events.fit import Floats, fit_on_train
from vaiom.events.schema import INVALID
from vaiom.events.splits import SplitConfig
from vaiom.files import sha256_of


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredValues:
    """Own values of one asset's rows, from what a corpus stores of them."""

    timestamp: npt.NDArray[np.int64]
    ret_z: Floats
    gap_z: Floats
    relative_log_vol: Floats
    log_ret: Floats
    flags: npt.NDArray[np.uint8]


def under_splits(corpus: Corpus, splits: SplitConfig) -> Corpus:
    """The corpus with other boundaries and a tokenizer fitted on the Train events that they make."""
    rows = {symbol: _stored(corpus, inside) for symbol, inside in corpus.asset_slices.items()}
    old = corpus.tokenizer
    classes = dict(zip(old.symbols, old.classes, strict=True))
    tokenizer = fit_on_train(rows, splits.train_end, old.timeframe, classes)
    values = {
        "return_bucket": ("return", [asset.ret_z for asset in rows.values()]),
        "gap_bucket": ("gap", [asset.gap_z for asset in rows.values()]),
        "vol_regime": ("vol_regime", [asset.relative_log_vol for asset in rows.values()]),
    }
    columns = {
        name: bucket_of(tokenizer.edges[edges], np.concatenate(parts)) for name, (edges, parts) in values.items()
    }
    arrays = {
        name: {"dtype": column.dtype.str, "sha256": sha256_of(column.tobytes())} for name, column in columns.items()
    }
    manifest = {
        **corpus.manifest,
        "arrays": {**corpus.manifest["arrays"], **arrays},
        "splits": splits.to_json(),
        "tokenizer_sha256": tokenizer.sha256,
    }
    return replace(
        corpus,
        manifest=manifest,
        tokenizer=tokenizer,
        splits=splits,
        columns={**corpus.columns, **columns},
        path=None,
    )


def _stored(corpus: Corpus, inside: slice) -> StoredValues:
    columns = {name: np.asarray(column[inside]) for name, column in corpus.columns.items()}

    def defined(values: npt.NDArray[Any], bucket: str) -> Floats:
        """Undefined values are stored as 0; what tells them from zeros is that they have no bucket."""
        return np.where(columns[bucket] == INVALID, math.nan, values)

    sigma_prev = np.concatenate([[math.nan], columns["sigma20"][:-1]])
    with np.errstate(divide="ignore", invalid="ignore"):
        ret_z = columns["log_ret"] / sigma_prev
    return StoredValues(
        timestamp=columns["timestamp"].astype(np.int64),
        ret_z=defined(ret_z, "return_bucket"),
        gap_z=defined(columns["gap_z"], "gap_bucket"),
        relative_log_vol=defined(columns["relative_log_vol"], "vol_regime"),
        log_ret=columns["log_ret"],
        flags=columns["flags"],
    )
