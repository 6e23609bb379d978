"""What a corpus predicts: the sum of the next h log returns, h = 1 being the paper's next bar.

Enters: the stored columns of a corpus, and what Train fits for a horizon (`TargetFit`). Leaves: a
`Target`, one value per row. The scale of a target is known at t: sigma20, times the root of h and
the usual size of the asset's moves from that hour of the week if h > 1. Paper: Methods, "Return
Bucket Construction" and "Supervision Scope"; longer horizons are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from vaiom.codec import Stored
from vaiom.corpus.splits import NO_TARGET_CODE, SEALED, TRAIN, SplitConfig
from vaiom.corpus.tokenizer import Edges, Tokenizer, fit_returns
from vaiom.distribution.shape import ReturnShape
from vaiom.errors import ConfigError, DataError
from vaiom.features.events import has_return, is_readable
from vaiom.features.fields import NUM_RETURN_BUCKETS, UNKNOWN_ASSET, bucket_of, timestamps_of
from vaiom.features.typing import AnyArray, Bools, Codes, Columns, Floats, Ints, Stamps
from vaiom.market.sessions import slot_of_week, slots_per_week
from vaiom.market.timeframes import step_seconds

if TYPE_CHECKING:
    from vaiom.corpus.store import Corpus

HORIZONS = (4, 8, 24)
"""Horizons in bars that a run is given unless others are asked for."""
MAX_HORIZON = 1_000
DEFAULT_CONTEXT = 512

_ROUNDING = 1e-10
"""Smaller sums are rounding errors of a price that came back: no price has such a tick."""
_SLOT_PRIOR = 100.0
"""Pseudo-events of the whole asset in each of its hours of the week."""

_INNER = Stored(
    "inner_edges",
    encode=lambda edges: edges[1:-1],
    decode=lambda inner: [-math.inf, *inner, math.inf],
)


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetFit:
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
        if self.bars < 1:
            raise ValueError("a horizon is one bar or more")
        if not ((self.slot_scale > 0) & np.isfinite(self.slot_scale)).all():
            raise ValueError("scales must be positive and finite")
        self.edges.flags.writeable = False  # all forecasts share them

    def scale(self, columns: Columns, assets: Any) -> Floats:
        """(N,) scales of rows with these asset ids, 0 where sigma20 is undefined."""
        slots = slot_of_week(columns["timestamp"], step_seconds(self.timeframe))
        ratio = math.sqrt(self.bars) * self.slot_scale[assets, slots]
        return np.asarray(columns["sigma20"] * ratio)

    def renumbered(self, ids: list[int]) -> TargetFit:
        """The fit for a corpus whose asset k has the id `ids[k]` here."""
        zero_share = tuple(self.zero_share[each] for each in ids)
        return replace(self, zero_share=zero_share, slot_scale=self.slot_scale[ids])


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """The sum of the next `horizon` log returns after each row of a corpus.

    Arrays have one value per row t and are made when they are first read. The sum is of the bars
    t+1 to t+h of the row's own asset.
    """

    fit: TargetFit
    columns: Columns
    asset_slices: Mapping[str, slice]
    asset_ids: Mapping[str, int]
    splits: SplitConfig

    @property
    def horizon(self) -> int:
        """How many bars the target spans."""
        return self.fit.bars

    @property
    def edges(self) -> Edges:
        """(17,) bucket edges in units of `scale`, with the infinities."""
        return self.fit.edges

    @property
    def shape(self) -> ReturnShape:
        """Where returns lie inside the buckets."""
        return self.fit.shape

    @cached_property
    def scale(self) -> Floats:
        """(N,) the unit of the edges in log returns, known at t; 0 where undefined."""
        if self.horizon == 1:
            return np.asarray(self.columns["sigma20"])
        scale = np.empty(len(self.columns["sigma20"]))
        for symbol, rows in self.asset_slices.items():
            own = {name: column[rows] for name, column in self.columns.items()}
            scale[rows] = self.fit.scale(own, self.asset_ids[symbol])
        return scale

    @cached_property
    def log_ret_next(self) -> Floats:
        """(N,) the sum, exactly 0 if the price came back; NaN without prices."""
        return sum_of_next(self.columns, self.asset_slices, self.horizon)

    @cached_property
    def known(self) -> Bools:
        """(N,) whether each bar of the sum has prices and moved believably; zeros count."""
        num_unknown = np.cumsum(~has_return(self.columns))
        later = shifted(num_unknown, self.horizon, self.asset_slices, -1)
        return np.asarray(later == num_unknown)

    @cached_property
    def bad(self) -> Bools:
        """(N,) whether the sum is not known or exactly zero: nothing to learn from or to score."""
        is_zero: Bools = self.log_ret_next == 0
        return ~self.known | is_zero

    @cached_property
    def bucket(self) -> Codes:
        """(N,) bucket ids of the sum over its scale; 0 where it is bad or has no scale."""
        if self.horizon == 1:  # the next row's own bucket, which is stored
            bucket = shifted(self.columns["return_bucket"], 1, self.asset_slices, 0)
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                bucket = bucket_of(self.edges, self.log_ret_next / self.scale)
        return np.where(self.bad, np.uint8(0), bucket)

    @cached_property
    def valid(self) -> Bools:
        """(N,) rows that may be trained on or scored, before context is required."""
        return (self.bucket > 0) & is_readable(self.columns["flags"])

    @cached_property
    def target_timestamps(self) -> Stamps:
        """(N,) left edge of the last bar of the sum; NaT if it is not known yet."""
        never = np.datetime64("NaT", "s")
        return shifted(timestamps_of(self.columns), self.horizon, self.asset_slices, never)

    @cached_property
    def split_codes(self) -> Codes:
        """(N,) the split of the last bar of the sum if all its bars lie in it, else
        `NO_TARGET_CODE`.
        """
        own = self.splits.codes(timestamps_of(self.columns))
        first = shifted(own, 1, self.asset_slices, NO_TARGET_CODE)
        last = shifted(own, self.horizon, self.asset_slices, NO_TARGET_CODE)
        return np.where(first == last, last, np.uint8(NO_TARGET_CODE))

    def endpoints(
        self, split: str, context: int = DEFAULT_CONTEXT, *, unseal: bool = False
    ) -> Ints:
        """Row numbers of a split's events that have `context` rows of their asset, the row itself
        included.
        """
        code = self.splits.code(split)
        if split == SEALED and not unseal:
            raise ConfigError(
                "the sealed interval is not opened by accident",
                where=f"targets at or after {self.splits.seal}",
                fix="pass --unseal sealed, once, when everything is decided",
            )
        if context < 1:
            raise ConfigError("context must be at least one row", got=context)
        usable = self.valid & (self.split_codes == code)
        for rows in self.asset_slices.values():
            first = min(rows.start + context - 1, rows.stop)
            usable[rows.start : first] = False
        return np.flatnonzero(usable)


def shifted(
    values: AnyArray, bars: int, asset_slices: Mapping[str, slice], at_end: Any
) -> AnyArray:
    """The value `bars` rows later in the same asset, `at_end` where there is no such row."""
    out = np.full_like(values, at_end)
    for rows in asset_slices.values():
        later = values[rows][bars:]
        out[rows.start : rows.start + len(later)] = later
    return out


def sum_of_next(columns: Columns, asset_slices: Mapping[str, slice], bars: int) -> Floats:
    """(N,) the sum of the next `bars` log returns of a row's asset; NaN where there are fewer."""
    own = columns["log_ret"]
    if bars == 1:
        return shifted(own, 1, asset_slices, np.nan)
    total = np.zeros(len(own))
    for ahead in range(1, bars + 1):
        total[:-ahead] += own[ahead:]
    for rows in asset_slices.values():
        incomplete = max(rows.start, rows.stop - bars)
        total[incomplete : rows.stop] = np.nan
    total[np.abs(total) < _ROUNDING] = 0.0
    return total


