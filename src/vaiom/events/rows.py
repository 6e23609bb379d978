"""One asset's bars as rows: every number a row carries, known at the row's own time.

Enters: bars that follow a state, a whole history or one live bar. Leaves: the columns that a corpus stores of their
rows, and the state after them. A row holds nothing of the next one: targets are the next row's own values, joined when
a corpus is read.
Paper: Methods, "Continuous dynamic features" and "Data-quality masks".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.errors import DataError
from vaiom.events import fields
from vaiom.events.calendar import LAST_SECOND, log_waits
from vaiom.events.fields import BUCKETED, CROSS_FIELDS, EXTRA_FIELDS, OWN_FIELDS
from vaiom.events.fit import Tokenizer, bucket_of
from vaiom.events.scales import AssetState, Bars, Series
from vaiom.market.timeframes import step_seconds

WAIT = "log_wait"

Columns = dict[str, npt.NDArray[Any]]


def bars_of(frame: pl.DataFrame, where: object = None) -> Bars:
    """Ordered bars as arrays; nulls become NaN."""
    microseconds = frame["Datetime"].cast(pl.Datetime("us")).to_physical().to_numpy()
    seconds = microseconds // 1_000_000
    unstorable = (seconds * 1_000_000 != microseconds) | (seconds < 0) | (seconds > LAST_SECOND)
    if unstorable.any():
        row = int(unstorable.argmax())
        raise DataError(
            "a bar's stamp cannot be stored",
            where=f"{where}, row {row + 1}",
            expected="whole seconds between 1970 and 2106",
            got=frame["Datetime"][row],
            fix="resample the bars with `vaiom data resample`, or check how the stamps were parsed",
        )
    names = ("Open", "High", "Low", "Close", "Volume")
    return Bars(seconds, *(frame[name].cast(pl.Float64).to_numpy() for name in names))


def rows_of(bars: Bars, state: AssetState) -> tuple[Columns, AssetState]:
    """Rows of bars that follow `state`, the extra fields with them where the state has them; and the state after.

    The paper's values are float64, undefined ones NaN, as the fit of the tokenizer wants them.
    """
    made = list(blocks_of(bars, state))
    if len(made) == 1:
        return made[0]
    return {name: np.concatenate([columns[name] for columns, _ in made]) for name in made[0][0]}, made[-1][1]


def blocks_of(bars: Bars, state: AssetState) -> Iterator[tuple[Columns, AssetState]]:
    """Rows in blocks that stay in a processor's cache, each with the state after it."""
    for start in range(0, np.size(bars.seconds) or 1, fields.BLOCK_ROWS):
        many = isinstance(bars.seconds, np.ndarray)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            series = Series(bars.part(slice(start, start + fields.BLOCK_ROWS)) if many else bars, state)
            columns, state = fields.columns_of(series), series.after
        yield columns, state


def stored_columns(rows: Columns, tokenizer: Tokenizer) -> Columns:
    """What a corpus stores of rows; buckets are taken from the float64 values."""
    edges = tokenizer.edges
    return fields.stored(rows) | {name: bucket_of(edges[of], rows[value]) for name, (of, value) in BUCKETED.items()}


class RowMaker:
    """Makes the rows that one model reads: of a history, of new bars, of one live bar.

    Recursions that no field of the model needs do not run; what rows read of other assets is `fields.cross_columns`.
    """

    def __init__(self, input_fields: Sequence[str], tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.beyond = tuple(name for name in EXTRA_FIELDS if name in input_fields)
        """The fields that the paper does not have, of those that the model reads."""
        self.extra = any(name in OWN_FIELDS for name in self.beyond)
        self.cross = any(name in CROSS_FIELDS for name in self.beyond)
        self.step = step_seconds(tokenizer.timeframe)

    def start(self) -> AssetState:
        """The state before an asset's first bar."""
        return AssetState.empty(timedelta(seconds=self.step) if self.extra else None)

    def restored(self, value: dict[str, Any]) -> AssetState:
        """The state that a `to_json` of it describes."""
        state = AssetState.from_json(value)
        if (state.slots is not None) != self.extra:
            raise DataError("not the state of a model with these fields", fix="push the history of each asset again")
        return state

    def __call__(
        self, bars: Bars, state: AssetState | None = None, last: int | None = None
    ) -> tuple[Columns, AssetState]:
        """Stored columns of bars that follow `state` and the stamp `last`, and the state after them."""
        rows, state = rows_of(bars, state or self.start())
        columns = stored_columns(rows, self.tokenizer)
        if not isinstance(bars.seconds, np.ndarray):
            columns = {name: np.array([value]) for name, value in columns.items()}
        if WAIT in self.beyond:
            columns[WAIT] = log_waits(columns["timestamp"], self.step, last)
        return columns, state


def meta_of(tokenizer: Tokenizer, symbol: str) -> npt.NDArray[np.int64]:
    """(3,): asset id, class id, timeframe id."""
    return np.array([tokenizer.asset_id(symbol), tokenizer.class_id(symbol), 0], np.int64)
