"""Forecasts of a live stream: a state per asset that a bar updates in constant time.

Enters: bars one by one or a stamp at a time, or a history at once. Leaves: forecasts equal to those of
`Forecaster.predict` on all bars so far: inputs to the bit, because a bar goes through the recursion that builds a
corpus. What a row reads of other assets is made anew whenever one more bar of its stamp arrives. A model whose layers
see a window of rows computes new and changed rows alone. The state goes to JSON and back; what the model remembers is
computed again from its rows.
Paper: Methods, "Continuous dynamic features" (recursive scales).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np

from vaiom.errors import DataError
from vaiom.events.fields import CROSS_FIELDS, ROW_TYPES, inputs_of
from vaiom.events.rows import Columns, bars_of, meta_of
from vaiom.events.scales import AssetState, Bars
from vaiom.forecast.bars import MIN_BARS, check_bars, live_bar, moment_of, wrong_timeframe
from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.engine import Events
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.rows import Window, cut_window, refresh_cross_fields
from vaiom.model.row_step import MOST_ROWS, RowMemory, RowStep

STATE_VERSION = 2

# The same number of bars reaches further back in an asset that trades fewer hours. Where assets read each other, rows
# are kept for its sake beyond the window.
_KEPT_CONTEXTS = 2
_REMEMBERED = 8
"""Rows that a bar of another asset may come late and change at the price of those rows."""
_ROOM = 512
"""Rows that are written before the kept ones are copied."""


class _Rows:
    """Columns that streams write on in, as long as nobody else has; what was written is never changed."""

    def __init__(self, columns: Columns, room: int) -> None:
        self.end, self.capacity = len(columns["timestamp"]), len(columns["timestamp"]) + room
        self.columns = {name: np.concatenate([each, np.empty(room, each.dtype)]) for name, each in columns.items()}

    def write(self, columns: Columns, kept: int) -> Columns:
        """The last rows, after more were written."""
        start, self.end = self.end, self.end + len(columns["timestamp"])
        for name, column in self.columns.items():
            column[start : self.end] = columns[name]
        return {name: column[max(0, self.end - kept) : self.end] for name, column in self.columns.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class AssetStream:
    """Where one asset stands: its recursion, its last rows, and how many bars it has had."""

    recursion: AssetState
    columns: Columns
    num_bars: int
    memories: list[RowMemory] = field(default_factory=list)
    """What the model remembers after each of the last rows, if it has been asked."""
    rows: _Rows | None = None
    """Where the columns lie, but for those that bars of other assets change."""
    end: int = 0

    def followed_by(self, recursion: AssetState, new: Columns, kept: int) -> AssetStream:
        """With more rows; where they are few, the last ones alone."""
        number, rows = len(new["timestamp"]), self.rows
        few = number <= _ROOM
        joined = {name for name in new if name in CROSS_FIELDS or not few}
        columns = {name: np.concatenate([self.columns[name], new[name]])[-kept if few else 0 :] for name in joined}
        if few and (rows is None or rows.end != self.end or rows.end + number > rows.capacity):
            rows = _Rows({name: self.columns[name] for name in new.keys() - joined}, _ROOM)
        if few and rows:
            columns |= rows.write(new, kept)
        return AssetStream(
            recursion=recursion,
            columns=columns,
            num_bars=self.num_bars + number,
            memories=list(self.memories),
            rows=rows if few else None,
            end=rows.end if rows else 0,
        )

    @property
    def seconds(self) -> int:
        """The stamp of the last bar, as it is stored."""
        return int(self.columns["timestamp"][-1])

    @property
    def last(self) -> datetime:
        """The stamp of the last bar."""
        return moment_of(self.seconds)

    def to_json(self) -> dict[str, Any]:
        # Single-precision values survive as the doubles they equal; an undefined return is null.
        columns = {
            name: [None if item != item else item for item in column.tolist()] for name, column in self.columns.items()
        }
        rows = {"recursion": self.recursion.to_json(), "last": self.seconds}
        return {"rows": rows, "num_bars": self.num_bars, "columns": columns}

    @classmethod
    def from_json(cls, value: dict[str, Any], forecaster: Forecaster) -> AssetStream:
        columns: Columns = {
            name: np.array([np.nan if item is None else item for item in column]).astype(ROW_TYPES[name])
            for name, column in value["columns"].items()
        }
        recursion = forecaster.rows.restored(value["rows"]["recursion"])
        return cls(recursion=recursion, columns=columns, num_bars=value["num_bars"])


class OnlineForecaster:
    """Live forecasts of any number of assets, bar by bar. Not for use by several threads at once."""

    def __init__(self, forecaster: Forecaster) -> None:
        self.forecaster = forecaster
        self.streams: dict[str, AssetStream] = {}
        self._kept = forecaster.context * (_KEPT_CONTEXTS if forecaster.reads_other_assets else 1)

    def push(
        self, symbol: str, bar: Mapping[str, Any], *, forecast: bool = True, now: datetime | None = None
    ) -> ReturnDistribution | None:
        """Take the next bar of an asset; the forecast after it, None while there are too few bars or if not wanted."""
        self.push_many({symbol: bar}, forecast=False)
        return self.forecast(symbol, now=now) if forecast and self.ready(symbol) else None

    def push_many(
        self, bars: Mapping[str, Mapping[str, Any]], *, forecast: bool = True, now: datetime | None = None
    ) -> dict[str, ReturnDistribution]:
        """Take the bars of one stamp, all or none; the forecasts after them of the assets that are ready."""
        checked = {symbol: live_bar(bar, symbol) for symbol, bar in bars.items()}
        stamps = {symbol: moment_of(int(bar.seconds)) for symbol, bar in checked.items()}
        if len({*stamps.values()}) > 1:
            raise DataError(
                "the bars are of several stamps",
                expected="one bar of each asset, all of one stamp",
                got=", ".join(str(stamp) for stamp in sorted({*stamps.values()})),
                fix="push the stamps in order",
            )
        self._advance(checked, stamps)
        ready = [symbol for symbol in bars if self.ready(symbol)] if forecast else []
        if self.forecaster.engine.row_step:
            return {symbol: self.forecast(symbol, now=now) for symbol in ready}
        return {dist.symbol: dist for dist in self.forecaster.forecast(map(self.window, ready), now)}

    def extend(self, symbol: str, bars: Any) -> int:
        """Take a history, or the bars that follow the last one, at once; returns how many bars there were."""
        return self.extend_many({symbol: bars})[symbol]

    def extend_many(self, bars: Mapping[str, Any]) -> dict[str, int]:
        """Take histories of several assets, all or none; those that read each other must come together."""
        frames = {
            symbol: check_bars(frame, symbol, self.forecaster.tokenizer.timeframe, min_bars=1)
            for symbol, frame in bars.items()
        }
        checked = {symbol: bars_of(frame, f"bars of {symbol}") for symbol, frame in frames.items()}
        self._advance(checked, {symbol: frame["Datetime"][0] for symbol, frame in frames.items()})
        return {symbol: len(frame) for symbol, frame in frames.items()}

    def forecast(self, symbol: str, *, now: datetime | None = None) -> ReturnDistribution:
        """The forecast after the last bar of an asset."""
        window, step = self.window(symbol), self.forecaster.engine.row_step
        if step is None:
            return self.forecaster.forecast([window], now)[0]
        window.require_scale()
        return self.forecaster.distribution(window, self._remember(symbol, step).probs, now)

    def ready(self, symbol: str) -> bool:
        """Whether an asset has had enough bars to be forecast."""
        stream = self.streams.get(symbol)
        return stream is not None and stream.num_bars >= MIN_BARS and bool(stream.columns["sigma20"][-1] > 0)

    def window(self, symbol: str) -> Window:
        """What the next forecast of an asset depends on; windows of many go to `Forecaster.forecast` together."""
        had = self.streams[symbol].num_bars if symbol in self.streams else 0
        if had < MIN_BARS:
            raise DataError(
                "too few bars for a forecast", where=symbol, expected=f"{MIN_BARS} moving bars at least", got=had
            )
        rows = {each: stream.columns for each, stream in self.streams.items()}
        return cut_window(rows, self.forecaster.reads, symbol, self.forecaster.context)

    def copy(self) -> OnlineForecaster:
        """Another that goes on from here by itself, in a moment: what was taken so far is shared and never changed."""
        other = OnlineForecaster(self.forecaster)
        other.streams = self.streams
        return other

    def to_json(self) -> dict[str, Any]:
        """All streams as JSON values that `restore` takes back, every bit kept."""
        return {**self._identity(), "assets": {symbol: stream.to_json() for symbol, stream in self.streams.items()}}

    def restore(self, value: dict[str, Any]) -> None:
        """Go on from a state that a forecaster with the same tokenizer, context and fields left."""
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
            "fields": list(self.forecaster.rows.beyond),
        }

    def _advance(self, bars: Mapping[str, Bars], first: Mapping[str, datetime]) -> None:
        """Append the rows of bars that begin at these stamps, of all assets or of none."""
        for symbol, stamp in first.items():
            self._require_next(symbol, stamp)
        streams, arrived, cross = dict(self.streams), [], self.forecaster.reads_other_assets
        for symbol, each in bars.items():
            old = streams.get(symbol)
            columns, recursion = self.forecaster.rows(each, *((old.recursion, old.seconds) if old else ()))
            arrived.append(columns["timestamp"])
            if cross:  # what the rows read of others is made below
                columns |= {name: np.zeros(len(arrived[-1]), ROW_TYPES[name]) for name in CROSS_FIELDS}
            if old:
                streams[symbol] = old.followed_by(recursion, columns, self._kept)
            else:
                streams[symbol] = AssetStream(recursion=recursion, columns=columns, num_bars=len(arrived[-1]))
        if cross and arrived:
            every = {symbol: stream.columns for symbol, stream in streams.items()}
            stamps = arrived[0] if len(arrived) == 1 else np.unique(np.concatenate(arrived))
            for symbol, (columns, row) in refresh_cross_fields(every, self.forecaster.symbols, stamps).items():
                stream = streams[symbol]
                final = stream.num_bars - len(columns["timestamp"]) + row
                memories = [each for each in stream.memories if each.position <= final]
                streams[symbol] = replace(stream, columns=columns, memories=memories)
        for symbol in bars:
            columns = streams[symbol].columns
            if len(columns["timestamp"]) > self._kept:
                kept = {name: column[-self._kept :].copy() for name, column in columns.items()}
                streams[symbol] = replace(streams[symbol], columns=kept)
        self.streams = streams

    def _remember(self, symbol: str, step: RowStep) -> RowMemory:
        """What the model remembers after the last row, computed from where it was last asked."""
        stream, meta, config = self.streams[symbol], meta_of(self.forecaster.tokenizer, symbol), self.forecaster.config

        def rows(part: slice) -> Events:
            return inputs_of(config, {name: column[part] for name, column in stream.columns.items()}, meta)

        memories = [each for each in stream.memories if each.intact]
        behind = stream.num_bars - memories[-1].position if memories else math.inf
        if behind > MOST_ROWS:
            # All but the last row, which alone may change, in one pass.
            before, behind = rows(slice(-config.context - 1, -1)), 1
            memories = [step.begin(before, meta, stream.num_bars - 1 - len(before))]
        if behind:
            memories += step.step(memories[-1], rows(slice(-behind, None)), meta)
        stream.memories[:] = memories[-_REMEMBERED:]
        return memories[-1]

    def _require_next(self, symbol: str, stamp: datetime) -> None:
        if symbol not in self.streams:
            return
        last, where = self.streams[symbol].last, f"bars of {symbol}"
        if stamp <= last:
            kind = "is repeated" if stamp == last else "goes back in time"
            raise DataError(f"a stamp {kind}", where=where, expected=f"a bar after {last}", got=stamp)
        if stamp - last < self.forecaster.timeframe:
            raise wrong_timeframe(where, self.forecaster.tokenizer.timeframe, stamp - last)