def fit_of_next_bar(tokenizer: Tokenizer) -> TargetFit:
    """The fit for one bar: the tokenizer's edges and shape, with sigma20 as the scale."""
    shares = tokenizer.zero_share
    slots = slots_per_week(step_seconds(tokenizer.timeframe))
    return TargetFit(
        bars=1,
        timeframe=tokenizer.timeframe,
        edges=tokenizer.edges["return"],
        shape=tokenizer.return_shape,
        zero_share=(float(np.mean(shares)), *shares),
        slot_scale=np.ones((len(shares) + 1, slots)),
    )


def fit_target(corpus: Corpus, bars: int) -> TargetFit:
    """Fit scale, edges, shape and zero shares of a horizon on its Train events; of one bar they
    are the tokenizer's.
    """
    if bars == 1:
        return fit_of_next_bar(corpus.tokenizer)
    if not 2 <= bars <= MAX_HORIZON:
        raise ConfigError("not a horizon", expected=f"1 to {MAX_HORIZON} bars", got=bars)
    # Sums and splits do not depend on what is fitted.
    target = corpus.target(replace(fit_of_next_bar(corpus.tokenizer), bars=bars))
    sums = target.log_ret_next
    in_train = target.split_codes == corpus.splits.code(TRAIN)
    usable = target.known & ~corpus.mask_any & in_train & (corpus.sigma20 > 0)
    moved = usable & (sums != 0)
    if not moved.any():
        raise DataError(
            f"Train holds no event of {bars} bars",
            where=corpus.path,
            fix="a shorter horizon, or a longer history",
        )
    assets = corpus.meta[:, 0].astype(np.int64)
    num_assets = len(corpus.tokenizer.symbols)
    events = np.bincount(assets[usable], minlength=num_assets + 1)
    zeros = np.bincount(assets[usable & ~moved], minlength=num_assets + 1)
    zero_share = zeros / np.maximum(events, 1)
    zero_share[UNKNOWN_ASSET] = zero_share[UNKNOWN_ASSET + 1 :].mean()
    assets = assets[moved]
    z = sums[moved] / (corpus.sigma20[moved] * math.sqrt(bars))
    step = step_seconds(corpus.tokenizer.timeframe)
    slots = slot_of_week(corpus.columns["timestamp"], step)[moved]
    shape_of_slots = (num_assets + 1, slots_of_week(corpus))
    sizes = usual_sizes(np.abs(z), assets, slots, shape_of_slots)
    ordered = np.sort(z / sizes[assets, slots])
    edges, shape = fit_returns(ordered, where=f"sums of {bars} bars, {corpus.path}")
    return TargetFit(
        bars=bars,
        timeframe=corpus.tokenizer.timeframe,
        edges=edges,
        shape=shape,
        zero_share=tuple(zero_share.tolist()),
        slot_scale=sizes,
    )


