"""What masks and target rules keep of a corpus, by asset and split: counts, shares, buckets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vaiom.corpus.splits import TRAIN
from vaiom.corpus.store import Corpus
from vaiom.corpus.targets import DEFAULT_CONTEXT
from vaiom.features.fields import MASK_BITS, NUM_RETURN_BUCKETS, has_flag
from vaiom.features.typing import Ints

FEW_TRAIN_EVENTS = 1_000
"""With fewer, an asset is hardly learned and its share of exact zeros is unreliable."""


@dataclass(frozen=True, kw_only=True)
class SplitQuality:
    """One asset in one split; shares are of its rows with a next bar there."""

    symbol: str
    split: str
    rows: int
    first: str
    last: str
    mask_share: dict[str, float]
    zero_share: float
    """Next returns that are exactly zero."""
    dropped_share: float
    """Targets dropped for any reason, exact zeros included."""
    events: int
    """Rows that may be trained on or scored, before context is required."""
    occupancy: list[float]
    """Share of the events in each return bucket, lowest first."""


def split_quality(corpus: Corpus) -> list[SplitQuality]:
    """What masks and target rules keep and drop, per asset and split, ordered by symbol and time.

    Exact-zero next returns are dropped by their outcome, so their share is printed wherever bits
    per event are.
    """
    table = []
    for symbol, asset in corpus.by_asset():
        for code, split in enumerate(corpus.splits.names):
            rows = np.flatnonzero(asset.split_codes == code)
            if len(rows):
                table.append(_quality(asset, symbol, split, rows))
    return table


def _quality(asset: Corpus, symbol: str, split: str, rows: Ints) -> SplitQuality:
    flags = asset.columns["flags"][rows]
    buckets = asset.target_return[rows][asset.valid_base[rows]]
    num_events = len(buckets)
    counts = np.bincount(buckets, minlength=NUM_RETURN_BUCKETS + 1)[1:]
    return SplitQuality(
        symbol=symbol,
        split=split,
        rows=len(rows),
        first=str(asset.timestamps[rows[0]]),
        last=str(asset.timestamps[rows[-1]]),
        mask_share={name: float(has_flag(flags, bit).mean()) for name, bit in MASK_BITS.items()},
        zero_share=float((asset.log_ret_next[rows] == 0).mean()),
        dropped_share=float(asset.target_bad[rows].mean()),
        events=num_events,
        occupancy=(counts / max(1, num_events)).tolist(),
    )


def count_events(corpus: Corpus, context: int = DEFAULT_CONTEXT) -> dict[str, dict[str, int]]:
    """Events with full context per split and asset; the sealed ones are counted, not shown."""
    counts: dict[str, dict[str, int]] = {name: {} for name in corpus.splits.names}
    for symbol, asset in corpus.by_asset():
        has_context = slice(context - 1, None)
        codes = asset.split_codes[has_context][asset.valid_base[has_context]]
        for code, name in enumerate(corpus.splits.names):
            counts[name][symbol] = int((codes == code).sum())
    return counts


def few_train_events(corpus: Corpus) -> dict[str, int]:
    """Assets with few Train events, and how many they have before context is required."""
    in_train = count_events(corpus, 1)[TRAIN]
    return {symbol: count for symbol, count in in_train.items() if count < FEW_TRAIN_EVENTS}
