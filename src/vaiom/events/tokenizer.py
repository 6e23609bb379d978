"""The Train-fitted state: bucket edges, where returns lie inside them, asset ids and classes, shares of exact zeros.

Enters: fitted values. Leaves: a JSON document and its SHA-256, which every model trained on it carries.
Paper: Methods, "Corpus Construction and Split Protocol" (serialized tokenizer state, never refitted).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from vaiom.errors import DataError
from vaiom.events.buckets import Edges
from vaiom.events.calendar import step_seconds
from vaiom.events.distribution import ReturnShape
from vaiom.events.schema import CLASSES, NUM_RETURN_BUCKETS, UNKNOWN_ASSET, vocabulary_sizes
from vaiom.files import canonical_json, sha256_of

TOKENIZER_VERSION = 2
MAX_EDGES = 255
"""Bucket ids are bytes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
    """Fitted on Train alone; two tokenizers are the same when their hashes are."""

    symbols: tuple[str, ...]
    classes: tuple[str, ...]
    timeframe: str
    edges: dict[str, Edges]
    zero_share: tuple[float, ...]
    """Per symbol, the Train share of otherwise valid targets that are exactly zero."""
    return_shape: ReturnShape

    def __post_init__(self) -> None:
        if list(self.symbols) != sorted(set(self.symbols)):
            raise ValueError("symbols must be sorted and unique: asset ids follow that order")
        if not len(self.symbols) == len(self.classes) == len(self.zero_share):
            raise ValueError("one class and one zero share per symbol")
        if not set(self.classes) <= set(CLASSES):
            raise ValueError(f"classes must be among {', '.join(CLASSES)}")
        if not all(0 <= share <= 1 for share in self.zero_share):
            raise ValueError("a zero share must lie in [0, 1]")
        step_seconds(self.timeframe)
        if set(self.edges) != {"return", "gap", "vol_regime"}:
            raise ValueError("edges of return, gap and vol_regime")
        for name, edges in self.edges.items():
            if not (np.diff(edges) > 0).all() or len(edges) > MAX_EDGES:
                raise ValueError(f"edges of {name} must increase")
        if len(self.edges["return"]) != NUM_RETURN_BUCKETS + 1:
            raise ValueError(f"{NUM_RETURN_BUCKETS} return buckets")

    def asset_id(self, symbol: str) -> int:
        """1..n in sorted-symbol order, 0 for an asset the corpus never saw."""
        return self.symbols.index(symbol) + 1 if symbol in self.symbols else UNKNOWN_ASSET

    def class_id(self, symbol: str) -> int:
        return CLASSES.index(self.classes[self.symbols.index(symbol)])

    @property
    def num_buckets(self) -> dict[str, int]:
        return {name: len(edges) - 1 for name, edges in self.edges.items()}

    @property
    def vocabulary_sizes(self) -> dict[str, int]:
        return vocabulary_sizes(len(self.symbols), self.num_buckets["gap"], self.num_buckets["vol_regime"])

    @property
    def sha256(self) -> str:
        return sha256_of(canonical_json(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Edges without the infinities, which JSON cannot hold; floats round-trip exactly."""
        return {
            "version": TOKENIZER_VERSION,
            "timeframe": self.timeframe,
            "symbols": list(self.symbols),
            "classes": list(self.classes),
            "zero_share": list(self.zero_share),
            "inner_edges": {name: edges[1:-1].tolist() for name, edges in self.edges.items()},
            "return_shape": self.return_shape.to_json(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], where: object = None) -> Tokenizer:
        try:
            return cls._from_json(value, where)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                "not the state of a tokenizer", where=where, got=str(error), fix="build the corpus again"
            ) from error

    @classmethod
    def _from_json(cls, value: dict[str, Any], where: object) -> Tokenizer:
        if value.get("version") != TOKENIZER_VERSION:
            raise DataError(
                "a tokenizer of another version",
                where=where,
                expected=TOKENIZER_VERSION,
                got=value.get("version"),
                fix="build the corpus again with this version of vaiom",
            )
        edges = {
            name: np.array([-math.inf, *inner, math.inf], np.float64) for name, inner in value["inner_edges"].items()
        }
        return cls(
            symbols=tuple(value["symbols"]),
            classes=tuple(value["classes"]),
            timeframe=value["timeframe"],
            edges=edges,
            zero_share=tuple(value["zero_share"]),
            return_shape=ReturnShape.from_json(value["return_shape"]),
        )
