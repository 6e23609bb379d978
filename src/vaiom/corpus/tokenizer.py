"""What is fitted on Train: bucket edges, the shape inside buckets and each asset's share of zero
returns (`Tokenizer`).

Paper: Methods, "Return Bucket Construction" and "Corpus Construction and Split Protocol" (never
refitted). The shape is
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
from vaiom.distribution.shape import PIECES, TAIL_SHAPES, ReturnShape, Tail
from vaiom.errors import DataError
from vaiom.features import fields
from vaiom.features.events import has_return, is_readable
from vaiom.features.recursions import Bools, Floats, where
from vaiom.files import canonical_json, sha256_of
from vaiom.market.symbols import default_class
from vaiom.market.timeframes import step_seconds

TAIL_CUTOFFS = (-8.0, -5.0, -3.0, -2.0, 2.0, 3.0, 5.0, 8.0)
INTERIOR_QUANTILES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
REGIME_QUANTILES = (0.2, 0.4, 0.6, 0.8)
TOKENIZER_VERSION = 2

# Pseudo-counts of each bucket, spread evenly: knots never coincide.
_PSEUDO_RETURNS = PIECES
# Pseudo-counts of each tail, and their size in sigmas.
_PSEUDO_EXCESSES = 5
_PSEUDO_EXCESS = 2.0
# One wrong tick must not determine the tail.
_MAX_EXCESS = 50.0
# With fewer excesses the tail is exponential: they say nothing about its shape.
_MIN_EXCESSES = 50

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
            if not (np.diff(edges) > 0).all() or len(edges) > 255:  # bucket ids are stored as bytes
                raise ValueError(f"edges of {name} must increase")
            edges.flags.writeable = False  # corpora and forecasts share them
        if len(self.edges["return"]) != fields.NUM_RETURN_BUCKETS + 1:
            raise ValueError(f"{fields.NUM_RETURN_BUCKETS} return buckets")

    def asset_id(self, symbol: str) -> int:
        """1..n in sorted-symbol order, 0 for an unknown asset."""
        return self.symbols.index(symbol) + 1 if symbol in self.symbols else fields.UNKNOWN_ASSET

    def class_id(self, symbol: str) -> int:
        """The position of its class in `class_names`; an unknown asset gets its default class, or
        the first.
        """
        name = dict(zip(self.symbols, self.classes, strict=True)).get(symbol, default_class(symbol))
        return self.class_names.index(name) if name in self.class_names else 0

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The paper's classes, then the user's own in alphabetical order."""
        return (*fields.CLASSES, *sorted({*self.classes} - {*fields.CLASSES}))

    def has_buckets_of(self, other: Tokenizer) -> bool:
        """Whether buckets mean the same under both, whatever their assets."""
        ours, theirs = self.to_json(), other.to_json()
        return all(
            ours[name] == theirs[name] for name in ("timeframe", "inner_edges", "return_shape")
        )

    @property
    def num_buckets(self) -> dict[str, int]:
        return {name: len(edges) - 1 for name, edges in self.edges.items()}

    @property
    def vocabulary_sizes(self) -> dict[str, int]:
        buckets = self.num_buckets
        return fields.vocabulary_sizes(
            len(self.symbols), len(self.class_names), buckets["gap"], buckets["vol_regime"]
        )

    @property
    def sha256(self) -> str:
        return sha256_of(canonical_json(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        return dict(codec.to_json(self))

    @classmethod
    def from_json(cls, value: dict[str, Any], where: object = None) -> Tokenizer:
        if isinstance(value, dict) and (version := value.get("version")) != TOKENIZER_VERSION:
            problem, fix = (
                "a tokenizer of another version",
                "build the corpus again with this version of vaiom",
            )
            raise DataError(problem, where=where, expected=TOKENIZER_VERSION, got=version, fix=fix)
        return decode(
            cls, value, "not the state of a tokenizer", where=where, fix="build the corpus again"
        )


def fit_on_train(
    own_values: Callable[[str], fields.Columns],
    train_end: datetime,
    timeframe: str,
    classes: Mapping[str, str],
    like: Tokenizer | None = None,
) -> Tokenizer:
    """Fit edges, shape and zero shares on Train events: unmasked row, valid own target, target time
    inside Train.

    With `like`, edges and shape are reused. Each asset's values are requested more than once, so
    that memory holds one asset and one quantity of all.
    """
    symbols = sorted(classes)
    end = int(np.datetime64(train_end, "s").astype(np.int64))

    def follows_in_train(asset: fields.Columns) -> Bools:
        """Rows, from the second on, that follow a readable row and lie in Train."""
        return is_readable(asset["flags"][:-1]) & (asset["timestamp"][1:] < end)

    def pooled(name: str, bad: np.uint8 | int = 0) -> Floats:
        """The sorted finite values of a quantity in the targets of Train events of all assets."""
        parts = []
        for asset in map(own_values, symbols):
            chosen = follows_in_train(asset) & ~fields.has_flag(asset["flags"][1:], bad)
            values = asset[name][1:][chosen]
            parts.append(values[np.isfinite(values)])
        values = np.concatenate(parts)
        values.sort()
        return values

    zero_share = []
    for asset in map(own_values, symbols):
        known = follows_in_train(asset) & has_return(asset)[1:]
        num_zero = (known & (asset["log_ret"][1:] == 0)).sum()
        zero_share.append(float(num_zero / max(1, known.sum())))
    if like:
        edges, shape = like.edges, like.return_shape
    else:
        return_edges, shape = fit_returns(pooled("ret_z", fields.BAD_RETURN))
        gap_edges = fit_signed_edges(pooled("gap_z", fields.BAD_GAP))
        regime_edges = fit_regime_edges(pooled("relative_log_vol"))
        edges = {"return": return_edges, "gap": gap_edges, "vol_regime": regime_edges}
    return Tokenizer(
        symbols=tuple(symbols),
        classes=tuple(classes[symbol] for symbol in symbols),
        timeframe=timeframe,
        zero_share=tuple(zero_share),
        edges=edges,
        return_shape=shape,
    )


def fit_returns(ordered: Floats, where: object = None) -> tuple[Edges, ReturnShape]:
    """Fit the edges of the return buckets, and the shape inside and beyond them, from sorted
    values.
    """
    edges = fit_signed_edges(ordered)
    if len(edges) != fields.NUM_RETURN_BUCKETS + 1:
        problem = "the Train returns are too coarse for the return buckets: some quantiles coincide"
        expected, got = f"{fields.NUM_RETURN_BUCKETS} buckets", len(edges) - 1
        fix = "bring in prices with more digits, or more history before the end of Train"
        raise DataError(problem, where=where, expected=expected, got=got, fix=fix)
    return edges, fit_shape(edges, ordered)


def fit_signed_edges(ordered: Floats) -> Edges:
    """Fixed tail cutoffs and quantiles of the sorted values strictly between the inner pair;
    repeats collapse.
    """
    inner = min(np.abs(TAIL_CUTOFFS))
    inside = ordered[ordered.searchsorted(-inner, "right") : ordered.searchsorted(inner)]
    return np.unique(
        np.concatenate([[-np.inf, np.inf], TAIL_CUTOFFS, _quantiles(inside, INTERIOR_QUANTILES)])
    )


def fit_regime_edges(values: Floats) -> Edges:
    """Quantiles of all values, between the infinities."""
    return np.unique(np.concatenate([[-np.inf, np.inf], _quantiles(values, REGIME_QUANTILES)]))


def bucket_of(edges: Edges, values: Floats) -> npt.NDArray[np.uint8]:
    """The j with edges[j-1] < value <= edges[j]; non-finite values get 0."""
    return where(np.isfinite(values), edges[1:-1].searchsorted(values) + 1, 0).astype(np.uint8)


def _quantiles(values: Floats, levels: tuple[float, ...]) -> Floats:
    if not len(values):
        problem = "Train holds no usable event to fit bucket edges on"
        expected = "bars before the end of Train with at least 21 moving closes"
        fix = (
            "move the boundaries with --train-end (`vaiom run` chooses them itself), or bring "
            "in a longer history"
        )
        raise DataError(problem, expected=expected, fix=fix)
    return np.quantile(values, levels)


def fit_shape(edges: Edges, values: Floats) -> ReturnShape:
    """Fit the knots of every bucket with two edges and the tails beyond the outermost."""
    inner, ordered, levels = edges[1:-1], np.sort(values), np.arange(PIECES) / PIECES
    # A bucket includes its upper edge, not its lower one.
    cuts = np.searchsorted(ordered, inner, side="right")
    knots = []
    for (low, high), (start, stop) in zip(pairwise(inner), pairwise(cuts), strict=True):
        pieces = low + (high - low) * levels
        if stop > start:
            share = _PSEUDO_RETURNS / (stop - start + _PSEUDO_RETURNS)
            pieces = share * pieces + (1 - share) * np.quantile(ordered[start:stop], levels)
            pieces[0] = low
        knots.append(pieces)
    return ReturnShape(
        knots=np.concatenate([*knots, inner[-1:]]),
        lower=_fit_tail(inner[0] - ordered[: cuts[0]]),
        upper=_fit_tail(ordered[cuts[-1] :] - inner[-1]),
    )


def _fit_tail(excesses: Floats) -> Tail:
    excesses = np.minimum(excesses, _MAX_EXCESS)
    count = len(excesses) + _PSEUDO_EXCESSES
    mean = (float(excesses.sum()) + _PSEUDO_EXCESSES * _PSEUDO_EXCESS) / count
    shape = 0.0
    if len(excesses) >= _MIN_EXCESSES:
        ordered = np.sort(excesses)
        above = 1 - (np.arange(len(ordered)) + 0.65) / len(ordered)  # their plotting positions
        first, second = float(ordered.mean()), float((above * ordered).mean())
        if first > 2 * second:
            shape = min(max(2 - first / (first - 2 * second), TAIL_SHAPES[0]), TAIL_SHAPES[1])
    # The mean is kept for every shape: scale / (1 - shape).
    return Tail(scale=mean * (1 - shape), shape=shape)
