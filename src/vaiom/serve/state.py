"""The live assets: their streams, last bars, and the forecast that the next bar settles.

A bar counts once the store has committed it. After a restart, a snapshot and the bars since it, in
order of arrival, restore the same state to the bit. Bars that the model was trained on are never
scored.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import polars as pl
from fastapi import Query

from vaiom.corpus.rows import Columns, bars_of
from vaiom.distribution.joint import JointDistribution
from vaiom.distribution.returns import ReturnDistribution, to_dicts
from vaiom.errors import DataError, UserError
from vaiom.features.events import is_event
from vaiom.features.fields import MASK_BITS
from vaiom.forecast.bars import CLOCK_ALLOWANCE, seconds_of, utc_now
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.ledger import ForecastLedger, Settlement
from vaiom.forecast.stream import AssetStream, OnlineForecaster
from vaiom.forecast.window import Window
from vaiom.market.folder import read_bars
from vaiom.serve import monitor, schemas
from vaiom.serve.follow import BarRow
from vaiom.serve.schemas import RefusalError, SettledForecast, details_of
from vaiom.serve.store import Store

Replay = tuple[Window, Columns]
"""The window before a bar of a history, and the rows that end with that bar's."""
SNAPSHOT_EVERY = 1_000
"""Bars between snapshots, and thus at most replayed at a restart."""

_HOUR = 3_600
_log = logging.getLogger("vaiom.serve")


@contextmanager
def _on_record(what: str) -> Iterator[None]:
    """Refuse the request if the ledger cannot be written."""
    try:
        yield
    except OSError as error:
        problem, fix = f"{what} could not be put on record", "look at the disk of the ledger"
        raise RefusalError(503, problem, got=error.strerror, retry_after=10, fix=fix) from error


class Pushed(NamedTuple):
    """The result of a push."""

    settled: SettledForecast | None
    forecast: dict[str, Any] | None
    """From `to_dict`."""
    num_bars: int
    seconds: dict[str, float]
    """Duration of recursion, model and disk."""


