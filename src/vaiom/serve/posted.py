"""Histories that come with a request: one whose beginning was posted before costs its new bars only.

Enters: the bars of a request by symbol. Leaves: the window and the forecast of one asset. What the service knows of a
history is found by a hash of the very bars, so that two histories never share anything but a common beginning.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from vaiom.forecast.bars import MIN_BARS, check_bars
from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.online import OnlineForecaster
from vaiom.forecast.rows import Window
from vaiom.market.folder import BAR_SCHEMA
from vaiom.serve.schemas import Bar

MOST_ASSETS = 128
"""Assets of all remembered histories together: about 3 MiB each."""

Lengths = tuple[tuple[str, int], ...]
"""Symbols of a history and how many bars of each there are."""


class PostedHistories:
    """For models that take one more row at the price of one. Not for use by several threads at once."""

    def __init__(self, forecaster: Forecaster) -> None:
        self.forecaster = forecaster
        self._known: OrderedDict[tuple[Lengths, bytes], OnlineForecaster] = OrderedDict()
        """The one that was asked for last comes last."""

    def forecast(self, bars: Mapping[str, Sequence[Bar]], symbol: str) -> tuple[Window, ReturnDistribution]:
        """The forecast after the last bar of an asset; the other assets are read by a model that reads them."""
        if not self.forecaster.reads_other_assets:
            bars = {symbol: bars[symbol]}
        online = self._longest(bars)
        new = {each: rows[online.streams[each].num_bars if online.streams else 0 :] for each, rows in bars.items()}
        frames = frames_of({each: rows for each, rows in new.items() if rows})
        if not online.streams:
            # A history alone says how many bars it must have, and what their timeframe is.
            check_bars(frames[symbol], symbol, self.forecaster.tokenizer.timeframe, MIN_BARS)
        online.extend_many(frames)
        window, dist = online.window(symbol), online.forecast(symbol)
        self._keep(bars, online)
        return window, dist

    def _longest(self, bars: Mapping[str, Sequence[Bar]]) -> OnlineForecaster:
        """A copy of what is known of the longest beginning of these bars."""
        shapes = {lengths for lengths, _ in self._known if {symbol for symbol, _ in lengths} == bars.keys()}
        for lengths in sorted(shapes, key=lambda each: sum(number for _, number in each), reverse=True):
            if all(number <= len(bars[symbol]) for symbol, number in lengths):
                found = self._known.get(key := _key(bars, lengths))
                if found:
                    self._known.move_to_end(key)
                    return found.copy()
        return self.forecaster.online()

    def _keep(self, bars: Mapping[str, Sequence[Bar]], online: OnlineForecaster) -> None:
        lengths = tuple(sorted((symbol, len(rows)) for symbol, rows in bars.items()))
        self._known[_key(bars, lengths)] = online
        while sum(len(lengths) for lengths, _ in self._known) > MOST_ASSETS and len(self._known) > 1:
            self._known.popitem(last=False)


def frames_of(bars: Mapping[str, Sequence[Bar]]) -> dict[str, pl.DataFrame]:
    return {
        symbol: pl.DataFrame([bar.as_row() for bar in rows], schema=BAR_SCHEMA, orient="row")
        for symbol, rows in bars.items()
    }


def _key(bars: Mapping[str, Sequence[Bar]], lengths: Lengths) -> tuple[Lengths, bytes]:
    digest = hashlib.sha256()
    for symbol, number in lengths:
        stamps, *values = zip(*(bar.as_row() for bar in bars[symbol][:number]), strict=True)
        digest.update(np.array(stamps, "datetime64[us]").tobytes())
        digest.update(np.array(values, np.float64).tobytes())  # what is missing is NaN
    return lengths, digest.digest()
