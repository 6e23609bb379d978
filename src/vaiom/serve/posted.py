"""A cache of posted histories, keyed by a hash of the bars: extending an earlier one costs its new
bars only.
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

MOST_ASSETS = 128
"""Assets in the cache over all histories: about 3 MiB each."""

Columns = Mapping[str, Sequence[npt.NDArray[Any]]]
"""Columns of a bar folder by symbol."""
Lengths = tuple[tuple[str, int], ...]
"""Number of bars per symbol."""


class PostedHistories:
    """Not thread-safe."""

    def __init__(self, forecaster: Forecaster) -> None:
        self.forecaster = forecaster
        self._known: OrderedDict[tuple[Lengths, bytes], OnlineForecaster] = OrderedDict()
        """Least recently used first."""

    def forecast(
        self,
        bars: Mapping[str, Sequence[BarRow]],
        symbol: str,
        now: datetime | None = None,
        horizon: int = 1,
    ) -> ReturnDistribution:
        """The forecast after an asset's last bar; other assets are used if the model reads them."""
        frames = {
            each: pl.DataFrame(
                dict(zip(BAR_SCHEMA, zip(*bars[each], strict=True), strict=True)), schema=BAR_SCHEMA
            )
            for each in (bars if self.forecaster.reads_other_assets else [symbol])
        }
        columns = {
            each: [column.to_physical().to_numpy() for column in frames[each]] for each in frames
        }
        online = self._longest(columns)
        if not online.streams and len(frames[symbol]) < MIN_BARS:
            prepare_bars(
                frames[symbol], symbol, self.forecaster.tokenizer.timeframe
            )  # the error names the number needed
        known = {each: stream.num_bars for each, stream in online.streams.items()}
        new = {
            each: frame[known.get(each, 0) :]
            for each, frame in frames.items()
            if len(frame) > known.get(each, 0)
        }
        try:
            for each in new if known else ():
                prepare_bars(frames[each], each, self.forecaster.tokenizer.timeframe, min_bars=1)
            online.extend_many(new)
        except (
            DataError
        ):  # refused, or accepted only as a whole: no answer may depend on what was posted before
            online = self.forecaster.online()
            online.extend_many(frames)
        dist = online.forecast(symbol, horizon=horizon, now=now)
        self._known[
            _key(columns, tuple(sorted((each, len(frame)) for each, frame in frames.items())))
        ] = online
        while sum(len(lengths) for lengths, _ in self._known) > MOST_ASSETS:
            self._known.popitem(last=False)
        return dist

    def _longest(self, columns: Columns) -> OnlineForecaster:
        """A copy of the cached state of the longest known prefix."""
        shapes = {
            lengths
            for lengths, _ in self._known
            if {symbol for symbol, _ in lengths} == columns.keys()
        }
        for lengths in sorted(
            shapes, key=lambda each: sum(number for _, number in each), reverse=True
        ):
            fits = all(number <= len(columns[symbol][0]) for symbol, number in lengths)
            if fits and (key := _key(columns, lengths)) in self._known:
                self._known.move_to_end(key)
                return self._known[key].copy()
        return self.forecaster.online()


def _key(columns: Columns, lengths: Lengths) -> tuple[Lengths, bytes]:
    digest = hashlib.sha256()
    for symbol, number in lengths:
        for column in columns[symbol]:
            digest.update(column[:number].tobytes())  # missing values are NaN
    return lengths, digest.digest()
