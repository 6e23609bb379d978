"""A cache of posted histories: extending an earlier one costs its new bars only.

Enters: whole histories of bars, as clients post them again and again. Leaves: forecasts that do not
depend on what was posted before. Histories are known by a hash of their bars.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy.typing as npt
import polars as pl

from vaiom.distribution.returns import ReturnDistribution
from vaiom.errors import DataError
from vaiom.forecast.bars import MIN_BARS, prepare_bars
from vaiom.forecast.forecaster import Forecaster
from vaiom.forecast.stream import OnlineForecaster
from vaiom.market.folder import BAR_SCHEMA
from vaiom.serve.follow import BarRow

MAX_ASSETS = 128
"""Assets in the cache over all histories: about 3 MiB each."""

BarColumns = Mapping[str, Sequence[npt.NDArray[Any]]]
"""Columns of a bar folder by symbol."""
Lengths = tuple[tuple[str, int], ...]
"""Number of bars per symbol, sorted."""


class PostedHistories:
    """The cache. Not thread-safe."""

    def __init__(self, forecaster: Forecaster, max_assets: int = MAX_ASSETS) -> None:
        """`max_assets` bounds the assets of all histories together; those of the histories that
        were not asked for the longest go first.
        """
        self.forecaster = forecaster
        self.max_assets = max_assets
        self._known: OrderedDict[tuple[Lengths, bytes], OnlineForecaster] = OrderedDict()
        """Least recently used first."""

    def __len__(self) -> int:
        """Number of histories in the cache."""
        return len(self._known)

    def forecast(
        self,
        bars: Mapping[str, Sequence[BarRow]],
        symbol: str,
        now: datetime | None = None,
        horizon: int = 1,
    ) -> ReturnDistribution:
        """The forecast after an asset's last bar; other assets are used if the model reads them."""
        read = bars if self.forecaster.reads_other_assets else [symbol]
        frames = {each: _frame_of(bars[each]) for each in read}
        columns = {
            each: [column.to_physical().to_numpy() for column in frame]
            for each, frame in frames.items()
        }
        online = self._longest(columns)
        timeframe = self.forecaster.tokenizer.timeframe
        if not online.streams and len(frames[symbol]) < MIN_BARS:
            prepare_bars(frames[symbol], symbol, timeframe)  # the error names the number needed
        known = {each: stream.num_bars for each, stream in online.streams.items()}
        parts = {each: frame[known.get(each, 0) :] for each, frame in frames.items()}
        new = {each: part for each, part in parts.items() if len(part)}
        try:
            for each in new if known else ():
                prepare_bars(frames[each], each, timeframe, min_bars=1)
            online.extend_many(new)
        except DataError:
            # No answer may depend on what was posted before: refused, or taken only as a whole.
            online = self.forecaster.online()
            online.extend_many(frames)
        dist = online.forecast(symbol, horizon=horizon, now=now)
        lengths = tuple(sorted((each, len(frame)) for each, frame in frames.items()))
        self._known[lengths, _hash(columns, lengths)] = online
        while sum(len(lengths) for lengths, _ in self._known) > self.max_assets:
            self._known.popitem(last=False)
        return dist

    def _longest(self, columns: BarColumns) -> OnlineForecaster:
        """A copy of the cached state of the longest known prefix."""
        shapes = {lengths for lengths, _ in self._known if dict(lengths).keys() == columns.keys()}
        for lengths in sorted(shapes, key=_total, reverse=True):
            if all(number <= len(columns[symbol][0]) for symbol, number in lengths):
                key = lengths, _hash(columns, lengths)
                if key in self._known:
                    self._known.move_to_end(key)
                    return self._known[key].copy()
        return self.forecaster.online()


def _frame_of(bars: Sequence[BarRow]) -> pl.DataFrame:
    """Bars as a frame of a bar folder."""
    columns = zip(BAR_SCHEMA, zip(*bars, strict=True), strict=True)
    return pl.DataFrame(dict(columns), BAR_SCHEMA)


def _total(lengths: Lengths) -> int:
    """Number of bars of all assets."""
    return sum(number for _, number in lengths)


def _hash(columns: BarColumns, lengths: Lengths) -> bytes:
    """The hash of so many first bars of each asset; missing values are NaN."""
    digest = hashlib.sha256()
    for symbol, number in lengths:
        for column in columns[symbol]:
            digest.update(column[:number].tobytes())
    return digest.digest()
