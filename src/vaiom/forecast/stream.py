"""Forecasts of live streams: each asset's rows, which each bar extends in constant time.

Enters: histories of bars, then bars as they come. Leaves: forecasts that equal
`Forecaster.predict` on all bars so far, with inputs equal to the bit, because bars run through the
same recursions as a corpus. Everything is a function of the bars taken, in whatever order the
assets' bars arrive: a stream that is extended by stored bars goes on as the one that took them.
Paper: Methods, "Continuous dynamic features" (recursive scales).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.dependence import ScoreSeries
from vaiom.distribution.joint import JointDistribution
from vaiom.distribution.returns import ReturnDistribution
from vaiom.errors import DataError
from vaiom.features.cross import read_others
from vaiom.features.inputs import inputs_of
from vaiom.features.quantities import BarArrays
from vaiom.features.rows import RowColumns, bars_of
from vaiom.forecast.asset_stream import AssetStream
from vaiom.forecast.bars import (
    MIN_BARS,
    moment_of,
    moment_or_now,
    parse_bar,
    prepare_bars,
    wrong_timeframe,
)
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.joint_forecast import (
    dependence_after,
    fitted_dependence,
    forecast_rows,
    join,
    score_last_rows,
)
from vaiom.forecast.window import Window, find_missing
from vaiom.model.incremental import MAX_ROWS, IncrementalDecoder, NewRows


class OnlineForecaster:
    """Live forecasts of any number of assets, bar by bar. Not thread-safe."""

    def __init__(self, forecaster: Forecaster, *, keep: int = 0) -> None:
        """`keep` is how many rows before the newest can be forecast from by `past`."""
        self.forecaster = forecaster
        self.streams: dict[str, AssetStream] = {}
        memory = forecaster.dependence.memory if forecaster.dependence else 0
        self._num_cross = forecaster.context + max(MAX_ROWS, memory, keep)
        """Newest rows of an asset whose cross fields are kept."""
        self._stale: dict[str, int] = {}
        """By asset: the first stamp whose cross fields lack bars of other assets."""
        self._series: dict[str, tuple[int, ScoreSeries]] = {}
        """By asset: scores for the dependence, and the number of bars that they cover."""
        self._newest: dict[str, tuple[AssetStream, ReturnDistribution]] = {}
        """By asset: the last forecast of its next bar, and the stream that it was made from."""

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
        moment_or_now(now)  # a wrong one is refused before the bars are taken
        checked = {symbol: parse_bar(bar, symbol) for symbol, bar in bars.items()}
        stamps = sorted({moment_of(int(bar.seconds)) for bar in checked.values()})
        if len(stamps) > 1:
            raise DataError(
                "the bars are of several stamps",
                expected="one bar of each asset, all of one stamp",
                got=", ".join(map(str, stamps)),
                fix="push the stamps in order",
            )
        self.take(checked)
        if not forecast:
            return {}
        return self.forecast_many([symbol for symbol in bars if self.ready(symbol)], now=now)

    def extend(self, symbol: str, bars: Any) -> int:
        """Take a history, or the bars after the last one; returns the number of bars."""
        return self.extend_many({symbol: bars})[symbol]

    def extend_many(self, bars: Mapping[str, Any]) -> dict[str, int]:
        """Take histories of several assets, frames as for `Forecaster.predict`, all or none;
        returns the numbers of bars.
        """
        checked = {}
        for symbol, frame in bars.items():
            frame = prepare_bars(frame, symbol, self.forecaster.tokenizer.timeframe, min_bars=1)
            checked[symbol] = bars_of(frame, f"bars of {symbol}")
        self.take(checked)
        return {symbol: len(each.seconds) for symbol, each in checked.items()}

    def take(self, bars: Mapping[str, BarArrays]) -> None:
        """Take checked bars that follow an asset's last: arrays, or the scalars of one bar; of all
        assets or of none.
        """
        first = {symbol: int(each.seconds.item(0)) for symbol, each in bars.items()}
        for symbol, stamp in first.items():
            if symbol in self.streams:
                self._require_next(symbol, moment_of(stamp))
        streams = dict(self.streams)
        for symbol, each in bars.items():
            stream = streams.get(symbol)
            if stream is None:
                columns, recursion = self.forecaster.rows(each)
                streams[symbol] = AssetStream(recursion=recursion, columns=columns)
            else:
                columns, recursion = self.forecaster.rows(each, stream.recursion, stream.seconds)
                streams[symbol] = stream.extended(recursion, columns)
        self.streams = streams
        if self.forecaster.reads_other_assets:
            self._stale = self._stale_after(first)

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
        for symbol in symbols:
            self._require_bars(symbol)
        self._read_others(symbols)
        if horizon > 1 or now is not None:
            return self._forecast(symbols, horizon, now)
        for symbol, dist in self._forecast([*filter(self._is_old, symbols)], 1, None).items():
            self._newest[symbol] = self.streams[symbol], dist
        return {symbol: self._newest[symbol][1] for symbol in symbols}

    def joint(
        self, symbols: Sequence[str] | None = None, *, horizon: int = 1, now: datetime | None = None
    ) -> JointDistribution:
        """The joint forecast of assets, by default of all that are ready.

        The dependence is that of the last bars of all assets, as many as it remembers; a new bar
        costs each asset one row.
        """
        ready = [each for each in self.streams if self.ready(each)]
        chosen = ready if symbols is None else list(symbols)
        if not chosen:
            raise DataError(
                "too few bars for a forecast",
                expected=f"an asset with {MIN_BARS} moving bars at least",
            )
        dists = self.forecast_many(chosen, horizon=horizon, now=now)
        fit = fitted_dependence(self.forecaster)
        series = {each: self._last_series(each, fit.memory) for each in ready}
        return join(dists, dependence_after(fit, series))

    def past(self, symbol: str, number: int) -> tuple[BucketDistribution, RowColumns]:
        """The forecasts after each of an asset's last `number` rows, and these rows."""
        self._read_others([symbol])
        rows = self.streams[symbol].rows(number + self.forecaster.context - 1)
        return forecast_rows(self.forecaster, symbol, rows, number)

    def probs_after(self, symbol: str, num_bars: int) -> npt.NDArray[np.float64] | None:
        """(16,) probabilities of the forecast after so many bars of an asset, if it is known.

        A decoder's are those that other assets' late bars have led to since.
        """
        if self.forecaster.backend.decoder:
            caches = self.streams[symbol].caches
            return next((each.probs for each in caches if each.position == num_bars), None)
        stream, dist = self._newest.get(symbol, (None, None))
        return dist.probs if stream and dist and stream.num_bars == num_bars else None

    def ready(self, symbol: str) -> bool:
        """Whether an asset has enough bars for a forecast."""
        stream = self.streams.get(symbol)
        if stream is None or stream.num_bars < MIN_BARS:
            return False
        return bool(stream.columns["sigma20"][-1] > 0)

    def window(self, symbol: str) -> Window:
        """The inputs of an asset's next forecast; `Forecaster.forecast` batches those of many."""
        self._require_bars(symbol)
        self._read_others([symbol])
        return Window(
            symbol=symbol,
            columns=self.streams[symbol].rows(self.forecaster.context),
            missing_assets=find_missing(self._columns(), self.forecaster.reads, symbol),
        )

    def copy(self) -> OnlineForecaster:
        """A cheap independent copy: rows so far are shared and never changed."""
        other = OnlineForecaster(self.forecaster)
        vars(other).update(vars(self))
        other._newest = dict(self._newest)
        return other

    def forget(self, symbols: Sequence[str]) -> None:
        """Drop all bars of assets; what others read of them stays until they are taken again."""
        self.streams = {
            each: stream for each, stream in self.streams.items() if each not in symbols
        }
        self._stale = {each: stamp for each, stamp in self._stale.items() if each not in symbols}
        self._series = {each: known for each, known in self._series.items() if each not in symbols}

    def _is_old(self, symbol: str) -> bool:
        """Whether an asset has no forecast from its present rows."""
        stream, _ = self._newest.get(symbol, (None, None))
        return stream is not self.streams[symbol]

    def _forecast(
        self, symbols: Sequence[str], horizon: int, now: datetime | None
    ) -> dict[str, ReturnDistribution]:
        """Make the forecasts of assets whose cross fields are up to date."""
        decoder = self.forecaster.backend.decoder
        if decoder is None:
            windows = [self.window(symbol) for symbol in symbols]
            return self.forecaster.forecast(windows, now, horizon=horizon)
        self._update_caches(symbols, decoder)
        return {symbol: self._from_cache(symbol, horizon, now) for symbol in symbols}

    def _require_next(self, symbol: str, stamp: datetime) -> None:
        """Refuse a bar that is not a step of the timeframe or more after the last one."""
        last = self.streams[symbol].last
        where = f"bars of {symbol}"
        if stamp <= last:
            problem = "a stamp is repeated" if stamp == last else "a stamp goes back in time"
            raise DataError(problem, where=where, expected=f"a bar after {last}", got=stamp)
        if stamp - last < self.forecaster.timeframe:
            raise wrong_timeframe(where, self.forecaster.tokenizer.timeframe, stamp - last)

    def _stale_after(self, first: Mapping[str, int]) -> dict[str, int]:
        """What is stale after bars that begin at these stamps: those of an asset that the model
        knows change what all assets read, those of another only its own rows.
        """
        known = [stamp for symbol, stamp in first.items() if symbol in self.forecaster.symbols]
        changed = min(known, default=math.inf)
        stale = dict(self._stale)
        for symbol, stream in self.streams.items():
            since = min(changed, first.get(symbol, math.inf))
            if stream.seconds >= since:
                stale[symbol] = int(min(stale.get(symbol, since), since))
        return stale

    def _columns(self) -> dict[str, RowColumns]:
        """The own rows of every asset."""
        return {symbol: stream.columns for symbol, stream in self.streams.items()}

    def _read_others(self, symbols: Sequence[str]) -> None:
        """Bring the cross fields of assets up to date; rows of the same stamps are read at once."""
        together: dict[bytes, list[tuple[str, int]]] = {}
        for symbol in symbols:
            if symbol in self._stale:
                stamps = self.streams[symbol].columns["timestamp"]
                changed = int(stamps.searchsorted(np.uint32(self._stale[symbol])))
                read = stamps[max(changed, len(stamps) - self._num_cross) :]
                together.setdefault(read.tobytes(), []).append((symbol, changed))
        if not together:
            return
        streams = dict(self.streams)
        series = dict(self._series)
        for read_bytes, members in together.items():
            stamps = np.frombuffer(read_bytes, np.uint32)
            fields = read_others(self._columns(), self.forecaster.symbols, stamps)
            for symbol, changed in members:
                stream = streams[symbol].with_cross(fields[symbol], changed, self._num_cross)
                streams[symbol] = stream
                # A bar is scored by the forecast from the row before it.
                covered, known = series.get(symbol, (0, None))
                if known is not None and covered > changed + 1:
                    last = stream.columns["timestamp"][changed]
                    series[symbol] = changed + 1, _until(known, last)
        self.streams = streams
        self._series = series
        self._stale = {each: stamp for each, stamp in self._stale.items() if each not in symbols}

    def _update_caches(self, symbols: Sequence[str], decoder: IncrementalDecoder) -> None:
        """Advance the decoder's KV caches of assets to their last rows."""
        config = self.forecaster.config
        more: dict[str, NewRows] = {}
        for symbol in symbols:
            stream = self.streams[symbol]
            meta = self.forecaster.meta(symbol)
            while stream.caches and not stream.caches[-1].intact:
                stream.caches.pop()
            known = stream.caches[-1].position if stream.caches else -math.inf
            behind = stream.num_bars - known
            if behind > MAX_ROWS:
                # Prefill all but the last row: it is the only one that may still change.
                before = inputs_of(config, stream.rows(config.context, before=1), meta)
                stream.caches[:] = [
                    decoder.prefill(before, meta, stream.num_bars - 1 - len(before))
                ]
                behind = 1
            if behind:
                more[symbol] = (
                    stream.caches[-1],
                    inputs_of(config, stream.rows(int(behind)), meta),
                    meta,
                )
        if more:
            for symbol, new in zip(more, decoder.decode_batch([*more.values()]), strict=True):
                caches = self.streams[symbol].caches
                # Late bars of other assets may change so many rows without another prefill.
                caches[:] = [*caches, *new][-MAX_ROWS:]

    def _from_cache(self, symbol: str, horizon: int, now: datetime | None) -> ReturnDistribution:
        """The forecast from the KV cache after an asset's last row."""
        forecaster = self.forecaster
        stream = self.streams[symbol]
        missing = find_missing(self._columns(), forecaster.reads, symbol)
        window = Window(symbol=symbol, columns=stream.columns, missing_assets=missing)
        window.require_scale()
        cache = stream.caches[-1]
        probs = cache.probs
        horizons = forecaster.backend.horizons
        if horizon > 1 and horizons:
            [events] = inputs_of(forecaster.config, stream.rows(1), forecaster.meta(symbol))
            probs = horizons.probs(cache.hidden, events, horizon)
        return forecaster.distribution(window, probs, now, horizon=horizon)

    def _last_series(self, symbol: str, number: int) -> ScoreSeries:
        """Scores and scales of an asset's last `number` bars; those known already are kept."""
        self._read_others([symbol])
        stamps = self.streams[symbol].columns["timestamp"]
        covered, series = self._series.get(symbol, (0, None))
        missing = min(number, len(stamps) - covered)
        if missing:
            rows = self.streams[symbol].rows(missing + self.forecaster.context)
            new = score_last_rows(self.forecaster, symbol, rows, missing)
            if series is not None:
                oldest = stamps[max(0, len(stamps) - number)]
                kept = series.stamps >= oldest
                new = ScoreSeries(
                    stamps=np.concatenate([series.stamps[kept], new.stamps]),
                    scores=np.concatenate([series.scores[kept], new.scores]),
                    scales=np.concatenate([series.scales[kept], new.scales]),
                )
            series = new
            self._series = {**self._series, symbol: (len(stamps), series)}
        assert series is not None
        return series

    def _require_bars(self, symbol: str) -> None:
        """Refuse a forecast of an asset that has too few bars for any row to be unmasked."""
        num_bars = self.streams[symbol].num_bars if symbol in self.streams else 0
        if num_bars < MIN_BARS:
            raise DataError(
                "too few bars for a forecast",
                where=symbol,
                expected=f"{MIN_BARS} moving bars at least",
                got=num_bars,
            )


def _until(series: ScoreSeries, stamp: np.uint32) -> ScoreSeries:
    """The entries of a series through a stamp."""
    stop = int(series.stamps.searchsorted(stamp, "right"))
    return ScoreSeries(
        stamps=series.stamps[:stop], scores=series.scores[:stop], scales=series.scales[:stop]
    )
