"""Forecasts of a live stream: a state per asset that a bar updates in constant time.

Enters: bars one by one, or a history at once. Leaves: forecasts equal to those of `Forecaster.predict` on all bars so
far: inputs to the bit, because a bar goes through the recursion that builds a corpus. The state goes to JSON and back.
Paper: Methods, "Continuous dynamic features" (recursive scales).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from vaiom.errors import DataError
from vaiom.events.rows import COLUMN_TYPES
from vaiom.forecast.bars import MIN_BARS, checked_bars, wrong_timeframe
from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.forecaster import Forecaster, Window
from vaiom.forecast.inputs import Columns, RowState
from vaiom.market.folder import BAR_SCHEMA, PRICE_COLUMNS, check_symbol

STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class AssetStream:
    """Where one asset stands: its recursion, its last rows, and how many bars it has had."""

    rows: RowState
    columns: Columns
    num_bars: int

    @property
    def last(self) -> datetime:
        """The stamp of the last bar."""
        return _moment(int(self.columns["timestamp"][-1]))

    def to_json(self) -> dict[str, Any]:
        # Single-precision values survive as the doubles they equal; an undefined return is null.
        columns = {name: _plain(column) for name, column in self.columns.items()}
        return {"rows": self.rows.to_json(), "num_bars": self.num_bars, "columns": columns}

    @classmethod
    def from_json(cls, value: dict[str, Any], forecaster: Forecaster) -> AssetStream:
        columns: Columns = {
            name: np.array([np.nan if item is None else item for item in column]).astype(COLUMN_TYPES[name])
            for name, column in value["columns"].items()
        }
        return cls(rows=forecaster.rows.restored(value["rows"]), columns=columns, num_bars=value["num_bars"])


class OnlineForecaster:
    """Not for use by several threads at once."""

    def __init__(self, forecaster: Forecaster) -> None:
        self.forecaster = forecaster
        self.streams: dict[str, AssetStream] = {}

    def push(
        self, symbol: str, bar: Mapping[str, Any], *, forecast: bool = True, now: datetime | None = None
    ) -> ReturnDistribution | None:
        """Take the next bar of an asset; the forecast after it, None while there are too few bars or if not wanted."""
        self._advance(check_symbol(symbol), _one_bar(bar, symbol))
        return self.forecast(symbol, now=now) if forecast and self.ready(symbol) else None

    def extend(self, symbol: str, bars: Any) -> int:
        """Take a history, or the bars that follow the last one, at once; returns how many bars there were."""
        frame = checked_bars(bars, check_symbol(symbol), self.forecaster.tokenizer.timeframe, min_bars=1)
        self._advance(symbol, frame)
        return len(frame)

    def forecast(self, symbol: str, *, now: datetime | None = None) -> ReturnDistribution:
        """The forecast after the last bar of an asset."""
        return self.forecaster.forecast([self.window(symbol)], now)[0]

    def ready(self, symbol: str) -> bool:
        """Whether an asset has had enough bars to be forecast."""
        stream = self.streams.get(symbol)
        return stream is not None and stream.num_bars >= MIN_BARS and stream.columns["sigma20"][-1] > 0

    def window(self, symbol: str) -> Window:
        """What the next forecast of an asset depends on; windows of many go to `Forecaster.forecast` together."""
        if not self.ready(symbol):
            had = self.streams[symbol].num_bars if symbol in self.streams else 0
            raise DataError(
                "too few bars for a forecast", where=symbol, expected=f"{MIN_BARS} moving bars at least", got=had
            )
        return Window(symbol=symbol, columns=self.streams[symbol].columns)

    def to_json(self) -> dict[str, Any]:
        """All streams as JSON values that `restore` takes back, every bit kept."""
        return {
            **self._identity(),
            "assets": {symbol: stream.to_json() for symbol, stream in self.streams.items()},
        }

    def restore(self, value: dict[str, Any]) -> None:
        """Go on from a state that a forecaster with the same tokenizer and context left."""
        for name, ours in self._identity().items():
            if value.get(name) != ours:
                raise DataError(
                    "this state is of another model",
                    where=name,
                    expected=ours,
                    got=value.get(name),
                    fix="push the history of each asset again",
                )
        self.streams = {
            symbol: AssetStream.from_json(stream, self.forecaster) for symbol, stream in value["assets"].items()
        }

    def _identity(self) -> dict[str, Any]:
        """What a state must agree with."""
        return {
            "version": STATE_VERSION,
            "tokenizer_sha256": self.forecaster.tokenizer.sha256,
            "context": self.forecaster.context,
        }

    def _advance(self, symbol: str, bars: pl.DataFrame) -> None:
        old = self.streams.get(symbol)
        where = f"bars of {symbol}"
        if old is not None:
            self._require_next(old.last, bars["Datetime"][0], where)
        make = self.forecaster.rows
        columns, after = make(bars, old.rows if old else make.start(), where)
        keep = self.forecaster.context
        if old is not None:
            columns = {name: np.concatenate([old.columns[name], new]) for name, new in columns.items()}
        self.streams[symbol] = AssetStream(
            rows=after,
            columns={name: column[-keep:].copy() for name, column in columns.items()},
            num_bars=(old.num_bars if old else 0) + len(bars),
        )

    def _require_next(self, last: datetime, stamp: datetime, where: str) -> None:
        if stamp <= last:
            kind = "is repeated" if stamp == last else "goes back in time"
            raise DataError(f"a stamp {kind}", where=where, expected=f"a bar after {last}", got=stamp)
        if stamp - last < self.forecaster.timeframe:
            raise wrong_timeframe(where, self.forecaster.tokenizer.timeframe, stamp - last)


def _one_bar(bar: Mapping[str, Any], symbol: str) -> pl.DataFrame:
    """A bar as a frame of one row; names in any case, High, Low and Volume as in a bar folder."""
    values = {str(name).lower(): value for name, value in bar.items()}
    where = f"a bar of {symbol}"
    missing = [name for name in ("Datetime", *PRICE_COLUMNS) if name.lower() not in values]
    if missing:
        raise DataError(f"{missing[0]!r} is missing", where=where, expected=", ".join(("Datetime", *PRICE_COLUMNS)))
    stamp = values["datetime"]
    if not isinstance(stamp, datetime) or stamp.tzinfo is not None:
        raise DataError("a stamp must be a naive datetime", where=where, got=repr(stamp))
    numbers = {name: values.get(name.lower()) for name in (*PRICE_COLUMNS, "Volume")}
    for name, number in numbers.items():
        numeric = isinstance(number, (int, float, np.integer, np.floating)) and not isinstance(number, bool)
        if number is not None and not (numeric and abs(number) != np.inf):
            raise DataError("a price must be a finite number, or missing", where=f"{where}, {name}", got=repr(number))
    columns = {name: [None if number is None else float(number)] for name, number in numbers.items()}
    return pl.DataFrame({"Datetime": [stamp], **columns}, schema=BAR_SCHEMA)


def _moment(seconds: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(seconds=seconds)


def _plain(column: Any) -> list[Any]:
    return [None if item != item else item for item in column.tolist()]