class LiveAssets:
    """Pushes are serial; readers see all of one or none of it."""

    def __init__(
        self,
        forecaster: Forecaster,
        store: Store,
        alert_bits: float,
        ledger: ForecastLedger | None = None,
        utc_offset: timedelta = timedelta(0),
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.forecaster, self.store, self.alert_bits = forecaster, store, alert_bits
        self.ledger, self.utc_offset, self.clock = ledger, utc_offset, clock
        self.num_buckets = forecaster.tokenizer.num_buckets["return"]
        end = forecaster.card.provenance.splits.get("train_end")
        self.train_end = datetime.fromisoformat(end) if end else None
        """Bars before this are training data."""
        self.frequency = monitor.FrequencyBaseline(self.num_buckets, store.fact("train_counts"))
        self.bars: dict[str, deque[BarRow]] = {}
        self.settled: dict[str, tuple[SettledForecast, ...]] = {}
        """The remembered ones by symbol, oldest first."""
        self._forecasts: dict[str, tuple[AssetStream, ReturnDistribution]] = {}
        self._next_snapshot = SNAPSHOT_EVERY
        self._imported: set[str] = set()
        """Assets whose history has just come from a bar folder."""
        online = self._restored()
        self._publish(
            online,
            {symbol: store.last_bars(symbol, forecaster.context) for symbol in online.streams},
        )
        for symbol in online.streams:
            self._remember(symbol, store.last_settled(symbol, monitor.WINDOW))

    @property
    def symbols(self) -> list[str]:
        """Assets of the model and of the bar folder."""
        return sorted({*self.forecaster.symbols, *self.online.streams})

    def require(self, symbol: str) -> None:
        if symbol not in self.symbols:
            fix = (
                "send its bars to POST /v1/forecast, or start the service with a bar folder "
                "that has it"
            )
            raise RefusalError(
                404, "no such live asset", expected=", ".join(self.symbols), got=symbol, fix=fix
            )

    def forecast(self, symbol: str) -> ReturnDistribution | None:
        """The forecast after the last bar, if made and still up to date."""
        stream, dist = self._forecasts.get(symbol, (None, None))
        return dist if stream and self.online.is_newest(stream, symbol) else None

    def keep(self, online: OnlineForecaster, dists: Mapping[str, ReturnDistribution]) -> None:
        """Keep forecasts of a state, and record them in the ledger."""
        if self.ledger:
            with _on_record("the forecast"):
                self.ledger.commit(*dists.values())
        self._forecasts |= {
            symbol: (online.streams[symbol], dist) for symbol, dist in dists.items()
        }

    def newest(self, symbol: str) -> ReturnDistribution | None:
        """The forecast after the last bar, made if needed; None with too few bars."""
        online, known = self.online, self.forecast(symbol)
        if known is None and online.ready(symbol):
            known = online.forecast(symbol)
            self.keep(online, {symbol: known})
        return known

    def forecast_at(self, symbol: str, now: datetime | None, horizon: int) -> ReturnDistribution:
        """The latest forecast as of a moment on the bars' clock, or for a horizon of bars."""
        dist, now = self.newest(symbol), now or self.now()
        if (
            dist
            and horizon == 1
            and dist.as_of + self.forecaster.timeframe <= now <= dist.stale_since
        ):
            return dist  # at other moments there is more to say of it
        return self.online.forecast(symbol, horizon=horizon, now=now)

    def now(self) -> datetime:
        """The present on the clock of the bars."""
        return self.clock() + self.utc_offset

    def push(self, symbol: str, bars: Sequence[BarRow]) -> None:
        """Take an asset's next bars, durably."""
        [result] = self.push_all([(symbol, bars)])
        if isinstance(result, Exception):
            raise result

    def push_all(self, pushes: Sequence[tuple[str, Sequence[BarRow]]]) -> list[Pushed | UserError]:
        """Take the next bars of different assets, durably, or return why not; they share one batch
        and one commit.
        """
        start, step = time.perf_counter(), self.forecaster.backend.decoder
        after, results, rows = self.online, dict[str, Pushed | UserError](), dict[str, Columns]()
        for symbol, bars in pushes:
            try:
                if self.ledger or len(bars) > 1 or not step or symbol not in self._forecasts:
                    self.newest(symbol)
                after, rows[symbol] = self._advanced(after, symbol, bars)
            except UserError as error:
                results[symbol] = error
        taken = [(symbol, bars) for symbol, bars in pushes if symbol in rows]
        advanced = time.perf_counter()
        dists = after.forecast_many([symbol for symbol in rows if after.ready(symbol)])
        settled = self._settle(after, rows)
        shown = dict(zip(dists, to_dicts([*dists.values()]), strict=True)) if dists else {}
        computed = time.perf_counter()
        try:
            self.store.append(
                [(symbol, bar) for symbol, bars in taken for bar in bars], [*settled.items()]
            )
        except RefusalError as error:
            return [results.get(symbol, error) for symbol, _ in pushes]
        flushed = time.perf_counter()
        self._publish(after, dict(taken))
        for symbol, score in settled.items():
            self._remember(symbol, [score])
        if self.ledger and settled:
            self._record(self.ledger, settled)
        try:
            self.keep(after, dists)
        except RefusalError:  # the bars are taken
            shown.clear()
        for symbol, _ in taken:
            seconds = {
                "bar": advanced - start,
                "model": computed - advanced,
                "disk": flushed - computed,
            }
            results[symbol] = Pushed(
                settled.get(symbol), shown.get(symbol), after.streams[symbol].num_bars, seconds
            )
        if self.store.num_since_snapshot >= self._next_snapshot:
            self.try_snapshot()
        return [results[symbol] for symbol, _ in pushes]

    def joint(self, symbols: Sequence[str], horizon: int) -> JointDistribution:
        """The joint forecast of assets; what is learned of their dependence is kept."""
        online, copy = (
            self.online,
            self.online.copy(),
        )  # readers keep the first, this updates the second
        others = filter(
            online.ready, self.forecaster.reads
        )  # as in `vaiom risk`: correlations are given all of them
        joint = copy.joint(list(dict.fromkeys((*symbols, *others))), horizon=horizon)
        online.dependence = copy.dependence
        return joint

    def try_snapshot(self) -> None:
        """Store the state of every asset; without it the next start only takes longer."""
        try:
            self.store.put_snapshot(self.online.to_json()["assets"])
            self._next_snapshot = SNAPSHOT_EVERY
        except RefusalError as error:
            _log.error("%s", error)
            self._next_snapshot = self.store.num_since_snapshot + SNAPSHOT_EVERY

    def cut(self, symbol: str, after: datetime) -> int:
        """Remove an asset's bars after a moment, as if they had never come; returns how many."""
        with self.store.transaction("nothing was removed"):
            removed = self.store.cut([symbol], after)
            same = self.alert_bits, self.ledger, self.utc_offset, self.clock
            reloaded = LiveAssets(self.forecaster, self.store, *same)
            if self.ledger:
                with _on_record("the removal"):
                    self.ledger.remove(symbol, after)
        reloaded._imported = self._imported & reloaded.online.streams.keys()
        vars(self).update(vars(reloaded))  # at once, for concurrent readers
        self.try_snapshot()
        return removed

    def settle_replays(
        self, replays: Sequence[Replay], dists: Sequence[ReturnDistribution]
    ) -> None:
        """Store the scores of replayed forecasts."""
        due = [
            (dist, window.columns, after)
            for (window, after), dist in zip(replays, dists, strict=True)
            if window.symbol in self._imported
        ]
        scores = monitor.settle(due, self.frequency, replayed=True)
        settled = [(dist.symbol, score) for (dist, _, _), score in zip(due, scores, strict=True)]
        self.store.append([], settled)
        for symbol, each in settled:
            self._remember(symbol, [each])

    def drift(self, symbol: str) -> schemas.Drift:
        return monitor.measure_drift(self.settled.get(symbol, ()), self.alert_bits)

    def assets(self) -> schemas.AssetsAnswer:
        """The state of every live asset, its forecast made if needed, and the model's
        drift on it.
        """
        assets = []
        for symbol in self.symbols:
            dist, stream, bars = None, self.online.streams.get(symbol), self.bars.get(symbol, ())
            try:
                dist = self.newest(symbol)
            except UserError as error:  # a request for it raises again
                _log.warning("no forecast of %s: %s", symbol, error)
            as_of = stream.last if stream else None
            asset = schemas.AssetAnswer(
                symbol=symbol,
                known=symbol in self.forecaster.symbols,
                ready=self.online.ready(symbol),
                num_bars=stream.num_bars if stream else 0,
                as_of=as_of,
                close=next(
                    (bar.close for bar in reversed(list(bars)) if bar.datetime == as_of), None
                ),
                prob_up=dist.prob_up if dist else None,
                drift=self.drift(symbol),
            )
            assets.append(asset)
        return schemas.AssetsAnswer(
            timeframe=self.forecaster.tokenizer.timeframe,
            frequency=self.frequency.name,
            alert_bits=self.alert_bits,
            utc_offset_seconds=self.utc_offset.total_seconds(),
            window=monitor.WINDOW,
            e_value=self.ledger.e_value if self.ledger else None,
            assets=assets,
        )

    async def history(
        self, symbol: schemas.Symbol, last: Annotated[int, Query(ge=1, le=schemas.MAX_BARS)] = 96
    ) -> schemas.HistoryAnswer:
        """The last bars with their masks, the forecasts they settled, calibration and data
        quality.
        """
        self.require(symbol)
        stream, settled = self.online.streams.get(symbol), self.settled.get(symbol, ())
        rows = (
            (stream.columns[name].tolist() for name in ("timestamp", "flags"))
            if stream
            else ([], [])
        )
        flags = dict(zip(*rows, strict=True))
        bars = [
            schemas.MaskedBar.model_construct(
                None,
                **bar._asdict(),
                masks=[name for name, bit in MASK_BITS.items() if flags[stamp] & bit],
            )
            for bar in list(self.bars.get(symbol, ()))
            # A bar that is just arriving has no row yet.
            if (stamp := seconds_of(bar.datetime)) in flags
        ]
        counts = Counter(name for bar in bars for name in bar.masks)
        masked = sum(bool(bar.masks) for bar in bars)
        return schemas.HistoryAnswer(
            symbol=symbol,
            bars=bars[-last:],
            forecasts=list(settled),
            calibration=monitor.measure_calibration(settled),
            quality=schemas.Quality(
                bars=len(bars), masked=masked, by_mask=dict(sorted(counts.items()))
            ),
        )

    def load_folder(self, folder: Path, backfill: int) -> list[Replay]:
        """Load whole histories of new assets and missing bars of live ones; returns the forecasts
        to replay.
        """
        frames = read_bars(folder)
        self._count_train(frames)
        new = {
            symbol: frame for symbol, frame in frames.items() if symbol not in self.online.streams
        }
        for symbol in [each for each in frames if each not in new]:
            stored = {bar.datetime: bar[1:5] for bar in self.bars[symbol]}
            revised = [
                row
                for row in frames[symbol].iter_rows()
                if stored.get(row[0], row[1:5]) != row[1:5]
            ]
            if revised:
                words = (
                    "%s: %d bars of %s differ from the stored ones, which stay; the first is of %s"
                )
                _log.warning(words, symbol, len(revised), folder, revised[0][0])
            newer = frames[symbol].filter(pl.col("Datetime") > self.online.streams[symbol].last)
            if len(newer):
                self.push(symbol, [*map(BarRow._make, newer.iter_rows())])
        if not new:
            return []
        for symbol, frame in new.items():
            self._require_past(frame["Datetime"][-1], f"{folder}, {symbol}")
        after, replays = self._replay(new, backfill)
        context = self.forecaster.context
        bars = {
            symbol: [*map(BarRow._make, frame.tail(context).iter_rows())]
            for symbol, frame in new.items()
        }
        self.store.put_snapshot(
            after.to_json()["assets"], [(symbol, bar) for symbol in bars for bar in bars[symbol]]
        )
        self._publish(after, bars)
        self._imported = {*new}
        return replays

    def _replay(
        self, frames: Mapping[str, pl.DataFrame], backfill: int
    ) -> tuple[OnlineForecaster, list[Replay]]:
        """Take histories; returns windows before each asset's last bars that the model was not
        trained on.
        """
        late = pl.int_range(pl.len()) + backfill >= pl.len()
        parts = [
            frame.with_columns(symbol=pl.lit(symbol), late=late) for symbol, frame in frames.items()
        ]
        every = (
            pl.concat(parts)
            .sort("Datetime", "symbol")
            .with_columns(stop=pl.col("late").any().over("Datetime"))
        )
        after, replays = self.online.copy(), list[Replay]()
        for run in every.with_columns(run=pl.col("stop").rle_id()).partition_by("run"):
            if not run["stop"][0]:
                history = run.partition_by("symbol", as_dict=True)
                after.extend_many({symbol: frame for (symbol,), frame in history.items()})
                continue
            for stamp, rows in groupby(run.iter_rows(named=True), itemgetter("Datetime")):
                bars = {row.pop("symbol"): row for row in rows}
                scored = self.train_end is None or stamp >= self.train_end
                due = [
                    symbol
                    for symbol, row in bars.items()
                    if row.pop("late") and scored and after.ready(symbol)
                ]
                windows = [after.window(symbol) for symbol in due]
                after.push_many(bars, forecast=False)
                replays += [(window, after.streams[window.symbol].columns) for window in windows]
        return after, replays

    def _count_train(self, frames: Mapping[str, pl.DataFrame]) -> None:
        """Count the buckets of all Train events, once: full context, an unmasked row, a valid next
        return.
        """
        if self.train_end is None or self.store.fact("train_counts") is not None:
            return
        counts = np.zeros(self.num_buckets, np.int64)
        for symbol in frames.keys() & {*self.forecaster.symbols}:
            rows, _ = self.forecaster.rows(bars_of(frames[symbol], f"bars of {symbol}"))
            event = is_event(rows["flags"][:-1], rows["flags"][1:])
            event &= rows["timestamp"][1:].astype(np.int64) < seconds_of(self.train_end)
            event[: self.forecaster.context - 1] = False
            counts += np.bincount(rows["return_bucket"][1:][event], minlength=self.num_buckets + 1)[
                1:
            ]
        if counts.any():
            self.store.set_fact("train_counts", counts.tolist())
            self.frequency = monitor.FrequencyBaseline(self.num_buckets, counts.tolist())

    def _publish(self, after: OnlineForecaster, bars: Mapping[str, Sequence[BarRow]]) -> None:
        """Publish committed bars to readers, who find the last bar of each state they see."""
        for symbol, new in bars.items():
            self.bars.setdefault(symbol, deque(maxlen=self.forecaster.context)).extend(new)
        self.online = after

    def _settle(
        self, after: OnlineForecaster, rows: Mapping[str, Columns]
    ) -> dict[str, SettledForecast]:
        """Score the forecasts before the first bars of pushes, whose rows are the last of these."""
        due = []
        for symbol, columns in rows.items():
            before, dist = self.online.streams.get(symbol), self.forecast(symbol)
            if before and dist is None and self.online.ready(symbol):
                # Bars of other assets changed its inputs: it was made again before the next.
                memories = (
                    each
                    for each in after.streams[symbol].memories
                    if each.position == before.num_bars
                )
                dist = next(
                    (replace(self._forecasts[symbol][1], probs=each.probs) for each in memories),
                    None,
                )
            if before and dist:
                due.append((dist, before.columns, columns))
        scores = monitor.settle(due, self.frequency)
        return {dist.symbol: score for (dist, _, _), score in zip(due, scores, strict=True)}

    def _record(self, ledger: ForecastLedger, settled: Mapping[str, SettledForecast]) -> None:
        """Write the outcomes of forecasts to the ledger."""
        outcomes = []
        for symbol, each in settled.items():
            bits = {"model_bits": each.model_bits, "frequency_bits": each.frequency_bits}
            outcomes.append(
                Settlement(symbol=symbol, as_of=each.as_of, target_time=each.target_time, **bits)
            )
        try:
            ledger.settle(*outcomes)
        except OSError as error:  # the forecasts themselves are recorded
            symbols = ", ".join(settled)
            _log.error(
                "the outcome of a forecast of %s could not be recorded: %s", symbols, error.strerror
            )

    def _remember(self, symbol: str, settled: Sequence[SettledForecast]) -> None:
        # Replayed ones come late, so sort by time; replaced at once, for concurrent readers.
        every = sorted((*self.settled.get(symbol, ()), *settled), key=attrgetter("as_of"))
        self.settled[symbol] = tuple(every[-monitor.WINDOW :])
        self.frequency.learn(settled)

    def _restored(self) -> OnlineForecaster:
        online = self.forecaster.online()
        identity = {name: value for name, value in online.to_json().items() if name != "assets"}
        stored = self.store.fact("identity")
        try:
            online.restore({**(stored or identity), "assets": self.store.snapshot()})
        except DataError as error:
            place = {
                "where": f"{self.store.path}, {error.where}",
                "fix": "choose another --state for this model",
            }
            raise DataError(**details_of(error) | place) from error
        if stored != identity:  # the next snapshot is in this version's format
            self.store.set_fact("identity", identity)
        for symbol, bar in self.store.bars_since_snapshot():
            online.push(symbol, bar._asdict(), forecast=False)
        return online

    def _advanced(
        self, after: OnlineForecaster, symbol: str, bars: Sequence[BarRow]
    ) -> tuple[OnlineForecaster, Columns]:
        """The state after an asset's next bars, and its rows up to the first of these."""
        first: Columns = {}
        after = after.copy()
        for number, bar in enumerate(bars, start=1):
            where, before = f"bars of {symbol}, row {number}", after.streams.get(symbol)
            if before and bar.datetime <= before.last:
                problem = (
                    "a bar is there already"
                    if bar.datetime == before.last
                    else "a bar goes back in time"
                )
                expected, got = f"a bar after {before.last.isoformat()}", bar.datetime.isoformat()
                fix = "push the bars that follow; GET /v1/assets says where each asset stands"
                raise RefusalError(409, problem, where=where, expected=expected, got=got, fix=fix)
            self._require_past(bar.datetime, where)
            self._require_on_grid(bar.datetime, before, where)
            try:
                after.push(symbol, bar._asdict(), forecast=False)
            except UserError as error:
                raise DataError(**details_of(error) | {"where": where}) from error
            first = first or after.streams[symbol].columns
        return after, first

    def _require_past(self, stamp: datetime, where: str) -> None:
        latest = self.clock() + CLOCK_ALLOWANCE
        if stamp > latest:
            expected = (
                f"a bar from before {latest.isoformat(timespec='seconds')}, by the clock "
                f"of this machine"
            )
            fix = "correct the stamp, or the clock of the machine"
            raise DataError(
                "a bar of the future",
                where=where,
                expected=expected,
                got=stamp.isoformat(),
                fix=fix,
            )

    def _require_on_grid(self, stamp: datetime, stream: AssetStream | None, where: str) -> None:
        """Bars must stay on the asset's grid, or an hour off where daylight saving moves longer
        ones.
        """
        seconds, step = seconds_of(stamp), int(self.forecaster.timeframe.total_seconds())
        allowed = {0, _HOUR, step - _HOUR} if step > _HOUR else {0}
        if stream is None or (seconds - stream.seconds) % step in allowed:  # nearly always
            return
        if allowed.isdisjoint(
            ((seconds - stream.columns["timestamp"].astype(np.int64)) % step).tolist()
        ):
            expected = (
                f"a stamp whole {self.forecaster.tokenizer.timeframe} bars from "
                f"{stream.last.isoformat()}"
            )
            got = stamp.isoformat()
            fix = (
                "resample the bars as those before; DELETE .../bars?after= removes wrong ones "
                "that were taken"
            )
            raise DataError(
                "a bar between the stamps of its asset",
                where=where,
                expected=expected,
                got=got,
                fix=fix,
            )
