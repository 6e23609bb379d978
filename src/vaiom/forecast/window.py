"""The inputs of one forecast, and the forecasts of a history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.corpus.rows import Columns
from vaiom.distribution.buckets import BucketDistribution
from vaiom.distribution.returns import ReturnDistribution
from vaiom.errors import DataError
from vaiom.features.fields import ANY_MASK, has_flag, timestamps_of
from vaiom.forecast.backend import Probabilities
from vaiom.forecast.bars import MIN_BARS

if TYPE_CHECKING:
    from vaiom.forecast.forecaster import Forecaster

Stamps = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """The last rows of one asset, at most a context: the inputs of a forecast."""

    symbol: str
    columns: Columns
    missing_assets: tuple[str, ...] = ()
    """Assets that the model reads and that have no bar at the last stamp."""
    stamps: Stamps | None = None
    """Stamps of the last bars, if the columns have fewer rows."""

    def __len__(self) -> int:
        return len(self.columns["timestamp"])

    def require_scale(self) -> None:
        if not self.columns["sigma20"][-1] > 0:
            problem = "there is no scale to forecast with: no close of this history moved"
            raise DataError(
                problem, where=f"bars of {self.symbol}", fix="bring in a longer history"
            )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class History(Sequence[ReturnDistribution]):
    """Forecasts made after each bar of one asset, oldest first; `history[i]` is a
    `ReturnDistribution`.
    """

    forecaster: Forecaster
    symbol: str
    columns: Columns
    """The rows at which the forecasts were made."""
    probs: Probabilities
    """(n, 16) probabilities of the return buckets."""
    absent: npt.NDArray[np.bool_]
    """(n, assets that the model reads): True if without a bar at the forecast's last stamp."""
    stamps: Stamps
    """Stamps of all bars, including those before the first forecast."""
    horizon: int = 1

    def __len__(self) -> int:
        return len(self.probs)

    def __repr__(self) -> str:
        span = f", {self.as_of[0]} to {self.as_of[-1]}" if len(self) else ""
        return f"<History {self.symbol}, {len(self):,} forecasts{span}>"

    @property
    def as_of(self) -> npt.NDArray[np.datetime64]:
        """Left edge of the last bar that each forecast used."""
        return timestamps_of(self.columns)

    @property
    def sigma(self) -> npt.NDArray[np.float64]:
        """The scale through that bar; NaN while no close has moved."""
        asset = self.forecaster.tokenizer.asset_id(self.symbol)
        scale = self.forecaster.at(self.horizon).scale(self.columns, asset)
        return np.where(scale > 0, scale, np.nan)

    @property
    def context(self) -> npt.NDArray[np.int64]:
        """Number of bars that the model saw."""
        return np.minimum(np.arange(len(self)) + MIN_BARS, self.forecaster.context)

    @property
    def masked(self) -> npt.NDArray[np.bool_]:
        """Forecasts made at a masked row, which cannot be trusted."""
        return has_flag(self.columns["flags"], ANY_MASK)

    @property
    def distributions(self) -> BucketDistribution:
        """All forecasts as one object, for quantiles, risk and PIT."""
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
        missing = tuple(compress(self.forecaster.reads, self.absent[at]))
        last = {name: column[at : at + 1] for name, column in self.columns.items()}
        context, end = min(at + MIN_BARS, self.forecaster.context), at + MIN_BARS
        stamps = self.stamps[end - context : end]
        window = Window(symbol=self.symbol, columns=last, missing_assets=missing, stamps=stamps)
        return self.forecaster.distribution(
            window, self.probs[at], context=context, horizon=self.horizon
        )

    def to_frame(self) -> pl.DataFrame:
        """One row per forecast: as_of, context, sigma, masked, num_missing_assets, p1 to p16."""
        about = {
            "as_of": self.as_of.astype("datetime64[us]"),
            "context": self.context,
            "sigma": self.sigma,
        }
        about |= {"masked": self.masked, "num_missing_assets": self.absent.sum(axis=1)}
        return pl.DataFrame(
            {**about, **{f"p{bucket}": probs for bucket, probs in enumerate(self.probs.T, start=1)}}
        )


def cut_window(
    assets: Mapping[str, Columns], known: Sequence[str], symbol: str, context: int
) -> Window:
    """The last rows of an asset; `known` are the assets that the model reads."""
    columns = {name: column[-context:] for name, column in assets[symbol].items()}
    return Window(
        symbol=symbol, columns=columns, missing_assets=find_missing(assets, known, symbol)
    )


def find_missing(
    assets: Mapping[str, Columns], known: Sequence[str], symbol: str
) -> tuple[str, ...]:
    """The known assets that have no bar at the last stamp of an asset."""
    own = assets[symbol]["timestamp"].item(-1)

    def has_bar(stamps: Stamps) -> bool:
        if stamps.item(-1) <= own:  # nearly always
            return bool(stamps.item(-1) == own)
        return bool(stamps[stamps.searchsorted(stamps.dtype.type(own))] == own)

    return tuple(
        other for other in known if other not in assets or not has_bar(assets[other]["timestamp"])
    )
