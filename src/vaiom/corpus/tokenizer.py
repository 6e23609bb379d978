"""What is fitted on Train: bucket edges, the shape inside buckets and each asset's share of zero
returns (`Tokenizer`).

Paper: Methods, "Return Bucket Construction" and "Corpus Construction and Split Protocol" (never
refitted). The shape is ours: pooled Train quantiles, and tails by probability-weighted moments
(Hosking and Wallis 1987).
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

from vaiom import codec
from vaiom.codec import Stored, decode
from vaiom.corpus.series import Series
from vaiom.distribution.shape import PIECES, TAIL_SHAPES, ReturnShape, Tail
from vaiom.errors import DataError
from vaiom.features import fields
from vaiom.features.events import has_return, is_readable
from vaiom.features.typing import Bools, Columns, Floats, Ints
from vaiom.files import canonical_json, sha256_of
from vaiom.market.symbols import default_class
from vaiom.market.timeframes import step_seconds

TAIL_CUTOFFS = (-8.0, -5.0, -3.0, -2.0, 2.0, 3.0, 5.0, 8.0)
"""Edges of the buckets of tails, in sigmas."""
INTERIOR_QUANTILES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
"""Levels of the edges between the tails."""
REGIME_QUANTILES = (0.2, 0.4, 0.6, 0.8)
"""Levels of the edges of volatility regimes."""
TOKENIZER_VERSION = 2
MAPS = ("return", "gap", "vol_regime")
"""What has buckets."""

_MOST_EDGES = 255  # bucket ids are stored as bytes
_PSEUDO_RETURNS = PIECES  # of each bucket, spread evenly: knots never coincide
_PSEUDO_EXCESSES = 5  # of each tail
_PSEUDO_EXCESS = 2.0  # their size in sigmas
_MAX_EXCESS = 50.0  # one wrong tick must not determine the tail
_MIN_EXCESSES = 50  # fewer say nothing about the tail's shape: it is exponential

Edges = Floats

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
        if set(self.edges) != set(MAPS):
            raise ValueError("edges of return, gap and vol_regime")
        for name, edges in self.edges.items():
            if not (np.diff(edges) > 0).all() or len(edges) > _MOST_EDGES:
                raise ValueError(f"edges of {name} must increase")
            edges.flags.writeable = False  # corpora and forecasts share them
        if len(self.edges["return"]) != fields.NUM_RETURN_BUCKETS + 1:
            raise ValueError(f"{fields.NUM_RETURN_BUCKETS} return buckets")

    @property
    def series(self) -> dict[str, Series]:
        """The histories that it was fitted on, by name."""
        return {
            symbol: Series(symbol=symbol, asset_class=name, timeframe=self.timeframe)
            for symbol, name in zip(self.symbols, self.classes, strict=True)
        }

    def asset_id(self, symbol: str) -> int:
        """1..n in sorted-symbol order, 0 for an unknown asset."""
        return self.symbols.index(symbol) + 1 if symbol in self.symbols else fields.UNKNOWN_ASSET

    def class_id(self, symbol: str) -> int:
        """The position of its class in `class_names`; an unknown asset gets its default class, or
        the first.
        """
        own = self.asset_id(symbol)
        name = default_class(symbol) if own == fields.UNKNOWN_ASSET else self.classes[own - 1]
        return self.class_names.index(name) if name in self.class_names else 0

    def meta(self, symbol: str) -> Ints:
        """(3,): asset id, class id, timeframe id."""
        return np.array([self.asset_id(symbol), self.class_id(symbol), 0], np.int64)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The paper's classes, then the user's own in alphabetical order."""
        return (*fields.CLASSES, *sorted({*self.classes} - {*fields.CLASSES}))

    def has_buckets_of(self, other: Tokenizer) -> bool:
        """Whether buckets mean the same under both, whatever their assets."""
        ours = self.to_json()
        theirs = other.to_json()
        names = ("timeframe", "inner_edges", "return_shape")
        return all(ours[name] == theirs[name] for name in names)

    @property
    def num_buckets(self) -> dict[str, int]:
        """How many buckets each map has."""
        return {name: len(edges) - 1 for name, edges in self.edges.items()}

    @property
    def vocabulary_sizes(self) -> dict[str, int]:
        """Number of indices of each discrete field, index 0 included."""
        buckets = self.num_buckets
        return fields.vocabulary_sizes(
            len(self.symbols), len(self.class_names), buckets["gap"], buckets["vol_regime"]
        )

    @property
    def sha256(self) -> str:
        """Hash of its JSON form."""
        return sha256_of(canonical_json(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """A JSON object that restores every bit."""
        return dict(codec.to_json(self))

    @classmethod
    def from_json(cls, value: dict[str, Any], where: object = None) -> Tokenizer:
        """The tokenizer from its `to_json`; `where` names its file in an error."""
        version = value.get("version") if isinstance(value, dict) else TOKENIZER_VERSION
        if version != TOKENIZER_VERSION:
            raise DataError(
                "a tokenizer of another version",
                where=where,
                expected=TOKENIZER_VERSION,
                got=version,
                fix="build the corpus again with this version of vaiom",
            )
        problem = "not the state of a tokenizer"
        return decode(cls, value, problem, where=where, fix="build the corpus again")


def fit_on_train(
    own_values: Callable[[str], Columns],
    train_end: datetime,
    series: Mapping[str, Series],
    like: Tokenizer | None = None,
) -> Tokenizer:
    """Fit edges, shape and zero shares on Train events: unmasked row, valid own target, target time
    inside Train.

    With `like`, edges and shape are reused. `own_values` gives the columns of a series. It is
    called more than once for each, so that memory holds one series and one quantity of all.
    """
    symbols = sorted(series)
    end = int(np.datetime64(train_end, "s").astype(np.int64))

    def follows_in_train(rows: Columns) -> Bools:
        """Rows, from the second on, that follow a readable row and lie in Train."""
        in_train = rows["timestamp"][1:] < end
        return is_readable(rows["flags"][:-1]) & in_train

    def pooled(name: str, bad: np.uint8 | int = 0) -> Floats:
        """The sorted finite values of a quantity in the targets of Train events of all assets."""
        parts = []
        for rows in map(own_values, symbols):
            is_bad = fields.has_flag(rows["flags"][1:], bad)
            values = rows[name][1:][follows_in_train(rows) & ~is_bad]
            parts.append(values[np.isfinite(values)])
        pool = np.concatenate(parts)
        pool.sort()
        return pool

    def zero_share(rows: Columns) -> float:
        """The share of exact zeros among the known returns that follow Train rows."""
        known = follows_in_train(rows) & has_return(rows)[1:]
        is_zero = rows["log_ret"][1:] == 0
        return float((known & is_zero).sum() / max(1, known.sum()))

    zero_shares = [zero_share(rows) for rows in map(own_values, symbols)]
    if like:
        edges = like.edges
        shape = like.return_shape
    else:
        return_edges, shape = fit_returns(pooled("ret_z", fields.BAD_RETURN))
        edges = {
            "return": return_edges,
            "gap": fit_signed_edges(pooled("gap_z", fields.BAD_GAP)),
            "vol_regime": fit_regime_edges(pooled("relative_log_vol")),
        }
    return Tokenizer(
        symbols=tuple(symbols),
        classes=tuple(series[symbol].asset_class for symbol in symbols),
        timeframe=series[symbols[0]].timeframe,
        zero_share=tuple(zero_shares),
        edges=edges,
        return_shape=shape,
    )


def fit_returns(ordered: Floats, where: object = None) -> tuple[Edges, ReturnShape]:
    """Fit the edges of the return buckets, and the shape inside and beyond them, from sorted
    values.
    """
    edges = fit_signed_edges(ordered)
    num_buckets = len(edges) - 1
    if num_buckets != fields.NUM_RETURN_BUCKETS:
        raise DataError(
            "the Train returns are too coarse for the return buckets: some quantiles coincide",
            where=where,
            expected=f"{fields.NUM_RETURN_BUCKETS} buckets",
            got=num_buckets,
            fix="bring in prices with more digits, or more history before the end of Train",
        )
    return edges, fit_shape(edges, ordered)


def fit_signed_edges(ordered: Floats) -> Edges:
    """Fixed tail cutoffs and quantiles of the sorted values strictly between the inner pair;
    repeats collapse.
    """
    inner = min(np.abs(TAIL_CUTOFFS))
    start = ordered.searchsorted(-inner, "right")
    inside = ordered[start : ordered.searchsorted(inner)]
    return _edges_at([*TAIL_CUTOFFS, *_quantiles(inside, INTERIOR_QUANTILES)])


def fit_regime_edges(values: Floats) -> Edges:
    """Quantiles of all values, between the infinities."""
    return _edges_at(_quantiles(values, REGIME_QUANTILES))


def _edges_at(inner: list[float] | Floats) -> Edges:
    return np.unique([-np.inf, *inner, np.inf])


def _quantiles(values: Floats, levels: tuple[float, ...]) -> Floats:
    if not len(values):
        raise DataError(
            "Train holds no usable event to fit bucket edges on",
            expected="bars before the end of Train with at least 21 moving closes",
            fix="move the boundaries with --train-end (`vaiom run` chooses them itself), or bring "
            "in a longer history",
        )
    return np.quantile(values, levels)


def fit_shape(edges: Edges, values: Floats) -> ReturnShape:
    """Fit the knots of every bucket with two edges and the tails beyond the outermost."""
    inner = edges[1:-1]
    # A bucket includes its upper edge, not its lower one.
    ordered = np.sort(values)
    cuts = np.searchsorted(ordered, inner, side="right")
    below, *inside, above = np.split(ordered, cuts)
    buckets = zip(pairwise(inner), inside, strict=True)
    knots = [_knots_between(low, high, own) for (low, high), own in buckets]
    return ReturnShape(
        knots=np.concatenate([*knots, inner[-1:]]),
        lower=_fit_tail(inner[0] - below),
        upper=_fit_tail(above - inner[-1]),
    )


def _knots_between(low: float, high: float, ordered: Floats) -> Floats:
    """(PIECES,) quantiles of the values of a bucket, from its lower edge, drawn towards evenly
    spread ones by their pseudo-counts.
    """
    levels = np.arange(PIECES) / PIECES
    even = low + (high - low) * levels
    if not len(ordered):
        return even
    share = _PSEUDO_RETURNS / (len(ordered) + _PSEUDO_RETURNS)
    knots = share * even + (1 - share) * np.quantile(ordered, levels)
    knots[0] = low
    return knots


def _fit_tail(excesses: Floats) -> Tail:
    """A generalised Pareto tail by probability-weighted moments (Hosking and Wallis 1987).

    With b0 the mean and b1 the mean of (1 - F(x)) x, the shape is 2 - b0 / (b0 - 2 b1), within
    bounds. The scale keeps the mean, scale / (1 - shape).
    """
    limited = np.minimum(excesses, _MAX_EXCESS)
    num_excesses = len(limited)
    total = float(limited.sum()) + _PSEUDO_EXCESSES * _PSEUDO_EXCESS
    mean = total / (num_excesses + _PSEUDO_EXCESSES)
    shape = 0.0
    if num_excesses >= _MIN_EXCESSES:
        ordered = np.sort(limited)
        plotting_positions = (np.arange(num_excesses) + 0.65) / num_excesses
        first = float(ordered.mean())
        second = float(((1 - plotting_positions) * ordered).mean())
        if first > 2 * second:
            lowest, highest = TAIL_SHAPES
            estimate = 2 - first / (first - 2 * second)
            shape = min(max(estimate, lowest), highest)
    return Tail(scale=mean * (1 - shape), shape=shape)
