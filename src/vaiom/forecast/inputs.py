"""From bars to what a model reads: the one place that knows which fields a model takes.

Enters: checked bars and the state before them. Leaves: stored columns of their rows, the state after them, and the
model's inputs for a window of rows. The recursions are those that build a corpus; the one of the extra fields, which
costs more, runs only for a model that reads them.
Paper: Methods, "Input Representations".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.errors import ConfigError
from vaiom.events.extra import AssetState, asset_rows
from vaiom.events.inputs import continuous_inputs, discrete_inputs
from vaiom.events.rows import rows_of
from vaiom.events.scales import ScaleState
from vaiom.events.schema import CLASSES, CONT_FIELDS, CROSS_FIELDS, DISC_FIELDS, OWN_FIELDS, default_class
from vaiom.events.tokenizer import Tokenizer
from vaiom.market.bars import timeframe_of
from vaiom.model.config import ModelConfig

Columns = dict[str, npt.NDArray[Any]]
RowState = ScaleState | AssetState
"""What is remembered of an asset's past beside the rows of the window."""


class RowMaker:
    """Makes the rows of one model's assets."""

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer) -> None:
        cross = [name for name in config.input_fields if name in CROSS_FIELDS]
        if cross:
            raise ConfigError(
                "this model reads other assets' bars, and forecasts are made from one asset's",
                got=", ".join(cross),
                fix="train a model without these fields",
            )
        self.tokenizer = tokenizer
        self.extra = any(name in OWN_FIELDS for name in config.input_fields)

    def start(self) -> RowState:
        """The state before an asset's first bar."""
        return AssetState.empty(timeframe_of(self.tokenizer.timeframe)) if self.extra else ScaleState()

    def restored(self, value: dict[str, Any]) -> RowState:
        """The state that a `to_json` of it describes."""
        return AssetState.from_json(value) if self.extra else ScaleState.from_json(value)

    def __call__(self, bars: pl.DataFrame, state: RowState, where: str) -> tuple[Columns, RowState]:
        """Stored columns of bars that follow `state`, and the state after them."""
        if isinstance(state, AssetState):
            rows, own, after = asset_rows(bars, state, where)
            return {**rows.columns(self.tokenizer), **own}, after
        rows, scales = rows_of(bars, state, where)
        return rows.columns(self.tokenizer), scales


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
    own = {name: columns[name].astype(np.float32) for name in fields if name in OWN_FIELDS}
    named = {**dict(zip(CONT_FIELDS, continuous.T, strict=True)), **own}
    return np.stack([named[name] for name in fields], axis=1)
