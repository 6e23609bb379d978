"""What is fitted on Train: bucket edges, the shape inside buckets and each asset's share of zero returns (`Tokenizer`).

Paper: Methods, "Return Bucket Construction" and "Corpus Construction and Split Protocol" (never refitted). The shape is
ours: pooled Train quantiles, and tails by probability-weighted moments (Hosking and Wallis 1987).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from vaiom import codec
from vaiom.codec import Stored, decode
from vaiom.errors import DataError
from vaiom.events import fields
from vaiom.events.distribution import PIECES, TAIL_SHAPES, Floats, ReturnShape, Tail
from vaiom.events.scales import Bools, where
from vaiom.files import canonical_json, sha256_of
from vaiom.market.symbols import default_class
from vaiom.market.timeframes import step_seconds

TAIL_CUTOFFS = (-8.0, -5.0, -3.0, -2.0, 2.0, 3.0, 5.0, 8.0)
INTERIOR_QUANTILES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
REGIME_QUANTILES = (0.2, 0.4, 0.6, 0.8)
TOKENIZER_VERSION = 2
MAX_EDGES = 255
"""Bucket ids are stored as bytes."""

# Pseudo-counts of each bucket, spread evenly: knots never coincide.
_EVEN_RETURNS = PIECES
# Pseudo-counts of each tail, and their size in sigmas.
_MADE_UP_EXCESSES = 5
_MADE_UP_EXCESS = 2.0
# One wrong tick must not determine the tail.
_MAX_EXCESS = 50.0
# With fewer excesses the tail is exponential: they say nothing about its shape.
_MIN_EXCESSES = 50

_NO_FLAG = np.uint8(0)

Edges = npt.NDArray[np.float64]

# JSON cannot hold the infinities.
_INNER = Stored(
    "inner_edges",
    encode=lambda edges: {name: values[1:-1] for name, values in edges.items()},
    decode=lambda edges: {name: [-math.inf, *inner, math.inf] for name, inner in edges.items()},
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
    """What Train fits; tokenizers are equal when their hashes are."""

    version: int = TOKENIZER_VERSION
    timeframe: str
    symbols: tuple[str, ...]
    classes: tuple[str, ...]
    zero_share: tuple[float, ...]
    """Per symbol, the Train share of otherwise valid targets that are exactly zero."""
    edges: Annotated[dict[str, Edges], _INNER]
    """With infinities: return, gap and vol_regime."""
    return_shape: ReturnShape

    def __post_init__(self) -> None:
        if list(self.symbols) != sorted(set(self.symbols)):
            raise ValueError("symbols must be sorted and unique: asset ids follow that order")
        if not len(self.symbols) == len(self.classes) == len(self.zero_share):
            raise ValueError("one class and one zero share per symbol")
        if not all(0 <= share <= 1 for share in self.zero_share):
            raise ValueError("a zero share must lie in [0, 1]")
        step_seconds(self.timeframe)
        if set(self.edges) != {"return", "gap", "vol_regime"}:
            raise ValueError("edges of return, gap and vol_regime")
        for name, edges in self.edges.items():
            if not (np.diff(edges) > 0).all() or len(edges) > MAX_EDGES:
                raise ValueError(f"edges of {name} must increase")
        if len(self.edges["return"]) != fields.NUM_RETURN_BUCKETS + 1:
            raise ValueError(f"{fields.NUM_RETURN_BUCKETS} return buckets")

    def asset_id(self, symbol: str) -> int:
        """1..n in sorted-symbol order, 0 for an unknown asset."""
        return self.symbols.index(symbol) + 1 if symbol in self.symbols else fields.UNKNOWN_ASSET

    def class_id(self, symbol: str) -> int:
        """The position of its class in `class_names`; an unknown asset gets its default class, or the first."""
        known = dict(zip(self.symbols, self.classes, strict=True))
        name = known.get(symbol, default_class(symbol))
        return self.class_names.index(name) if name in self.class_names else 0

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The paper's classes, then the user's own in alphabetical order."""
        return (*fields.CLASSES, *sorted({*self.classes} - {*fields.CLASSES}))

    def has_buckets_of(self, other: Tokenizer) -> bool:
        """Whether buckets mean the same under both, whatever their assets."""
        ours, theirs = self.to_json(), other.to_json()
        return all(ours[name] == theirs[name] for name in ("timeframe", "inner_edges", "return_shape"))

    @property
    def num_buckets(self) -> dict[str, int]:
        return {name: len(edges) - 1 for name, edges in self.edges.items()}

    @property
    def vocabulary_sizes(self) -> dict[str, int]:
        buckets = self.num_buckets
        return fields.vocabulary_sizes(len(self.symbols), len(self.class_names), buckets["gap"], buckets["vol_regime"])

    @property
    def sha256(self) -> str:
        return sha256_of(canonical_json(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = codec.to_json(self)
        return plain

    @classmethod
    def from_json(cls, value: dict[str, Any], where: object = None) -> Tokenizer:
        if isinstance(value, dict) and value.get("version") != TOKENIZER_VERSION:
            problem = "a tokenizer of another version"
            fix = "build the corpus again with this version of vaiom"
            raise DataError(problem, where=where, expected=TOKENIZER_VERSION, got=value.get("version"), fix=fix)
        return decode(cls, value, "not the state of a tokenizer", where=where, fix="build the corpus again")


def fit_on_train(
    own_values: Callable[[str], fields.Columns],
    train_end: datetime,
    timeframe: str,
    classes: Mapping[str, str],
    like: Tokenizer | None = None,
) -> Tokenizer:
    """Fit edges, shape and zero shares on Train events: unmasked row, valid own target, target time inside Train.

    With `like`, edges and shape are reused. Each asset's values are requested more than once, so that memory holds one
    asset and one quantity of all.
    """
    symbols = sorted(classes)
    end = int(np.datetime64(train_end, "s").astype(np.int64))

    def events_of(asset: fields.Columns, bad: np.uint8) -> Bools:
        """Rows, from the second on, that are the target of a Train event and have none of these flags."""
        event = ~fields.has_flag(asset["flags"][:-1], fields.ANY_MASK) & (asset["timestamp"][1:] < end)
        return event & ~fields.has_flag(asset["flags"][1:], bad)

    def ordered(name: str, bad: np.uint8) -> Floats:
        """The sorted finite values of a quantity at the Train events of all assets."""
        parts = []
        for asset in map(own_values, symbols):
            values = asset[name][1:][events_of(asset, bad)]
            parts.append(values[np.isfinite(values)])
        pooled = np.concatenate(parts)
        pooled.sort()
        return pooled

    zero_share = []
    for asset in map(own_values, symbols):
        good = events_of(asset, fields.BAD_RETURN)
        zero = events_of(asset, _NO_FLAG) & (asset["log_ret"][1:] == 0)
        zero_share.append(float(zero.sum() / max(1, (zero | good).sum())))
    if like:
        parts: dict[str, Any] = {"edges": like.edges, "return_shape": like.return_shape}
    else:
        parts = _fit_edges(ordered)
    return Tokenizer(
        symbols=tuple(symbols),
        classes=tuple(classes[symbol] for symbol in symbols),
        timeframe=timeframe,
        zero_share=tuple(zero_share),
        **parts,
    )


def _fit_edges(ordered: Callable[[str, np.uint8], Floats]) -> dict[str, Any]:
    """Fit edges and shape from the values of all assets, one quantity at a time."""
    edges = {}
    return_z = ordered("ret_z", fields.BAD_RETURN)
    edges["return"] = fit_signed_edges(return_z)
    if len(edges["return"]) != fields.NUM_RETURN_BUCKETS + 1:
        raise DataError(
            "the Train returns are too coarse for the return buckets: some quantiles coincide",
            expected=f"{fields.NUM_RETURN_BUCKETS} buckets",
            got=len(edges["return"]) - 1,
            fix="bring in prices with more digits, or more history before the end of Train",
        )
    shape = fit_shape(edges["return"], return_z)
    del return_z
    edges["gap"] = fit_signed_edges(ordered("gap_z", fields.BAD_GAP))
    edges["vol_regime"] = fit_regime_edges(ordered("relative_log_vol", _NO_FLAG))
    return {"edges": edges, "return_shape": shape}


def fit_signed_edges(ordered: npt.NDArray[np.float64]) -> Edges:
    """Fixed tail cutoffs and quantiles of the sorted values strictly between the inner pair; repeats collapse."""
    inner = min(np.abs(TAIL_CUTOFFS))
    inside = ordered[ordered.searchsorted(-inner, "right") : ordered.searchsorted(inner)]
    quantiles = _quantiles(inside, INTERIOR_QUANTILES)
    return np.unique(np.concatenate([[-np.inf, np.inf], TAIL_CUTOFFS, quantiles]))


def fit_regime_edges(values: npt.NDArray[np.float64]) -> Edges:
    """Quantiles of all values, between the infinities."""
    return np.unique(np.concatenate([[-np.inf, np.inf], _quantiles(values, REGIME_QUANTILES)]))


def bucket_of(edges: Edges, values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """The j with edges[j-1] < value <= edges[j]; non-finite values get 0."""
    ids = edges[1:-1].searchsorted(values) + 1
    return where(np.isfinite(values), ids, 0).astype(np.uint8)


def _quantiles(values: npt.NDArray[np.float64], levels: tuple[float, ...]) -> npt.NDArray[np.float64]:
    if not len(values):
        raise DataError(
            "Train holds no usable event to fit bucket edges on",
            expected="bars before the end of Train with at least 21 moving closes",
            fix="move the boundaries with --train-end, or bring in a longer history",
        )
    return np.quantile(values, levels)


def fit_shape(edges: Edges, values: Floats) -> ReturnShape:
    """Fit the knots of every bucket with two edges and the tails beyond the outermost."""
    inner = edges[1:-1]
    ordered = np.sort(values)
    # A bucket includes its upper edge, not its lower one.
    cuts = np.searchsorted(ordered, inner, side="right")
    buckets = (ordered[a:b] for a, b in pairwise(cuts))
    pieces = [_inner_knots(*pair) for pair in zip(inner[:-1], inner[1:], buckets, strict=True)]
    return ReturnShape(
        knots=np.concatenate([*pieces, inner[-1:]]),
        lower=_fit_tail(inner[0] - ordered[: cuts[0]]),
        upper=_fit_tail(ordered[cuts[-1] :] - inner[-1]),
    )


def _inner_knots(low: float, high: float, values: Floats) -> Floats:
    """The lower edge and the knots up to, not including, the upper one."""
    levels = np.arange(PIECES) / PIECES
    even = low + (high - low) * levels
    if not len(values):
        return even
    share = _EVEN_RETURNS / (len(values) + _EVEN_RETURNS)
    knots: Floats = share * even + (1 - share) * np.quantile(values, levels)
    knots[0] = low
    return knots


def _fit_tail(excesses: Floats) -> Tail:
    excesses = np.minimum(excesses, _MAX_EXCESS)
    count = len(excesses) + _MADE_UP_EXCESSES
    mean = (float(excesses.sum()) + _MADE_UP_EXCESSES * _MADE_UP_EXCESS) / count
    shape = 0.0
    if len(excesses) >= _MIN_EXCESSES:
        ordered = np.sort(excesses)
        above = 1 - (np.arange(len(ordered)) + 0.65) / len(ordered)  # their plotting positions
        first, second = float(ordered.mean()), float((above * ordered).mean())
        if first > 2 * second:
            shape = min(max(2 - first / (first - 2 * second), TAIL_SHAPES[0]), TAIL_SHAPES[1])
    # The mean is kept for every shape: scale / (1 - shape).
    return Tail(scale=mean * (1 - shape), shape=shape)
