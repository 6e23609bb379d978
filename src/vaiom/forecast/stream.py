"""Forecasts of live streams: a state per asset that each bar updates in constant time.

Forecasts equal `Forecaster.predict` on all bars so far, with inputs equal to the bit, because bars
run through the same recursions as a corpus. Cross fields are computed when needed, and again after
late bars of their stamp; models with windowed attention compute only new and changed rows. The
state is stored as JSON, without the model's cache.
Paper: Methods, "Continuous dynamic features" (recursive scales).
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.corpus.rows import Columns, bars_of
from vaiom.distribution.dependence import DependenceState
from vaiom.distribution.joint import JointDistribution
from vaiom.distribution.returns import ReturnDistribution
from vaiom.errors import DataError
from vaiom.features.fields import CROSS_FIELDS, ROW_TYPES, inputs_of, read_others
from vaiom.features.recursions import AssetState, Bars
from vaiom.forecast.bars import (
    MIN_BARS,
    moment_of,
    moment_or_now,
    parse_bar,
    prepare_bars,
    seconds_of,
    wrong_timeframe,
)
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.joint_forecast import dependence_after, join
from vaiom.forecast.window import Window, find_missing
from vaiom.model.incremental import MAX_ROWS, IncrementalDecoder, KVCache, NewRows

STATE_VERSION = 3
_ROOM = 512
"""Spare rows that are kept before the needed ones are copied."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AssetStream:
    """The state of one asset: its recursion, its last rows, and its number of bars."""

    recursion: AssetState
    columns: Columns
    """The asset's own rows."""
    room: Columns = field(default_factory=dict)
    """The buffer that `columns` are the start of; unused rows have the stamp 0."""
    num_bars: int
    seconds: int
    """The stored stamp of the last bar."""
    cross: npt.NDArray[np.float16] | None = None
    """(fields, rows) cross fields, if the model reads them; the last ones may still be missing."""
    memories: list[KVCache] = field(default_factory=list)
    """The model's cache after each of the last rows, if computed."""

    def __len__(self) -> int:
        return len(self.columns["timestamp"])

    def extended(self, recursion: AssetState, new: Columns) -> AssetStream:
        """The stream with more rows."""
        room, end = self.room, len(self)
        stop = end + len(new["timestamp"])
        # Another stream may have continued from here.
        if not room or stop > len(room["timestamp"]) or room["timestamp"][end]:
            room = {
                name: np.zeros(stop + _ROOM, column.dtype) for name, column in self.columns.items()
            }
            for name, column in self.columns.items():
                room[name][:end] = column
        for name, column in room.items():
            column[end:stop] = new[name]
        return AssetStream(
            recursion=recursion,
            columns={name: column[:stop] for name, column in room.items()},
            room=room,
            num_bars=self.num_bars + stop - end,
            seconds=int(new["timestamp"][-1]),
            cross=self.cross,
            memories=list(self.memories),
        )

    @property
    def last(self) -> datetime:
        """The stamp of the last bar."""
        return moment_of(self.seconds)

    def part(self, rows: slice) -> Columns:
        """Some rows, with their cross fields."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        if self.cross is not None:
            columns |= zip(CROSS_FIELDS, self.cross[:, rows], strict=True)
        return columns

    def to_json(self, kept: int) -> dict[str, Any]:
        """Its last rows byte for byte, which is fast enough for a service to store many."""
        columns = {
            name: b64encode(column.astype(ROW_TYPES[name]).tobytes()).decode()
            for name, column in self.part(slice(-kept, None)).items()
        }
        rows = {"recursion": self.recursion.to_json(), "last": self.seconds}
        return {"rows": rows, "num_bars": self.num_bars, "columns": columns}

    @classmethod
    def from_json(cls, value: dict[str, Any], forecaster: Forecaster) -> AssetStream:
        columns = {
            name: np.frombuffer(b64decode(column), ROW_TYPES[name])
            for name, column in value["columns"].items()
        }
        cross = [columns.pop(name) for name in CROSS_FIELDS if name in columns]
        return cls(
            recursion=forecaster.rows.restored(value["rows"]["recursion"]),
            columns=columns,
            num_bars=value["num_bars"],
            seconds=int(columns["timestamp"][-1]),
            cross=np.array(cross) if cross else None,
        )


class OnlineForecaster:
    """Live forecasts of any number of assets, bar by bar. Not thread-safe."""

    def __init__(self, forecaster: Forecaster) -> None:
        self.forecaster = forecaster
        self.streams: dict[str, AssetStream] = {}
        self._stale: dict[str, float] = {}
        """The first stamp of each asset whose cross fields are out of date."""
        self.dependence: tuple[DependenceState, int] | None = None
        """The dependence between assets after a stamp, if computed."""
        # The same number of bars reaches further back in an asset that trades fewer hours: if
        # assets read each other, rows are kept beyond the window for its sake.
        self._kept = forecaster.context * (2 if forecaster.reads_other_assets else 1)

    def push(
        self,
        symbol: str,
        bar: Mapping[str, Any],
        *,
        forecast: bool = True,
        now: datetime | None = None,
    ) -> ReturnDistribution | None:
        """Take an asset's next bar; returns the forecast after it, or None with too few bars or if
        not wanted.
        """
        return self.push_many({symbol: bar}, forecast=forecast, now=now).get(symbol)

    def push_many(
        self,
        bars: Mapping[str, Mapping[str, Any]],
        *,
        forecast: bool = True,
        now: datetime | None = None,
    ) -> dict[str, ReturnDistribution]:
        """Take the bars of one stamp, all or none; returns the forecasts of the assets that are
        ready.
        """
        moment_or_now(now)  # refused before the bars are taken
        checked = {symbol: parse_bar(bar, symbol) for symbol, bar in bars.items()}
        stamps = {symbol: moment_of(int(bar.seconds)) for symbol, bar in checked.items()}
        if len({*stamps.values()}) > 1:
            expected, fix = "one bar of each asset, all of one stamp", "push the stamps in order"
            got = ", ".join(map(str, sorted({*stamps.values()})))
            raise DataError("the bars are of several stamps", expected=expected, got=got, fix=fix)
        self._advance(checked, stamps)
        return (
            self.forecast_many([symbol for symbol in bars if self.ready(symbol)], now=now)
            if forecast
            else {}
        )

    def extend(self, symbol: str, bars: Any) -> int:
        """Take a history, or the bars after the last one; returns the number of bars."""
        return self.extend_many({symbol: bars})[symbol]

    def extend_many(self, bars: Mapping[str, Any]) -> dict[str, int]:
        """Take histories of several assets, all or none; assets that read each other must come
        together.
        """
        frames = {
            symbol: prepare_bars(frame, symbol, self.forecaster.tokenizer.timeframe, min_bars=1)
            for symbol, frame in bars.items()
        }
        checked = {symbol: bars_of(frame, f"bars of {symbol}") for symbol, frame in frames.items()}
        self._advance(checked, {symbol: frame["Datetime"][0] for symbol, frame in frames.items()})
        return {symbol: len(frame) for symbol, frame in frames.items()}

    def forecast(
        self, symbol: str, *, horizon: int = 1, now: datetime | None = None
    ) -> ReturnDistribution:
        """The forecast after an asset's last bar; a longer horizon costs one more product."""
        return self.forecast_many([symbol], horizon=horizon, now=now)[symbol]

    def forecast_many(
        self, symbols: Sequence[str], *, horizon: int = 1, now: datetime | None = None
    ) -> dict[str, ReturnDistribution]:
        """The forecasts after the last bars of assets, in one batch."""
        self.forecaster.at(horizon)
        step = self.forecaster.backend.decoder
        if step is None:
            windows = map(self.window, symbols)
            return dict(
                zip(symbols, self.forecaster.forecast(windows, now, horizon=horizon), strict=True)
            )
        for symbol in symbols:
            self._require_bars(symbol)
        self._read_others(symbols)
        self._update_caches(symbols, step)
        dists, horizons = {}, self.forecaster.backend.horizons
        for symbol in symbols:
            stream = self.streams[symbol]
            missing = find_missing(self._columns(), self.forecaster.reads, symbol)
            window = Window(symbol=symbol, columns=stream.columns, missing_assets=missing)
            window.require_scale()
            memory, context = stream.memories[-1], min(len(stream), self.forecaster.context)
            probs = memory.probs
            if horizon > 1 and horizons:
                last = stream.part(slice(-1, None))
                [events] = inputs_of(self.forecaster.config, last, self.forecaster.meta(symbol))
                probs = horizons.probs(memory.hidden, events, horizon)
            dists[symbol] = self.forecaster.distribution(
                window, probs, now, context=context, horizon=horizon
            )
        return dists

    def joint(
        self, symbols: Sequence[str] | None = None, *, horizon: int = 1, now: datetime | None = None
    ) -> JointDistribution:
        """The joint forecast of assets, by default of all that are ready; a stamp costs each asset
        one window.

        Bars that arrive after a later stamp was requested do not change what was learned from their
        stamp.
        """
        chosen = (
            [each for each in self.streams if self.ready(each)]
            if symbols is None
            else list(symbols)
        )
        if not chosen:
            raise DataError(
                "too few bars for a forecast",
                expected=f"an asset with {MIN_BARS} moving bars at least",
            )
        dists = self.forecast_many(chosen, horizon=horizon, now=now)
        state, since = self.dependence or (None, -1)
        moved = {
            each: stream
            for each, stream in self.streams.items()
            if stream.seconds > since and self.ready(each)
        }
        if moved:
            self._read_others([*moved])
            rows = {each: self.streams[each].part(slice(None)) for each in moved}
            newest = max(stream.seconds for stream in moved.values())
            state = dependence_after(self.forecaster, rows, state, since)
            self.dependence = state, newest
        assert state is not None
        return join(dists, state)

    def is_newest(self, stream: AssetStream, symbol: str) -> bool:
        """Whether no bar has changed the inputs of a forecast from this stream."""
        return self.streams.get(symbol) is stream and symbol not in self._stale

    def ready(self, symbol: str) -> bool:
        """Whether an asset has enough bars for a forecast."""
        stream = self.streams.get(symbol)
        return (
            stream is not None
            and stream.num_bars >= MIN_BARS
            and bool(stream.columns["sigma20"][-1] > 0)
        )

    def window(self, symbol: str) -> Window:
        """The inputs of an asset's next forecast; `Forecaster.forecast` batches those of many."""
        self._require_bars(symbol)
        self._read_others([symbol])
        missing = find_missing(self._columns(), self.forecaster.reads, symbol)
        columns = self.streams[symbol].part(slice(-self.forecaster.context, None))
        return Window(symbol=symbol, columns=columns, missing_assets=missing)

    def copy(self) -> OnlineForecaster:
        """A cheap independent copy: rows so far are shared and never changed."""
        other = OnlineForecaster(self.forecaster)
        other.streams, other._stale, other.dependence = self.streams, self._stale, self.dependence
        return other

    def to_json(self) -> dict[str, Any]:
        """All streams as JSON values for `restore`, every bit kept."""
        self._read_others([*self.streams])
        assets = {symbol: stream.to_json(self._kept) for symbol, stream in self.streams.items()}
        return {**self._identity(), "assets": assets}

    def restore(self, value: dict[str, Any]) -> None:
        """Restore a state from a forecaster with the same tokenizer, context and fields."""
        for name, expected in self._identity().items():
            got, fix = value.get(name), "push the history of each asset again"
            if got != expected:
                raise DataError(
                    "this state is of another model",
                    where=name,
                    expected=expected,
                    got=got,
                    fix=fix,
                )
        self.streams = {
            symbol: AssetStream.from_json(stream, self.forecaster)
            for symbol, stream in value["assets"].items()
        }
        self._stale, self.dependence = {}, None  # those of the state before

    def _identity(self) -> dict[str, Any]:
        """What a restored state must match."""
        return {
            "version": STATE_VERSION,
            "tokenizer_sha256": self.forecaster.tokenizer.sha256,
            "context": self.forecaster.context,
            "fields": list(self.forecaster.rows.beyond),
        }

    def _advance(self, bars: Mapping[str, Bars], first: Mapping[str, datetime]) -> None:
        """Append the rows of bars that begin at these stamps, for all assets or none."""
        for symbol in (each for each in first if each in self.streams):
            stamp, last, where = first[symbol], self.streams[symbol].last, f"bars of {symbol}"
            if stamp <= last:
                problem = "a stamp is repeated" if stamp == last else "a stamp goes back in time"
                raise DataError(problem, where=where, expected=f"a bar after {last}", got=stamp)
            if stamp - last < self.forecaster.timeframe:
                raise wrong_timeframe(where, self.forecaster.tokenizer.timeframe, stamp - last)
        streams, stale = dict(self.streams), dict(self._stale)
        for symbol, each in bars.items():
            old = streams.get(symbol)
            columns, recursion = self.forecaster.rows(
                each, *((old.recursion, old.seconds) if old else ())
            )
            if old:
                streams[symbol] = old.extended(recursion, columns)
            else:
                number, end = len(columns["timestamp"]), int(columns["timestamp"][-1])
                streams[symbol] = AssetStream(
                    recursion=recursion, columns=columns, num_bars=number, seconds=end
                )
        if self.forecaster.reads_other_assets:
            begins = {symbol: seconds_of(stamp) for symbol, stamp in first.items()}
            # Bars of known assets change what all assets read, those of unknown ones only their own
            # rows.
            known = min(
                (begins[symbol] for symbol in begins if symbol in self.forecaster.symbols),
                default=math.inf,
            )
            later = (symbol for symbol, stream in streams.items() if stream.seconds >= known)
            for symbol in dict.fromkeys((*begins, *later)):
                since = min(known, begins.get(symbol, math.inf))
                stale[symbol] = min(stale.get(symbol, since), since)
        self.streams, self._stale = streams, stale
        long = [symbol for symbol in bars if len(streams[symbol]) > self._kept + _ROOM]
        if long:  # other assets read the rows before they are dropped
            self._read_others([*self._stale])
            rows = slice(-self._kept, None)
            for symbol in long:
                stream = self.streams[symbol]
                columns = {name: column[rows] for name, column in stream.columns.items()}
                cross = None if stream.cross is None else stream.cross[:, rows]
                self.streams = {
                    **self.streams,
                    symbol: replace(stream, columns=columns, cross=cross, room={}),
                }

    def _columns(self) -> dict[str, Columns]:
        return {symbol: stream.columns for symbol, stream in self.streams.items()}

    def _read_others(self, symbols: Sequence[str]) -> None:
        """Update the cross fields of assets with bars that have arrived since, batched by stamp."""
        streams, together = dict(self.streams), dict[bytes, list[tuple[str, int]]]()
        for symbol in (each for each in symbols if each in self._stale):
            stamps = streams[symbol].columns["timestamp"]
            at = int(stamps.searchsorted(np.uint32(self._stale[symbol])))
            together.setdefault(stamps[at:].tobytes(), []).append((symbol, at))
        for key, members in together.items():
            fields = read_others(
                self._columns(), self.forecaster.symbols, np.frombuffer(key, np.uint32)
            )
            for symbol, at in members:
                stream = streams[symbol]
                # A copy: windows already handed out must not change.
                before = (
                    np.empty((len(CROSS_FIELDS), 0), np.float16)
                    if stream.cross is None
                    else stream.cross[:, :at]
                )
                memories = [
                    each
                    for each in stream.memories
                    if each.position <= stream.num_bars - len(stream) + at
                ]
                cross = np.concatenate([before, fields[symbol]], axis=1)
                streams[symbol] = replace(stream, cross=cross, memories=memories)
        if together:
            self.streams = streams
            self._stale = {
                symbol: stamp for symbol, stamp in self._stale.items() if symbol not in symbols
            }

    def _update_caches(self, symbols: Sequence[str], step: IncrementalDecoder) -> None:
        """Advance the model's cache of assets to their last rows."""
        config, more = self.forecaster.config, dict[str, NewRows]()
        for symbol in symbols:
            stream, meta = self.streams[symbol], self.forecaster.meta(symbol)
            while stream.memories and not stream.memories[-1].intact:
                stream.memories.pop()
            behind = stream.num_bars - stream.memories[-1].position if stream.memories else math.inf
            if behind > MAX_ROWS:
                # All but the last row, the only one that may change, in one pass.
                before, behind = (
                    inputs_of(config, stream.part(slice(-config.context - 1, -1)), meta),
                    1,
                )
                stream.memories[:] = [step.prefill(before, meta, stream.num_bars - 1 - len(before))]
            if behind:
                rows = inputs_of(config, stream.part(slice(-int(behind), None)), meta)
                more[symbol] = stream.memories[-1], rows, meta
        for symbol, memories in zip(
            more, step.decode_batch([*more.values()]) if more else (), strict=True
        ):
            kept = self.streams[symbol].memories
            # Late bars of other assets may change so many rows without recomputing the window.
            kept[:] = [*kept, *memories][-MAX_ROWS:]

    def _require_bars(self, symbol: str) -> None:
        num_bars = self.streams[symbol].num_bars if symbol in self.streams else 0
        if num_bars < MIN_BARS:
            expected = f"{MIN_BARS} moving bars at least"
            raise DataError(
                "too few bars for a forecast", where=symbol, expected=expected, got=num_bars
            )
