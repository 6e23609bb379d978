"""From bars to what a model reads: the one place that knows which fields a model takes.

Enters: checked bars and the state before them. Leaves: stored columns of their rows, the state after them, and the
model's inputs for a window of rows. The recursions are those that build a corpus; the one of the extra fields, which
costs more, runs only for a model that reads them. Fields of other assets are `forecast.company`'s.
Paper: Methods, "Input Representations".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.events.calendar import log_waits, step_seconds
from vaiom.events.extra import AssetState, asset_rows
from vaiom.events.inputs import continuous_inputs, discrete_inputs
from vaiom.events.rows import rows_of
from vaiom.events.scales import ScaleState
from vaiom.events.schema import (
    CLASSES,
    COLUMN_TYPES,
    CONT_FIELDS,
    CROSS_FIELDS,
    DISC_FIELDS,
    EXTRA_FIELDS,
    OWN_FIELDS,
    default_class,
)
from vaiom.events.tokenizer import Tokenizer
from vaiom.forecast.live import LiveBar, live_asset_row, live_row, stored_row
from vaiom.market.stamps import timeframe_of
from vaiom.model.config import ModelConfig

WAIT = "log_wait"
ROW_TYPES = {**COLUMN_TYPES, WAIT: "<f4"}
"""A window may begin anywhere, so that its first wait does not follow from its stamps."""

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class RowState:
    """What is remembered of an asset's past beside the rows of the window."""

    recursion: ScaleState | AssetState
    last: int | None = None
    """Seconds of the last stamp; None before the first bar."""

    def to_json(self) -> dict[str, Any]:
        return {"recursion": self.recursion.to_json(), "last": self.last}


class RowMaker:
    """Makes the rows of one model's assets."""

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.beyond = tuple(name for name in EXTRA_FIELDS if name in config.input_fields)
        """The fields that the paper does not have, of those that the model reads."""
        self.extra = any(name in OWN_FIELDS for name in self.beyond)
        self.cross = any(name in CROSS_FIELDS for name in self.beyond)
        self.step = step_seconds(tokenizer.timeframe)
        self._inner_edges = {name: edges[1:-1].tolist() for name, edges in tokenizer.edges.items()}

    def start(self) -> RowState:
        """The state before an asset's first bar."""
        timeframe = timeframe_of(self.tokenizer.timeframe)
        return RowState(recursion=AssetState.empty(timeframe) if self.extra else ScaleState())

    def restored(self, value: dict[str, Any]) -> RowState:
        """The state that a `to_json` of it describes."""
        kind = AssetState if self.extra else ScaleState
        return RowState(recursion=kind.from_json(value["recursion"]), last=value["last"])

    def __call__(self, bars: pl.DataFrame, state: RowState, where: str) -> tuple[Columns, RowState]:
        """Stored columns of bars that follow `state`, and the state after them."""
        recursion: ScaleState | AssetState
        if isinstance(state.recursion, AssetState):
            rows, own, recursion = asset_rows(bars, state.recursion, where)
            columns: Columns = {**rows.columns(self.tokenizer), **own}
        else:
            rows, recursion = rows_of(bars, state.recursion, where)
            columns = dict(rows.columns(self.tokenizer))
        if WAIT in self.beyond:
            before = [] if state.last is None else [state.last]
            columns[WAIT] = log_waits(np.concatenate([before, rows.timestamp]), self.step)[len(before) :]
        return columns, RowState(recursion=recursion, last=int(rows.timestamp[-1]) if len(rows) else state.last)

    def live(self, bar: LiveBar, state: RowState) -> tuple[Columns, RowState]:
        """The same for one bar, bit for bit, in a small part of the time."""
        recursion: ScaleState | AssetState
        own: dict[str, float] = {}
        if isinstance(state.recursion, AssetState):
            row, own, recursion = live_asset_row(bar, state.recursion)
        else:
            row, recursion = live_row(bar, state.recursion)
        values = {**stored_row(bar, row, self._inner_edges), **own}
        if WAIT in self.beyond:
            values[WAIT] = 0.0 if state.last is None else float(np.log((bar.seconds - state.last) / self.step))
        columns = {name: np.array([value], ROW_TYPES[name]) for name, value in values.items()}
        return columns, RowState(recursion=recursion, last=bar.seconds)


def meta_of(tokenizer: Tokenizer, symbol: str) -> npt.NDArray[np.int64]:
    """(3,): asset id, class id, timeframe id; an unknown asset has the class that a corpus would give it."""
    known = symbol in tokenizer.symbols
    class_id = tokenizer.class_id(symbol) if known else CLASSES.index(default_class(symbol))
    return np.array([tokenizer.asset_id(symbol), class_id, 0], np.int64)


def inputs_of(
    config: ModelConfig, columns: Mapping[str, npt.NDArray[Any]], meta: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """(T, F) inputs of consecutive rows of one asset."""
    fields = config.input_fields
    if config.input == "disc":
        repeated = np.broadcast_to(meta.astype(np.int16), (len(columns["timestamp"]), len(meta)))
        return discrete_inputs(columns, repeated)[:, [DISC_FIELDS.index(name) for name in fields]].astype(np.float32)
    continuous = continuous_inputs(columns)
    if fields == CONT_FIELDS:
        return continuous
    beyond = {name: columns[name].astype(np.float32) for name in fields if name in EXTRA_FIELDS}
    named = {**dict(zip(CONT_FIELDS, continuous.T, strict=True)), **beyond}
    return np.stack([named[name] for name in fields], axis=1)
