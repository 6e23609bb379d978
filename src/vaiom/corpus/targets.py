"""The sum of the next h log returns as a target: its scale, buckets and shape fitted on Train, and
a corpus with it.

The scale is known at t: `sigma20` times the root of h times the usual size of the asset's moves
from that hour of the week. The paper predicts one bar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from vaiom.codec import Stored, to_json
from vaiom.corpus.splits import NO_TARGET_CODE, TRAIN
from vaiom.corpus.store import Corpus
from vaiom.corpus.tokenizer import Edges, Tokenizer, bucket_of, fit_returns
from vaiom.distribution.buckets import ReturnShape
from vaiom.errors import ConfigError, DataError
from vaiom.features.fields import MASK_BITS, NUM_RETURN_BUCKETS, UNKNOWN_ASSET, has_flag
from vaiom.features.recursions import Floats, Ints
from vaiom.files import canonical_json, sha256_of
from vaiom.market.sessions import slot_of_week, slots_per_week
from vaiom.market.timeframes import step_seconds

HORIZONS = (4, 8, 24)
MOST_BARS = 1_000
_ZERO = 1e-10
"""Smaller sums are rounding errors of a price that came back: no price has such a tick."""
_SLOT_PRIOR = 100.0
"""Pseudo-events of the whole asset in each of its hours of the week."""

_INNER = Stored(
    "inner_edges",
    encode=lambda edges: edges[1:-1],
    decode=lambda inner: [-math.inf, *inner, math.inf],
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Horizon:
    """What Train fits for the sum of the next `bars` log returns."""

    bars: int
    timeframe: str
    edges: Annotated[Edges, _INNER]
    """(17,) in units of the scale, with the infinities."""
    shape: ReturnShape
    zero_share: tuple[float, ...]
    """Per asset id, 0 being an unknown asset: the Train share of otherwise valid sums that are
    exactly zero.
    """
    slot_scale: Floats
    """(assets + 1, slots of the week): the scale divided by sigma20 and the root of h."""

    def __post_init__(self) -> None:
        if not (np.diff(self.edges) > 0).all() or len(self.edges) != NUM_RETURN_BUCKETS + 1:
            raise ValueError(f"{NUM_RETURN_BUCKETS} return buckets")
        num_slots = slots_per_week(step_seconds(self.timeframe))
        if self.slot_scale.shape != (len(self.zero_share), num_slots):
            raise ValueError("a scale for each asset and slot of the week")
        if not (
            self.bars >= 1 and (self.slot_scale > 0).all() and np.isfinite(self.slot_scale).all()
        ):
            raise ValueError("a horizon without sense")
        self.edges.flags.writeable = False  # all forecasts share them

    def scale(self, columns: Mapping[str, npt.NDArray[Any]], assets: Any) -> Floats:
        """(N,) scales of rows with these asset ids, 0 where sigma20 is undefined."""
        slots = slot_of_week(columns["timestamp"], step_seconds(self.timeframe))
        return np.asarray(
            columns["sigma20"] * (math.sqrt(self.bars) * self.slot_scale[assets, slots])
        )

    def renumbered(self, ids: list[int]) -> Horizon:
        """For a corpus whose asset k has the id `ids[k]` here."""
        return replace(
            self,
            zero_share=tuple(self.zero_share[each] for each in ids),
            slot_scale=self.slot_scale[ids],
        )


def of_next_bar(tokenizer: Tokenizer) -> Horizon:
    """The next bar as a horizon: the tokenizer's edges and shape, with sigma20 as the scale."""
    shares, slots = tokenizer.zero_share, slots_per_week(step_seconds(tokenizer.timeframe))
    return Horizon(
        bars=1,
        timeframe=tokenizer.timeframe,
        edges=tokenizer.edges["return"],
        shape=tokenizer.return_shape,
        zero_share=(float(np.mean(shares)), *shares),
        slot_scale=np.ones((len(shares) + 1, slots)),
    )


def next_sum(corpus: Corpus, bars: int) -> Floats:
    """(N,) the sum of the next `bars` log returns, exactly 0 if the price came back.

    NaN if one of those bars has no price, moved excessively or is not known yet; a zero return
    inside counts as 0.
    """
    bad = has_flag(corpus.columns["flags"], MASK_BITS["missing"] | MASK_BITS["bad_data"])
    own = np.where(bad, np.nan, corpus.columns["log_ret"])
    total = np.zeros(len(corpus))
    for ahead in range(1, bars + 1):
        total[:-ahead] += own[ahead:]
        total[-ahead:] = np.nan
    for rows in corpus.asset_slices.values():
        total[max(rows.start, rows.stop - bars) : rows.stop] = np.nan
    total[np.abs(total) < _ZERO] = 0.0
    return total