def slots_of_week(corpus: Corpus) -> int:
    """How many bars of a corpus fit into a week."""
    return slots_per_week(step_seconds(corpus.tokenizer.timeframe))


def usual_sizes(size: Floats, assets: Ints, slots: Ints, shape: tuple[int, int]) -> Floats:
    """Mean sizes by asset and slot over the overall mean, shrunk to the asset's; pooled for an
    unknown asset.
    """
    num_assets, num_slots = shape
    cells = assets * num_slots + slots
    num_cells = num_assets * num_slots
    counts = np.bincount(cells, minlength=num_cells).reshape(shape).astype(np.float64)
    sums = np.bincount(cells, weights=size, minlength=num_cells).reshape(shape).astype(np.float64)
    counts[UNKNOWN_ASSET] = counts.sum(axis=0)
    sums[UNKNOWN_ASSET] = sums.sum(axis=0)
    mean = size.mean()
    of_asset = _shrunk(sums.sum(axis=1), counts.sum(axis=1), mean)
    of_slot = _shrunk(sums, counts, of_asset[:, None])
    return np.asarray(np.round(of_slot / mean, 4))  # rounded as stored


def _shrunk(sums: Floats, counts: Floats, towards: Floats) -> Floats:
    """Means drawn towards other means, by so many pseudo-events of them."""
    weighted = sums + _SLOT_PRIOR * towards
    return np.asarray(weighted / (counts + _SLOT_PRIOR))
