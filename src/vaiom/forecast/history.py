"""The forecasts of a whole history, each made from what was known at its time.

Enters: the rows of an asset and the probabilities that a model gave after each. Leaves: a sequence of
`ReturnDistribution`s, made when they are asked for, all of them at once, and a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.events.distribution import ReturnDistributions
from vaiom.events.fields import ANY_MASK, has_flag, timestamps_of
from vaiom.events.rows import Columns
from vaiom.forecast.bars import MIN_BARS
from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.engine import Probabilities
from vaiom.forecast.rows import Window

if TYPE_CHECKING:
    from vaiom.forecast.forecaster import Forecaster


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class History:
    """Forecasts made after each bar of one asset, oldest first; `history[i]` is a `ReturnDistribution`."""

    forecaster: Forecaster
    symbol: str
    columns: Columns
    """The rows that the forecasts were made at."""
    probs: Probabilities
    """(n, 16) probabilities of the return buckets."""
    absent: npt.NDArray[np.bool_]
    """(n, assets that the model reads): who had no bar at the forecast's last stamp."""

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
        """The scale through that bar."""
        return self.columns["sigma20"]

    @property
    def context(self) -> npt.NDArray[np.int64]:
        """Bars that the model saw."""
        return np.minimum(np.arange(len(self)) + MIN_BARS, self.forecaster.context)

    @property
    def masked(self) -> npt.NDArray[np.bool_]:
        """Forecasts made at a masked row, which are not to be trusted."""
        return has_flag(self.columns["flags"], ANY_MASK)

    @property
    def distributions(self) -> ReturnDistributions:
        """All of them at once, for quantiles, risk and PIT of many."""
        shape = self.forecaster.tokenizer.return_shape
        return ReturnDistributions(probs=self.probs, sigma=self.sigma, shape=shape)

    def __getitem__(self, index: int) -> ReturnDistribution:
        """One of the forecasts."""
        at = range(len(self))[index]
        missing = tuple(compress(self.forecaster.reads, self.absent[at]))
        window = Window(symbol=self.symbol, columns=self.columns, missing_assets=missing)
        return self.forecaster.distribution(window, self.probs[at], row=at, context=int(self.context[at]))

    def to_frame(self) -> pl.DataFrame:
        """One row per forecast: as_of, context, sigma, masked, num_missing_assets, p1 to p16."""
        about = {
            "as_of": self.as_of.astype("datetime64[us]"),
            "context": self.context,
            "sigma": self.sigma,
            "masked": self.masked,
            "num_missing_assets": self.absent.sum(axis=1),
        }
        return pl.DataFrame({**about, **{f"p{bucket}": probs for bucket, probs in enumerate(self.probs.T, start=1)}})
