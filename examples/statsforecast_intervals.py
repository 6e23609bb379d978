"""Intervals of any `statsforecast` model, forecast bar by bar, as a table of quantiles for `vaiom
score`.

    pip install statsforecast
    python examples/statsforecast_intervals.py CORPUS arima.csv --split validation --model AutoARIMA
    vaiom score arima.csv --corpus CORPUS --split validation

A model is chosen and fitted once per asset, on returns that end before the split; each forecast
then follows from the returns through its own bar. It must know new returns without a new fit, as
AutoARIMA, AutoETS and AutoTheta do. The package's GARCH does not, and its intervals are variances
wide, not standard deviations: `garch_quantiles.py` has one.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import polars as pl
from statsforecast import StatsForecast, models

import vaiom

PERCENT = (20, 40, 60, 80, 90, 95, 98, 99)  # of the forecasts between the two ends of an interval
INPUT = 512  # returns that a model is fitted to and that a forecast follows from


class Intervals:
    """A `ForecastSource`: `vaiom.score(Intervals(models.AutoARIMA()), corpus)` needs no file."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def forecast(self, corpus: vaiom.Corpus, rows: Any) -> pl.DataFrame:
        return pl.concat(
            [self.forecast_asset(corpus, symbol, rows) for symbol in corpus.asset_slices]
        )

    def forecast_asset(self, corpus: vaiom.Corpus, symbol: str, rows: Any) -> pl.DataFrame:
        bars = corpus.asset_slices[symbol]
        own = rows[(rows >= bars.start) & (rows < bars.stop)] - bars.start
        known = np.nan_to_num(corpus.columns["log_ret"][bars]).astype(np.float64)[
            : own[-1] + 2
        ]  # with the last target
        scale = known[: own[0]].std()  # the optimisers want numbers near one
        series = pl.DataFrame(
            {"unique_id": symbol, "ds": np.arange(len(known)), "y": known / scale}
        )
        windows = {
            "h": 1,
            "n_windows": int(own[-1] - own[0] + 1),
            "input_size": INPUT,
            "refit": False,
        }
        found = StatsForecast([self.model], freq=1).cross_validation(
            df=series, level=[*PERCENT], **windows
        )
        found, name = found.filter(pl.col("cutoff").is_in(own)).sort("cutoff"), str(self.model)
        ends = {f"q{0.5 - each / 200:g}": f"{name}-lo-{each}" for each in PERCENT}
        ends |= {f"q{0.5 + each / 200:g}": f"{name}-hi-{each}" for each in PERCENT}
        return found.select(
            pl.lit(symbol).alias("symbol"),
            pl.Series("time", corpus.timestamps[bars][own].astype("datetime64[ms]")),
            *(scale * pl.col(column).alias(level) for level, column in ends.items()),
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus")
    parser.add_argument("out")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--model", default="AutoARIMA", help="one of `statsforecast.models`")
    given = parser.parse_args()
    corpus, model = vaiom.open_corpus(given.corpus), getattr(models, given.model)()
    Intervals(model).forecast(corpus, corpus.endpoints(given.split)).write_csv(given.out)


if __name__ == "__main__":
    main()
