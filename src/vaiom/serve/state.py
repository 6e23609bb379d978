"""The live assets: their rows, last bars, and the forecast that the next bar settles.

Enters: the stored bars and, at a start, those of a bar folder; then bars as clients push them.
Leaves: forecasts, and the settled ones with their scores. A bar counts once the store has
committed it. All of this but the settled forecasts, which are history, is a function of the stored
bars: a restart or a removal computes it from them. Bars that the model was trained on are never
scored.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path

import numpy as np
import polars as pl

from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.joint import JointDistribution
from vaiom.distribution.returns import ReturnDistribution, stack, to_dicts
from vaiom.errors import DataError, UserError
from vaiom.features.events import is_event
from vaiom.features.fields import MASK_BITS
from vaiom.features.quantities import BarArrays
from vaiom.features.rows import RowColumns
from vaiom.forecast.bars import CLOCK_ALLOWANCE, MIN_BARS, seconds_of, utc_now, wrong_timeframe
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.ledger import ForecastLedger, Settlement
from vaiom.forecast.stream import AssetStream, OnlineForecaster
from vaiom.market.folder import NUMBER_COLUMNS, PRICE_COLUMNS, read_bars
from vaiom.serve import monitor, schemas
from vaiom.serve.follow import BarRow
from vaiom.serve.schemas import RefusalError, SettledForecast
from vaiom.serve.store import Store

_HOUR = 3_600
_TIMEFRAME = "timeframe"
"""The fact that says which bars are stored."""
_log = logging.getLogger("vaiom.serve")


@contextmanager
def _refuse_without_ledger(what: str) -> Iterator[None]:
    """Refuse the request if the ledger cannot be written."""
    try:
        yield
    except OSError as error:
        raise RefusalError(
            503,
            f"{what} could not be put on record",
            got=error.strerror,
            retry_after=10,
            fix="look at the disk of the ledger",
        ) from error


class LiveAssets:
    """The live assets of a service: pushes are serial; readers see all of one or none of it."""

    def __init__(
        self,
        forecaster: Forecaster,
        store: Store,
        alert_bits: float,
        ledger: ForecastLedger | None = None,
        utc_offset: timedelta = timedelta(0),
        *,
        folder: Path | None = None,
        backfill: int = 0,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Compute the state from the stored bars, and take those of a bar folder that are not
        stored yet; the forecasts before the last `backfill` bars of its new assets are to be
        replayed.
        """
        self.forecaster = forecaster
        self.store = store
        self.alert_bits = alert_bits
        self.ledger = ledger
        self.utc_offset = utc_offset
        self.clock = clock
        self.backfill = backfill
        end = forecaster.card.provenance.splits.get("train_end")
        self.train_end = datetime.fromisoformat(end) if end else None
        """Bars before this are training data."""
        num_buckets = forecaster.tokenizer.num_buckets["return"]
        self.frequency = monitor.FrequencyBaseline(num_buckets, store.bucket_counts())
        self.online = OnlineForecaster(forecaster, keep=backfill + 1)
        self.bars: dict[str, deque[BarRow]] = {}
        """The last bars by symbol, as many as a context has."""
        self.settled: dict[str, tuple[SettledForecast, ...]] = {}
        """The last settled forecasts by symbol, oldest first."""
        self.replays: dict[str, OnlineForecaster] = {}
        """Assets whose past forecasts are still to be replayed, with the state to do it from."""
        self._forecasts: dict[str, tuple[AssetStream, ReturnDistribution]] = {}
        self._require_timeframe()
        frames = read_bars(folder) if folder else {}
        for symbol in store.symbols():
            bars = store.bars(symbol)
            self._restore(symbol, bars)
            if symbol in frames:
                self._report_revisions(symbol, bars, frames[symbol], folder)
        if folder:
            self._take_folder(frames, folder)

    @property
    def symbols(self) -> list[str]:
        """Assets of the model, and others that have bars."""
        return sorted({*self.forecaster.symbols, *self.online.streams})

    def require(self, symbol: str) -> None:
        """Refuse a symbol that is no live asset."""
        if symbol not in self.symbols:
            raise RefusalError(
                404,
                "no such live asset",
                expected=", ".join(self.symbols),
                got=symbol,
                fix="send its bars to POST /v1/forecast, or start the service with a bar folder "
                "that has it",
            )

    def now(self) -> datetime:
        """The present on the clock of the bars."""
        return self.clock() + self.utc_offset

    # Forecasts.

    def forecast(self, symbol: str) -> ReturnDistribution | None:
        """The forecast after the last bar, if made and still up to date."""
        stream, dist = self._forecasts.get(symbol, (None, None))
        return dist if stream and self.online.is_newest(stream, symbol) else None

    def newest(self, symbol: str) -> ReturnDistribution | None:
        """The forecast after the last bar, made if needed; None with too few bars."""
        known = self.forecast(symbol)
        if known is None and self.online.ready(symbol):
            known = self.online.forecast(symbol)
            self._keep(self.online, {symbol: known})
        return known

    def forecast_at(self, symbol: str, now: datetime | None, horizon: int) -> ReturnDistribution:
        """The latest forecast as of a moment on the bars' clock, or for a horizon of bars."""
        now = now or self.now()
        dist = self.newest(symbol)
        if dist and horizon == 1:
            closed = dist.as_of + self.forecaster.timeframe
            if closed <= now <= dist.stale_since:
                return dist  # at other moments it has notes of caution
        return self.online.forecast(symbol, horizon=horizon, now=now)

    def joint(self, symbols: Sequence[str], horizon: int) -> JointDistribution:
        """The joint forecast of assets, given all that the model reads, as in `vaiom risk`."""
        others = [each for each in self.forecaster.reads if self.online.ready(each)]
        return self.online.joint(list(dict.fromkeys((*symbols, *others))), horizon=horizon)

    # Bars that come.

    def push(self, symbol: str, bars: Sequence[BarRow]) -> None:
        """Take an asset's next bars, durably."""
        [result] = self.push_all([(symbol, bars)])
        if isinstance(result, UserError):
            raise result

    def push_all(
        self, pushes: Sequence[tuple[str, Sequence[BarRow]]]
    ) -> list[schemas.PushAnswer | UserError]:
        """Take the next bars of different assets, durably, or return why not; they share one batch
        and one commit.
        """
        start = time.perf_counter()
        results: dict[str, schemas.PushAnswer | UserError] = {}
        taken: dict[str, Sequence[BarRow]] = {}
        for symbol, bars in pushes:
            try:
                self._require_next(symbol, bars)
                self._forecast_before(symbol, len(bars))
                taken[symbol] = bars
            except UserError as error:
                results[symbol] = error
        if not taken:
            return [results[symbol] for symbol, _ in pushes]
        after = self.online.copy()
        after.take({symbol: _features_of(bars) for symbol, bars in taken.items()})
        advanced = time.perf_counter()
        dists = after.forecast_many([symbol for symbol in taken if after.ready(symbol)])
        first = {symbol: bars[0].datetime for symbol, bars in taken.items()}
        settled = self._settle(after, first)
        shown = dict(zip(dists, to_dicts([*dists.values()]), strict=True)) if dists else {}
        computed = time.perf_counter()
        try:
            every = [(symbol, bar) for symbol, bars in taken.items() for bar in bars]
            self.store.append(every, [*settled.items()])
        except RefusalError as error:
            return [results.get(symbol, error) for symbol, _ in pushes]
        flushed = time.perf_counter()
        self._publish(after, taken)
        for symbol, score in settled.items():
            self._remember(symbol, [score])
        self._record(settled)
        try:
            self._keep(after, dists)
        except RefusalError:  # the bars are taken all the same
            shown.clear()
        seconds = {"bar": advanced - start, "model": computed - advanced}
        seconds["disk"] = flushed - computed
        for symbol, bars in taken.items():
            forecast = None
            if symbol in shown:
                forecast = schemas.ForecastAnswer.model_construct(**shown[symbol])
            answer = schemas.PushAnswer(
                symbol=symbol,
                accepted=len(bars),
                num_bars=after.streams[symbol].num_bars,
                as_of=bars[-1].datetime,
                scored=settled.get(symbol),
                forecast=forecast,
            )
            answer.set_timing(seconds)
            results[symbol] = answer
        return [results[symbol] for symbol, _ in pushes]

    def cut(self, symbol: str, after: datetime) -> int:
        """Remove an asset's bars after a moment, as if they had never come; returns how many."""
        # Rows of assets that read each other hold what they read of the removed bars.
        reads_others = self.forecaster.reads_other_assets
        changed = [*self.online.streams] if reads_others else [symbol]
        online = self.online.copy()
        online.forget(changed)
        with self.store.transaction("nothing was removed"):
            removed = self.store.cut([symbol], after)
            for each in {*changed} & {*self.store.symbols()}:
                online.take({each: self.store.bars(each)})
            bars = self.store.last_bars(symbol, self.forecaster.context)
            settled = self.store.last_settled(symbol, monitor.WINDOW)
            scored = self.store.bucket_counts()
            if self.ledger:
                with _refuse_without_ledger("the removal"):
                    self.ledger.remove(symbol, after)
        self.replays.pop(symbol, None)
        for each in changed:
            self._forecasts.pop(each, None)
        self.bars[symbol] = deque(bars, self.forecaster.context)
        self.settled[symbol] = tuple(settled)
        self.online = online
        self.frequency.reset(symbol, scored)
        self._count_train(symbol)
        return removed

    # Forecasts of the past.

    def past_forecasts(self, symbol: str) -> tuple[BucketDistribution, RowColumns]:
        """The forecasts before each of the last bars that a folder brought, and their rows; one
        more of each, which is for the bar to come. It may run in any thread.
        """
        online = self.replays[symbol]
        number = min(self.backfill, online.streams[symbol].num_bars - MIN_BARS)
        return online.past(symbol, max(number, 0) + 1)

    def settle_past(self, symbol: str, dists: BucketDistribution, rows: RowColumns) -> None:
        """Store the scores of an asset's replayed forecasts, unless its bars were removed since."""
        if symbol not in self.replays:
            return
        # A forecast needs a scale, and scores nothing that the model has learned from.
        due = rows["sigma20"][:-1] > 0
        if self.train_end:
            due &= rows["timestamp"][1:] >= seconds_of(self.train_end)
        sigma = rows["sigma20"][:-1][due]
        made = BucketDistribution(probs=dists.probs[:-1][due], sigma=sigma, shape=dists.shape)
        before = {name: column[:-1][due] for name, column in rows.items()}
        settling = {name: column[1:][due] for name, column in rows.items()}
        scores = monitor.settle(made, before, settling, self.frequency, replayed=True)
        self.store.append([], [(symbol, score) for score in scores])
        self._remember(symbol, scores)
        del self.replays[symbol]

    # What readers ask for.

    def drift(self, symbol: str) -> schemas.Drift:
        """Recent losses of the model on an asset."""
        return monitor.measure_drift(self.settled.get(symbol, ()), self.alert_bits)

    def assets(self) -> schemas.AssetsAnswer:
        """The state of every live asset, its forecast made if needed, and the model's drift."""
        return schemas.AssetsAnswer(
            timeframe=self.forecaster.tokenizer.timeframe,
            frequency=self.frequency.name,
            alert_bits=self.alert_bits,
            utc_offset_seconds=self.utc_offset.total_seconds(),
            window=monitor.WINDOW,
            e_value=self.ledger.e_value if self.ledger else None,
            assets=[self._asset(symbol) for symbol in self.symbols],
        )

    def history(self, symbol: str, last: int) -> schemas.HistoryAnswer:
        """The last bars of an asset with their masks, the forecasts that they settled, calibration
        and data quality.
        """
        self.require(symbol)
        settled = self.settled.get(symbol, ())
        bars = self._masked_bars(symbol)
        masks = Counter(name for bar in bars for name in bar.masks)
        quality = schemas.Quality(
            bars=len(bars),
            masked=sum(bool(bar.masks) for bar in bars),
            by_mask=dict(sorted(masks.items())),
        )
        return schemas.HistoryAnswer(
            symbol=symbol,
            bars=bars[-last:],
            forecasts=list(settled),
            calibration=monitor.measure_calibration(settled),
            quality=quality,
        )

    def _asset(self, symbol: str) -> schemas.AssetAnswer:
        dist = None
        try:
            dist = self.newest(symbol)
        except UserError as error:  # a request for it raises again
            _log.warning("no forecast of %s: %s", symbol, error)
        stream = self.online.streams.get(symbol)
        bars = self.bars.get(symbol)
        return schemas.AssetAnswer(
            symbol=symbol,
            known=symbol in self.forecaster.symbols,
            ready=self.online.ready(symbol),
            num_bars=stream.num_bars if stream else 0,
            as_of=stream.last if stream else None,
            close=bars[-1].close if bars else None,
            prob_up=dist.prob_up if dist else None,
            drift=self.drift(symbol),
        )

    def _masked_bars(self, symbol: str) -> list[schemas.MaskedBar]:
        stream = self.online.streams.get(symbol)
        if stream is None:
            return []
        rows = stream.rows(self.forecaster.context)
        flags = dict(zip(rows["timestamp"].tolist(), rows["flags"].tolist(), strict=True))
        bars = []
        for bar in list(self.bars.get(symbol, ())):
            row_flags = flags.get(seconds_of(bar.datetime))
            if row_flags is not None:  # a bar that is just arriving has no row yet
                masks = [name for name, bit in MASK_BITS.items() if row_flags & bit]
                bars.append(schemas.MaskedBar.model_construct(None, **bar._asdict(), masks=masks))
        return bars

    # Stored bars and folders.

    def _require_timeframe(self) -> None:
        """Bars of one timeframe are stored; any model of that timeframe may go on from them."""
        timeframe = self.forecaster.tokenizer.timeframe
        stored = self.store.fact(_TIMEFRAME)
        if stored is None:
            self.store.set_fact(_TIMEFRAME, timeframe)
        elif stored != timeframe:
            raise DataError(
                "the stored bars are of another timeframe than the model's",
                where=self.store.path,
                expected=timeframe,
                got=stored,
                fix="choose another --state for this model",
            )

    def _restore(self, symbol: str, bars: BarArrays) -> None:
        """Compute what belongs to an asset from its stored bars and settled forecasts."""
        self.online.take({symbol: bars})
        last = self.store.last_bars(symbol, self.forecaster.context)
        self.bars[symbol] = deque(last, self.forecaster.context)
        self.settled[symbol] = tuple(self.store.last_settled(symbol, monitor.WINDOW))
        self._count_train(symbol)

    def _take_folder(self, frames: Mapping[str, pl.DataFrame], folder: Path) -> None:
        """Take whole histories of new assets, and the newer bars of live ones."""
        new = {symbol: frame for symbol, frame in frames.items() if symbol not in self.bars}
        for symbol, frame in new.items():
            self._require_past(frame["Datetime"][-1], f"{folder}, {symbol}")
        after = self.online.copy()
        after.extend_many(new)
        self.store.append_histories(new)
        last = {symbol: frame.tail(self.forecaster.context) for symbol, frame in new.items()}
        self._publish(after, {symbol: _rows_of(frame) for symbol, frame in last.items()})
        if self.backfill:
            self.replays = dict.fromkeys(new, after.copy())
        for symbol in frames.keys() - new.keys():
            stamp = pl.col("Datetime")
            newer = frames[symbol].filter(stamp > self.online.streams[symbol].last)
            if len(newer):
                self.push(symbol, _rows_of(newer))

    def _report_revisions(
        self, symbol: str, stored: BarArrays, frame: pl.DataFrame, folder: Path | None
    ) -> None:
        """Warn where a folder has other prices than those that are stored, which stay."""
        seconds = frame["Datetime"].dt.epoch("s").to_numpy()
        at = np.minimum(stored.seconds.searchsorted(seconds), len(stored.seconds) - 1)
        ours = np.stack([getattr(stored, name.lower())[at] for name in PRICE_COLUMNS])
        theirs = np.stack([frame[name].to_numpy() for name in PRICE_COLUMNS])
        is_same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        is_known = stored.seconds[at] == seconds
        revised = np.flatnonzero(is_known & ~is_same.all(axis=0))
        if len(revised):
            _log.warning(
                "%s: %d bars of %s differ from the stored ones, which stay; the first is of %s",
                *(symbol, len(revised), folder, frame["Datetime"][int(revised[0])]),
            )

    def _count_train(self, symbol: str, start: int = 0) -> None:
        """Count the buckets of an asset's Train events among its bars from `start` on."""
        stream = self.online.streams.get(symbol)
        if self.train_end is None or stream is None or symbol not in self.forecaster.symbols:
            return
        # The first event follows a whole context.
        start = max(start, self.forecaster.context)
        flags = stream.columns["flags"]
        stamps = stream.columns["timestamp"][start:]
        events = is_event(flags[start - 1 : -1], flags[start:])
        events &= stamps < seconds_of(self.train_end)
        self.frequency.count_train(symbol, stream.columns["return_bucket"][start:][events])

    # Parts of a push.

    def _require_next(self, symbol: str, bars: Sequence[BarRow]) -> None:
        """Refuse bars that do not follow an asset's last one, or are of the future."""
        stream = self.online.streams.get(symbol)
        last = stream.last if stream else None
        for number, bar in enumerate(bars, start=1):
            where = f"bars of {symbol}, row {number}"
            stamp = bar.datetime
            if last and stamp <= last:
                is_known = stamp == last
                raise RefusalError(
                    409,
                    "a bar is there already" if is_known else "a bar goes back in time",
                    where=where,
                    expected=f"a bar after {last.isoformat()}",
                    got=stamp.isoformat(),
                    fix="push the bars that follow; GET /v1/assets says where each asset stands",
                )
            self._require_past(stamp, where)
            if last:
                self._require_on_grid(stamp, last, stream, where)
                if stamp - last < self.forecaster.timeframe:
                    timeframe = self.forecaster.tokenizer.timeframe
                    raise wrong_timeframe(where, timeframe, stamp - last)
            last = stamp

    def _require_past(self, stamp: datetime, where: str) -> None:
        latest = self.clock() + CLOCK_ALLOWANCE
        if stamp > latest:
            moment = latest.isoformat(timespec="seconds")
            raise DataError(
                "a bar of the future",
                where=where,
                expected=f"a bar from before {moment}, by the clock of this machine",
                got=stamp.isoformat(),
                fix="correct the stamp, or the clock of the machine",
            )

    def _require_on_grid(
        self, stamp: datetime, last: datetime, stream: AssetStream | None, where: str
    ) -> None:
        """Bars must stay on the asset's grid, or an hour off where daylight saving moves longer
        ones.
        """
        step = int(self.forecaster.timeframe.total_seconds())
        allowed = {0, _HOUR, step - _HOUR} if step > _HOUR else {0}
        seconds = seconds_of(stamp)
        if (seconds - seconds_of(last)) % step in allowed:  # nearly always
            return
        stamps = stream.columns["timestamp"].astype(np.int64) if stream else np.empty(0, np.int64)
        if allowed.isdisjoint(((seconds - stamps) % step).tolist()):
            timeframe = self.forecaster.tokenizer.timeframe
            raise DataError(
                "a bar between the stamps of its asset",
                where=where,
                expected=f"a stamp whole {timeframe} bars from {last.isoformat()}",
                got=stamp.isoformat(),
                fix="resample the bars as those before; DELETE .../bars?after= removes wrong "
                "ones that were taken",
            )

    def _forecast_before(self, symbol: str, num_bars: int) -> None:
        """Make the forecast that these bars settle, unless the decoder will find it in its cache:
        it makes changed rows again with the next one.
        """
        is_cached = self.forecaster.backend.decoder and symbol in self._forecasts
        if self.ledger or num_bars > 1 or not is_cached:
            self.newest(symbol)

    def _settle(
        self, after: OnlineForecaster, first: Mapping[str, datetime]
    ) -> dict[str, SettledForecast]:
        """Score the forecasts before the first new bars of assets, which have these stamps."""
        due = {}
        for symbol, stamp in first.items():
            if self.online.ready(symbol) and not (self.train_end and stamp < self.train_end):
                dist = self.forecast(symbol)
                if dist is None and symbol in self._forecasts:
                    # Bars of other assets changed its inputs: it was made again with the next.
                    num_bars = self.online.streams[symbol].num_bars
                    probs = after.probs_after(symbol, num_bars)
                    _, old = self._forecasts[symbol]
                    dist = None if probs is None else replace(old, probs=probs)
                if dist is not None:
                    due[symbol] = dist
        if not due:
            return {}
        ends = {symbol: self.online.streams[symbol].num_bars for symbol in due}
        rows = [(after.streams[symbol].columns, end) for symbol, end in ends.items()]
        before = monitor.rows_at([(columns, end - 1) for columns, end in rows])
        settling = monitor.rows_at(rows)
        scores = monitor.settle(stack([*due.values()]), before, settling, self.frequency)
        return dict(zip(due, scores, strict=True))

    def _publish(self, after: OnlineForecaster, bars: Mapping[str, Sequence[BarRow]]) -> None:
        """Publish committed bars to readers, who find the last bar of each state they see."""
        starts = {}
        for symbol, new in bars.items():
            stream = self.online.streams.get(symbol)
            starts[symbol] = stream.num_bars if stream else 0
            self.bars.setdefault(symbol, deque(maxlen=self.forecaster.context)).extend(new)
        self.online = after
        for symbol, start in starts.items():
            stamps = after.streams[symbol].columns["timestamp"]
            if self.train_end and stamps[start] < seconds_of(self.train_end):
                self._count_train(symbol, start)

    def _keep(self, online: OnlineForecaster, dists: Mapping[str, ReturnDistribution]) -> None:
        """Keep forecasts of a state, and record them in the ledger."""
        if self.ledger:
            with _refuse_without_ledger("the forecast"):
                self.ledger.commit(*dists.values())
        for symbol, dist in dists.items():
            self._forecasts[symbol] = online.streams[symbol], dist

    def _record(self, settled: Mapping[str, SettledForecast]) -> None:
        """Write the outcomes of forecasts to the ledger."""
        if not self.ledger or not settled:
            return
        outcomes = [
            Settlement(
                symbol=symbol,
                as_of=each.as_of,
                target_time=each.target_time,
                model_bits=each.model_bits,
                frequency_bits=each.frequency_bits,
            )
            for symbol, each in settled.items()
        ]
        try:
            self.ledger.settle(*outcomes)
        except OSError as error:  # the forecasts themselves are recorded
            _log.error(
                "the outcome of a forecast of %s could not be recorded: %s",
                ", ".join(settled),
                error.strerror,
            )

    def _remember(self, symbol: str, settled: Sequence[SettledForecast]) -> None:
        # Replayed ones come late, so sort by time; replaced at once, for concurrent readers.
        every = sorted((*self.settled.get(symbol, ()), *settled), key=attrgetter("as_of"))
        self.settled[symbol] = tuple(every[-monitor.WINDOW :])
        self.frequency.learn(settled)


def _rows_of(frame: pl.DataFrame) -> list[BarRow]:
    """The bars of a frame of a bar folder."""
    return [*map(BarRow._make, frame.select("Datetime", *NUMBER_COLUMNS).iter_rows())]


def _features_of(bars: Sequence[BarRow]) -> BarArrays:
    """Bars as the recursions take them: one as scalars, which is ten times faster, several as
    arrays.
    """
    if len(bars) == 1:
        [(stamp, *numbers)] = bars
        scalars = [np.float64(math.nan if each is None else each) for each in numbers]
        return BarArrays(np.int64(seconds_of(stamp)), *scalars)  # type: ignore[arg-type]
    stamps, *columns = zip(*bars, strict=True)
    seconds = np.array([seconds_of(stamp) for stamp in stamps], np.int64)
    return BarArrays(seconds, *(np.array(column, np.float64) for column in columns))
