"""The forecasts of a whole history, each made from what was known at its time.

Enters: the rows of an asset and the probabilities that a model gave after each. Leaves: a sequence of
`ReturnDistribution`s, made when they are asked for, and a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from vaiom.events.inputs import ANY_MASK, has_flag, timestamps_of
from vaiom.forecast import company
from vaiom.forecast.bars import MIN_BARS
from vaiom.forecast.distribution import ReturnDistribution
from vaiom.forecast.engine import Probabilities
from vaiom.forecast.inputs import Columns

if TYPE_CHECKING:
    from vaiom.forecast.forecaster import Forecaster


@dataclass(frozen=True, kw_only=True, eq=False)
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

    def __getitem__(self, index: int) -> ReturnDistribution:
        """One of the forecasts."""
        index = range(len(self))[index]
        return self.forecaster.distribution(
            self.symbol,
            self.columns,
            index,
            self.probs[index],
            int(self.context[index]),
            missing_assets=company.named(self.absent[index], self.forecaster.reads),
        )

    def to_frame(self) -> pl.DataFrame:
        """One row per forecast: as_of, context, sigma, masked, num_missing_assets, p1 to p16."""
        probs = {f"p{bucket}": self.probs[:, bucket - 1] for bucket in range(1, self.probs.shape[1] + 1)}
        as_of = self.as_of.astype("datetime64[us]")
        about = {
            "as_of": as_of,
            "context": self.context,
            "sigma": self.sigma,
            "masked": self.masked,
            "num_missing_assets": self.absent.sum(axis=1),
        }
        return pl.DataFrame({**about, **probs})
