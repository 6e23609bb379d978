"""What the masks and target rules did to a corpus: per asset and split, what was kept, dropped and why.

Enters: an open corpus. Leaves: a table the terminal, `--json` and the HTML report share. NumPy alone.
Paper: Appendix B, "Return Buckets and Validity Rules", which records no such table; exact-zero next returns are
dropped by their outcome, so their share is printed wherever bits per event are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vaiom.events.corpus import Corpus
from vaiom.events.fields import MASK_BITS, NUM_RETURN_BUCKETS, has_flag


@dataclass(frozen=True, kw_only=True)
class SplitQuality:
    """One asset in one split; shares are of its rows that have a next bar there."""

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
    """Rows that may be trained on or scored, before any demand on context."""
    occupancy: list[float]
    """Share of the events in each return bucket, from the lowest."""


def split_quality(corpus: Corpus) -> list[SplitQuality]:
    """A row per asset and split that has rows, in the order of symbols and time."""
    table = []
    for symbol, asset in corpus.asset_slices.items():
        for code, split in enumerate(corpus.splits.names):
            rows = asset.start + np.flatnonzero(corpus.split_codes[asset] == code)
            if len(rows):
                table.append(_quality_of(corpus, symbol, split, rows))
    return table


def to_json(table: list[SplitQuality]) -> list[dict[str, Any]]:
    return [asdict(row) for row in table]


def _quality_of(corpus: Corpus, symbol: str, split: str, rows: Any) -> SplitQuality:
    flags = corpus.columns["flags"][rows]
    target = corpus.target_return[rows]
    valid = corpus.valid_base[rows]
    occupancy = np.bincount(target[valid], minlength=NUM_RETURN_BUCKETS + 1)[1:] / max(1, valid.sum())
    return SplitQuality(
        symbol=symbol,
        split=split,
        rows=len(rows),
        first=str(corpus.timestamps[rows[0]]),
        last=str(corpus.timestamps[rows[-1]]),
        mask_share={name: float(has_flag(flags, bit).mean()) for name, bit in MASK_BITS.items()},
        zero_share=float((corpus.log_ret_next[rows] == 0).mean()),
        dropped_share=float(corpus.target_bad[rows].mean()),
        events=int(valid.sum()),
        occupancy=[float(share) for share in occupancy],
    )
