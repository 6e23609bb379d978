"""What a forecast is made from, and the forecasts of a history.

Enters: the rows of assets, one array of (rows,) per stored column. Leaves: the `Window` that a
model reads, of one asset's last rows; a `History` of the forecasts after each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, overload

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.returns import ReturnDistribution
from vaiom.distribution.shape import Floats, Ints
from vaiom.errors import DataError
from vaiom.features.fields import ANY_MASK, has_flag, timestamps_of
from vaiom.features.rows import RowColumns
from vaiom.forecast.bars import MIN_BARS

if TYPE_CHECKING:
    from vaiom.forecast.forecaster import Forecaster

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """The last rows of one asset: the inputs of a forecast."""

    symbol: str
    columns: RowColumns
    """(rows,) each, oldest first; those before the last context of a model play no part."""
    missing_assets: tuple[str, ...] = ()
    """Assets that the model reads and that have no bar at the last stamp."""

    def __len__(self) -> int:
        return len(self.columns["timestamp"])

    def require_scale(self) -> None:
        """Refuse a window after which a return has no scale."""
        if not self.columns["sigma20"][-1] > 0:
            raise DataError(
                "there is no scale to forecast with: no close of this history moved",
                where=f"bars of {self.symbol}",
                fix="bring in a longer history",
            )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class History(Sequence[ReturnDistribution]):
    """The n forecasts after the last n bars of one asset, oldest first.

    `history[i]` is a `ReturnDistribution`, as `Forecaster.predict` would have given it then.
    """

    forecaster: Forecaster
    symbol: str
    rows: RowColumns
    """(bars,) each; no forecast was made after the first ones."""
    probs: Floats
    """(n, 16) probabilities of the return buckets."""
    absent: Bools
    """(n, assets that the model reads): True if without a bar at the forecast's last stamp."""
    horizon: int = 1
    """Bars that the returns span."""

    def __len__(self) -> int:
        return len(self.probs)

    def __repr__(self) -> str:
        span = f", {self.as_of[0]} to {self.as_of[-1]}" if len(self) else ""
        return f"<History {self.symbol}, {len(self):,} forecasts{span}>"

    @property
    def columns(self) -> RowColumns:
        """(n,) each: the rows after which the forecasts were made."""
        first = len(self.rows["timestamp"]) - len(self)
        return {name: column[first:] for name, column in self.rows.items()}

    @property
    def as_of(self) -> npt.NDArray[np.datetime64]:
        """(n,) left edge of the last bar that each forecast used."""
        return timestamps_of(self.columns)

    @property
    def sigma(self) -> Floats:
        """(n,) scales of the returns; NaN while no close has moved."""
        asset = self.forecaster.tokenizer.asset_id(self.symbol)
        scale = self.forecaster.at(self.horizon).scale(self.columns, asset)
        return np.where(scale > 0, scale, np.nan)

    @property
    def context(self) -> Ints:
        """(n,) number of bars that the model saw."""
        return np.minimum(np.arange(len(self)) + MIN_BARS, self.forecaster.context)

    @property
    def masked(self) -> Bools:
        """(n,) forecasts after a masked row, which cannot be trusted."""
        return has_flag(self.columns["flags"], ANY_MASK)

    @property
    def distributions(self) -> BucketDistribution:
        """All forecasts as one distribution of n events, for quantiles, risk and PIT."""
        shape = self.forecaster.at(self.horizon).shape
        return BucketDistribution(probs=self.probs, sigma=self.sigma, shape=shape)

    @overload
    def __getitem__(self, index: int) -> ReturnDistribution: ...
    @overload
    def __getitem__(self, index: slice) -> list[ReturnDistribution]: ...
    def __getitem__(self, index: int | slice) -> ReturnDistribution | list[ReturnDistribution]:
        """One of the forecasts, or those of a slice."""
        at = range(len(self))[index]
        if isinstance(at, range):
            return [self[each] for each in at]
        stop = len(self.rows["timestamp"]) - len(self) + at + 1
        start = max(0, stop - self.forecaster.context)
        window = Window(
            symbol=self.symbol,
            columns={name: column[start:stop] for name, column in self.rows.items()},
            missing_assets=tuple(compress(self.forecaster.reads, self.absent[at])),
        )
        return self.forecaster.distribution(window, self.probs[at], horizon=self.horizon)

    def to_frame(self) -> pl.DataFrame:
        """One row per forecast: as_of, context, sigma, masked, num_missing_assets, p1 to p16."""
        columns = {
            "as_of": self.as_of.astype("datetime64[us]"),
            "context": self.context,
            "sigma": self.sigma,
            "masked": self.masked,
            "num_missing_assets": self.absent.sum(axis=1),
        }
        for bucket, probs in enumerate(self.probs.T, start=1):
            columns[f"p{bucket}"] = probs
        return pl.DataFrame(columns)


def cut_window(
    assets: Mapping[str, RowColumns], reads: Sequence[str], symbol: str, context: int
) -> Window:
    """The last `context` rows of an asset, for a model that `reads` these assets beside it."""
    columns = {name: column[-context:] for name, column in assets[symbol].items()}
    missing = find_missing(assets, reads, symbol)
    return Window(symbol=symbol, columns=columns, missing_assets=missing)


def find_missing(
    assets: Mapping[str, RowColumns], reads: Sequence[str], symbol: str
) -> tuple[str, ...]:
    """Those of the assets that a model `reads` which have no bar at the last stamp of an asset."""
    stamp = assets[symbol]["timestamp"].item(-1)
    return tuple(
        other
        for other in reads
        if other not in assets or not _has_bar(assets[other]["timestamp"], stamp)
    )


def _has_bar(stamps: Ints, stamp: int) -> bool:
    """Whether increasing stamps contain this one; mostly it is the last, which is fast to see."""
    last = stamps.item(-1)
    if last <= stamp:
        return bool(last == stamp)
    return bool(stamps[stamps.searchsorted(stamps.dtype.type(stamp))] == stamp)


def find_absent(assets: Mapping[str, RowColumns], reads: Sequence[str], symbol: str) -> Bools:
    """(bars, assets that the model `reads`): True if without a bar at the stamp of a bar."""
    stamps = assets[symbol]["timestamp"]
    absent = np.ones((len(stamps), len(reads)), bool)
    for number, other in enumerate(reads):
        if other in assets:
            absent[:, number] = ~np.isin(stamps, assets[other]["timestamp"])
    return absent