def fit_horizon(corpus: Corpus, bars: int) -> Horizon:
    """Fit scale, edges, shape and zero shares on the Train events of a horizon."""
    if not 2 <= bars <= MOST_BARS:
        raise ConfigError("not a horizon", expected=f"2 to {MOST_BARS} bars", got=bars)
    sums, codes = next_sum(corpus, bars), _split_codes(corpus, bars)
    usable = (
        np.isfinite(sums)
        & ~corpus.mask_any
        & (codes == corpus.splits.code(TRAIN))
        & (corpus.sigma20 > 0)
    )
    assets, num_assets = corpus.meta[:, 0].astype(np.int64), len(corpus.tokenizer.symbols)
    if not (usable & (sums != 0)).any():
        problem, fix = (
            f"Train holds no event of {bars} bars",
            "a shorter horizon, or a longer history",
        )
        raise DataError(problem, where=corpus.path, fix=fix)
    counts = np.bincount(assets[usable], minlength=num_assets + 1)
    zero_share = np.bincount(assets[usable & (sums == 0)], minlength=num_assets + 1) / np.maximum(
        counts, 1
    )
    zero_share[UNKNOWN_ASSET] = zero_share[UNKNOWN_ASSET + 1 :].mean()
    usable &= sums != 0
    assets, z = assets[usable], sums[usable] / (corpus.sigma20[usable] * math.sqrt(bars))
    step = step_seconds(corpus.tokenizer.timeframe)
    slots = slot_of_week(corpus.columns["timestamp"], step)[usable]
    ratios = usual_sizes(np.abs(z), assets, slots, (num_assets + 1, slots_of_week(corpus)))
    z = np.sort(z / ratios[assets, slots])
    edges, shape = fit_returns(z, where=f"sums of {bars} bars, {corpus.path}")
    return Horizon(
        bars=bars,
        timeframe=corpus.tokenizer.timeframe,
        edges=edges,
        shape=shape,
        zero_share=tuple(zero_share.tolist()),
        slot_scale=ratios,
    )


def slots_of_week(corpus: Corpus) -> int:
    return slots_per_week(step_seconds(corpus.tokenizer.timeframe))


def usual_sizes(size: Floats, assets: Ints, slots: Ints, shape: tuple[int, int]) -> Floats:
    """Mean sizes by asset and slot over the overall mean, shrunk to the asset's; pooled for an
    unknown asset.
    """
    cells = assets * shape[1] + slots
    counts = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    sums = np.bincount(cells, weights=size, minlength=shape[0] * shape[1]).reshape(shape)
    counts[UNKNOWN_ASSET], sums[UNKNOWN_ASSET] = counts.sum(axis=0), sums.sum(axis=0)
    mean = size.mean()
    of_asset = (sums.sum(axis=1) + _SLOT_PRIOR * mean) / (counts.sum(axis=1) + _SLOT_PRIOR)
    of_slot = (sums + _SLOT_PRIOR * of_asset[:, None]) / (counts + _SLOT_PRIOR)
    return np.asarray(np.round(of_slot / mean, 4))  # rounded as stored


def _split_codes(corpus: Corpus, bars: int) -> npt.NDArray[np.uint8]:
    """The split of the last bar of each sum, if all its bars lie in that split."""
    first = corpus.split_codes
    out = np.full_like(first, NO_TARGET_CODE)
    for rows in corpus.asset_slices.values():
        stop = max(rows.start, rows.stop - bars + 1)
        last = first[rows.start + bars - 1 : rows.stop]
        out[rows.start : stop] = np.where(first[rows.start : stop] == last, last, NO_TARGET_CODE)
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class HorizonCorpus(Corpus):
    """A corpus whose targets, `log_ret_next`, `sigma20` and buckets are those of the sum of the
    next bars.
    """

    base: Corpus
    at: Horizon

    @property
    def bars(self) -> Corpus:
        return self.base

    @property
    def horizon(self) -> int:
        return self.at.bars

    @property
    def edges(self) -> Mapping[str, Edges]:
        return {**self.tokenizer.edges, "return": self.at.edges}

    @property
    def return_shape(self) -> ReturnShape:
        return self.at.shape

    @cached_property
    def sigma20(self) -> Floats:
        return self.at.scale(self.columns, self.meta[:, 0])

    @cached_property
    def target_timestamps(self) -> npt.NDArray[np.datetime64]:
        """Left edge of the last bar of the sum; NaT if it is not known yet."""
        out = np.full(len(self), np.datetime64("NaT", "s"), self.timestamps.dtype)
        for rows in self.asset_slices.values():
            out[rows.start : max(rows.start, rows.stop - self.horizon)] = self.timestamps[rows][
                self.horizon :
            ]
        return out

    @cached_property
    def log_ret_next(self) -> Floats:
        return next_sum(self.base, self.horizon)

    @cached_property
    def target_bad(self) -> npt.NDArray[np.bool_]:
        """A bar of the sum has no price, moved excessively or is not known yet, or the sum is
        exactly zero.
        """
        return ~(np.abs(self.log_ret_next) > 0) | ~(self.sigma20 > 0)

    @cached_property
    def target_return(self) -> npt.NDArray[np.uint8]:
        z = self.log_ret_next / np.where(self.sigma20 > 0, self.sigma20, np.nan)
        return np.where(self.target_bad, 0, bucket_of(self.at.edges, z)).astype(np.uint8)

    @cached_property
    def split_codes(self) -> npt.NDArray[np.uint8]:
        return _split_codes(self.base, self.horizon)

    @cached_property
    def sha256(self) -> str:
        return sha256_of(canonical_json([self.base.sha256, to_json(self.at)]))


def at_horizon(corpus: Corpus, at: Horizon | int) -> HorizonCorpus:
    """The corpus at a horizon; a number of bars is fitted on Train first."""
    parts = {name: getattr(corpus, name) for name in Corpus.__dataclass_fields__}
    return HorizonCorpus(
        **parts, base=corpus, at=fit_horizon(corpus, at) if isinstance(at, int) else at
    )
