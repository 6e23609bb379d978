"""The live assets: their rows, last bars, and the forecast that the next bar settles.

Enters: the stored bars and, at a start, those of a bar folder; then bars as clients push them.
Leaves: forecasts, and the settled ones with their scores. A bar counts once the store has
committed it. All of this but the settled forecasts, which are history, is a function of the stored
bars: a restart or a removal computes it from them. Bars that the model was trained on are never
scored. Paper: Methods, "Evaluation and Ablation Protocol".
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path

import numpy as np
import polars as pl

from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.joint import JointDistribution
from vaiom.distribution.returns import ReturnDistribution, to_dicts
from vaiom.errors import DataError, UserError
from vaiom.features.events import is_event
from vaiom.features.quantities import BarArrays
from vaiom.features.rows import RowColumns
from vaiom.forecast.bars import MIN_BARS, seconds_of, utc_now
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.ledger import ForecastLedger, Settlement
from vaiom.forecast.stream import OnlineForecaster
from vaiom.market.folder import read_bars
from vaiom.serve import monitor, schemas
from vaiom.serve.bar_store import Store
from vaiom.serve.follow import BarRow
from vaiom.serve.incoming import features_of, require_next, require_past, revised_stamps, rows_of
from vaiom.serve.refusals import DISK_PAUSE_SECONDS, RefusalError
from vaiom.serve.schemas import SettledForecast
from vaiom.serve.server import WINDOW

TIMEFRAME = "timeframe"
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
            retry_after=DISK_PAUSE_SECONDS,
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
        stored yet. The forecasts before the last `backfill` bars of its new assets are left to
        `past_forecasts` and `settle_past`.
        """
        self.forecaster = forecaster
        self.store = store
        self.alert_bits = alert_bits
        self.ledger = ledger
        self.utc_offset = utc_offset
        self.clock = clock
        self.backfill = backfill
        self.timeframe = forecaster.tokenizer.timeframe
        end = forecaster.card.provenance.splits.get("train_end")
        self.train_end = seconds_of(datetime.fromisoformat(end)) if end else 0
        """Bars before this stamp are training data."""
        num_buckets = forecaster.tokenizer.num_buckets["return"]
        self.frequency = monitor.FrequencyBaseline(num_buckets, store.bucket_counts())
        self.online = OnlineForecaster(forecaster, keep=backfill + 1)
        self.bars: dict[str, deque[BarRow]] = {}
        """The last bars by symbol, as many as a context has."""
        self.settled: dict[str, tuple[SettledForecast, ...]] = {}
        """The last settled forecasts by symbol, oldest first."""
        self.replays: dict[str, OnlineForecaster] = {}
        """Assets whose past forecasts are still to be scored, with the state to make them from."""
        self._require_timeframe()
        frames = read_bars(folder) if folder else {}
        for symbol in store.symbols():
            bars = store.bars(symbol)
            self._restore(symbol, bars)
            if symbol in frames:
                self._report_revisions(symbol, revised_stamps(bars, frames[symbol]), folder)
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

    def newest(self, symbol: str) -> ReturnDistribution | None:
        """The forecast after the last bar, on record if there is a ledger; None with too few
        bars.
        """
        if not self.online.ready(symbol):
            return None
        dist = self.online.forecast(symbol)
        self._commit([dist])
        return dist

    def forecast_at(self, symbol: str, now: datetime | None, horizon: int) -> ReturnDistribution:
        """The forecast after the last bar with the cautions of a moment on the bars' clock, of the
        next bar or a horizon of bars.
        """
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
        times = [time.perf_counter()]
        results: dict[str, schemas.PushAnswer | UserError] = {}
        taken: dict[str, Sequence[BarRow]] = {}
        for symbol, bars in pushes:
            try:
                stream = self.online.streams.get(symbol)
                require_next(symbol, bars, stream, self.timeframe, self.clock)
                # A decoder makes the forecast before one bar together with the one after it.
                if self.ledger or len(bars) > 1 or not self.forecaster.backend.decoder:
                    self.newest(symbol)
                taken[symbol] = bars
            except UserError as error:
                results[symbol] = error
        if not taken:
            return [results[symbol] for symbol, _ in pushes]
        after = self.online.copy()
        after.take({symbol: features_of(bars) for symbol, bars in taken.items()})
        times.append(time.perf_counter())
        dists = after.forecast_many([symbol for symbol in taken if after.ready(symbol)])
        settled = self._settle(after, taken)
        shown = dict(zip(dists, to_dicts([*dists.values()]), strict=True)) if dists else {}
        times.append(time.perf_counter())
        try:
            every = [(symbol, bar) for symbol, bars in taken.items() for bar in bars]
            self.store.append(every, [*settled.items()])
        except RefusalError as error:
            return [results.get(symbol, error) for symbol, _ in pushes]
        times.append(time.perf_counter())
        self._publish(after, taken)
        for symbol, score in settled.items():
            self._remember(symbol, [score])
        self._record(settled)
        try:
            self._commit([*dists.values()])
        except RefusalError:  # the bars are taken all the same
            shown.clear()
        for symbol, bars in taken.items():
            answer = schemas.PushAnswer(
                symbol=symbol,
                accepted=len(bars),
                num_bars=after.streams[symbol].num_bars,
                as_of=bars[-1].datetime,
                scored=settled.get(symbol),
                forecast=schemas.ForecastAnswer.unchecked(shown.get(symbol)),
            )
            answer.set_timing(times)
            results[symbol] = answer
        return [results[symbol] for symbol, _ in pushes]

    def cut(self, symbol: str, after: datetime) -> int:
        """Remove an asset's bars after a moment, as if they had never come; returns how many."""
        # Where assets read each other, rows of all hold what they read of the removed bars.
        changed = [*self.online.streams] if self.forecaster.reads_other_assets else [symbol]
        online = self.online.copy()
        online.forget(changed)
        with self.store.transaction("nothing was removed"):
            removed = self.store.cut([symbol], after)
            for each in {*changed} & {*self.store.symbols()}:
                online.take({each: self.store.bars(each)})
            bars = self.store.last_bars(symbol, self.forecaster.context)
            settled = self.store.last_settled(symbol, WINDOW)
            scored = self.store.bucket_counts()
            if self.ledger:
                with _refuse_without_ledger("the removal"):
                    self.ledger.remove(symbol, after)
        self.replays.pop(symbol, None)
        self.bars[symbol] = deque(bars, self.forecaster.context)
        self.settled[symbol] = tuple(settled)
        self.online = online
        self.frequency.reset(symbol, scored)
        self._count_train(symbol)
        return removed

    def past_forecasts(self, symbol: str) -> tuple[BucketDistribution, RowColumns]:
        """The forecasts before each of the last bars that a folder brought, and their rows; one
        more of each, which is for the bar to come. It may run in any thread.
        """
        online = self.replays[symbol]
        number = min(self.backfill, online.streams[symbol].num_bars - MIN_BARS)
        return online.past(symbol, max(number, 0) + 1)

    def settle_past(self, symbol: str, dists: BucketDistribution, rows: RowColumns) -> None:
        """Store the scores of an asset's past forecasts, unless its bars were removed since."""
        if symbol not in self.replays:
            return
        # A forecast needs a scale, and scores nothing that the model has learned from.
        due = (rows["sigma20"][:-1] > 0) & (rows["timestamp"][1:] >= self.train_end)
        before = {name: column[:-1][due] for name, column in rows.items()}
        settling = {name: column[1:][due] for name, column in rows.items()}
        probs = dists.probs[:-1][due]
        made = BucketDistribution(probs=probs, sigma=before["sigma20"], shape=dists.shape)
        scores = monitor.settle(made, before, settling, self.frequency, replayed=True)
        self.store.append([], [(symbol, score) for score in scores])
        self._remember(symbol, scores)
        del self.replays[symbol]

    def drift(self, symbol: str) -> schemas.Drift:
        """Recent losses of the model on an asset."""
        return monitor.measure_drift(self.settled.get(symbol, ()), self.alert_bits)

    def _require_timeframe(self) -> None:
        """Bars of one timeframe are stored; any model of that timeframe may go on from them."""
        stored = self.store.fact(TIMEFRAME)
        if stored is None:
            self.store.set_fact(TIMEFRAME, self.timeframe)
        elif stored != self.timeframe:
            raise DataError(
                "the stored bars are of another timeframe than the model's",
                where=self.store.path,
                expected=self.timeframe,
                got=stored,
                fix="choose another --state for this model",
            )

    def _restore(self, symbol: str, bars: BarArrays) -> None:
        """Compute what belongs to an asset from its stored bars and settled forecasts."""
        self.online.take({symbol: bars})
        last = self.store.last_bars(symbol, self.forecaster.context)
        self.bars[symbol] = deque(last, self.forecaster.context)
        self.settled[symbol] = tuple(self.store.last_settled(symbol, WINDOW))
        self._count_train(symbol)

    def _report_revisions(
        self, symbol: str, stamps: Sequence[datetime], folder: Path | None
    ) -> None:
        """Warn where a folder has other prices than those that are stored, which stay."""
        if stamps:
            _log.warning(
                "%s: %d bars of %s differ from the stored ones, which stay; the first is of %s",
                *(symbol, len(stamps), folder, stamps[0]),
            )

    def _take_folder(self, frames: Mapping[str, pl.DataFrame], folder: Path | None) -> None:
        """Take whole histories of new assets, and the newer bars of live ones."""
        new = {symbol: frame for symbol, frame in frames.items() if symbol not in self.bars}
        for symbol, frame in new.items():
            require_past(frame["Datetime"][-1], f"{folder}, {symbol}", self.clock)
        after = self.online.copy()
        after.extend_many(new)
        self.store.append_histories(new)
        last = {symbol: frame.tail(self.forecaster.context) for symbol, frame in new.items()}
        self._publish(after, {symbol: rows_of(frame) for symbol, frame in last.items()})
        if self.backfill:
            self.replays = dict.fromkeys(new, after.copy())
        for symbol in frames.keys() - new.keys():
            known = self.online.streams[symbol].last
            newer = frames[symbol].filter(pl.col("Datetime") > known)
            if len(newer):
                self.push(symbol, rows_of(newer))

    def _count_train(self, symbol: str, start: int = 0) -> None:
        """Count the buckets of an asset's Train events among its bars from `start` on."""
        stream = self.online.streams.get(symbol)
        if stream is None or symbol not in self.forecaster.symbols:
            return
        start = max(start, self.forecaster.context)  # the first event follows a whole context
        flags = stream.columns["flags"]
        of_train = stream.columns["timestamp"][start:] < self.train_end
        events = of_train & is_event(flags[start - 1 : -1], flags[start:])
        self.frequency.count_train(symbol, stream.columns["return_bucket"][start:][events])

    def _settle(
        self, after: OnlineForecaster, taken: Mapping[str, Sequence[BarRow]]
    ) -> dict[str, SettledForecast]:
        """Score the forecasts before the first new bars of assets."""
        # A decoder has made those again that bars of other assets have changed.
        source = after if self.forecaster.backend.decoder else self.online
        made = {}
        places = []
        for symbol, bars in taken.items():
            if self.online.ready(symbol) and seconds_of(bars[0].datetime) >= self.train_end:
                end = self.online.streams[symbol].num_bars
                probs = source.probs_after(symbol, end)
                if probs is not None:
                    made[symbol] = probs
                    places.append((after.streams[symbol].columns, end))
        if not made:
            return {}
        before = monitor.rows_at([(columns, end - 1) for columns, end in places])
        dists = BucketDistribution(
            probs=np.array([*made.values()]),
            sigma=before["sigma20"],
            shape=self.forecaster.at(1).shape,
        )
        scores = monitor.settle(dists, before, monitor.rows_at(places), self.frequency)
        return dict(zip(made, scores, strict=True))

    def _publish(self, after: OnlineForecaster, bars: Mapping[str, Sequence[BarRow]]) -> None:
        """Publish committed bars to readers, who find the last bar of each state they see."""
        before = self.online.streams
        for symbol, new in bars.items():
            self.bars.setdefault(symbol, deque(maxlen=self.forecaster.context)).extend(new)
        self.online = after
        for symbol in bars:
            start = before[symbol].num_bars if symbol in before else 0
            if after.streams[symbol].columns["timestamp"][start] < self.train_end:
                self._count_train(symbol, start)

    def _commit(self, dists: Sequence[ReturnDistribution]) -> None:
        """Put forecasts on record, unless they are already."""
        if self.ledger:
            with _refuse_without_ledger("the forecast"):
                self.ledger.commit(*dists)

    def _record(self, settled: Mapping[str, SettledForecast]) -> None:
        """Put the outcomes of forecasts on record."""
        if not self.ledger or not settled:
            return
        names = ("as_of", "target_time", "model_bits", "frequency_bits")
        outcomes = [
            Settlement(symbol=symbol, **{name: getattr(each, name) for name in names})
            for symbol, each in settled.items()
        ]
        try:
            self.ledger.settle(*outcomes)
        except OSError as error:  # the forecasts themselves are recorded
            _log.error(
                "the outcome of a forecast of %s could not be recorded: %s",
                *(", ".join(settled), error.strerror),
            )

    def _remember(self, symbol: str, settled: Sequence[SettledForecast]) -> None:
        """Keep settled forecasts of an asset among its last ones, for drift and history."""
        # Past forecasts come late, so sort by time; replaced at once, for concurrent readers.
        every = sorted((*self.settled.get(symbol, ()), *settled), key=attrgetter("as_of"))
        self.settled[symbol] = tuple(every[-WINDOW:])
        self.frequency.learn(settled)
