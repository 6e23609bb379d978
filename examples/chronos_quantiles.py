"""Quantiles of Chronos-2, a pretrained forecaster, after each bar, as a table for `vaiom score`.

    pip install chronos-forecasting python examples/chronos_quantiles.py CORPUS chronos.csv --split
    validation --model amazon/chronos-2 vaiom score chronos.csv --corpus CORPUS --split validation

It reads returns of one asset, the last of them that of the bar after which it forecasts, and is
trained no further. A split of hourly bars wants a GPU. What it was trained on may include the very
hours that it is judged on.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import polars as pl

import vaiom


class Chronos:
    """A `ForecastSource` around a `Chronos2Pipeline`: `vaiom.score(Chronos(pipeline), corpus)`
    needs no file.
    """

    def __init__(self, pipeline: Any, context: int = 512) -> None:
        self.pipeline, self.context = pipeline, context

    def forecast(self, corpus: vaiom.Corpus, rows: Any) -> pl.DataFrame:
        return pl.concat(
            [self.forecast_asset(corpus, symbol, rows) for symbol in corpus.asset_slices]
        )

    def forecast_asset(self, corpus: vaiom.Corpus, symbol: str, rows: Any) -> pl.DataFrame:
        bars, levels = corpus.asset_slices[symbol], list(self.pipeline.quantiles)
        own = rows[(rows >= bars.start) & (rows < bars.stop)] - bars.start
        # What is missing, in the series or before its start, is NaN to Chronos too.
        returns = np.pad(
            corpus.columns["log_ret"][bars], (self.context - 1, 0), constant_values=np.nan
        )
        windows = np.lib.stride_tricks.sliding_window_view(returns, self.context)[own].astype(
            np.float32
        )
        found, _ = self.pipeline.predict_quantiles(
            windows[:, None], prediction_length=1, quantile_levels=levels
        )
        # Quantiles of a network may cross: in order they are a distribution, which has no two that
        # coincide.
        ordered = np.sort(
            [each[0, 0].double().numpy() for each in found], axis=1
        ) + 1e-12 * np.arange(len(levels))
        columns = {f"q{level}": each for level, each in zip(levels, ordered.T, strict=True)}
        return pl.DataFrame(
            {"time": corpus.timestamps[bars][own].astype("datetime64[ms]"), **columns}
        ).with_columns(symbol=pl.lit(symbol))


def main() -> None:
    from chronos import Chronos2Pipeline

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus")
    parser.add_argument("out")
    parser.add_argument("--split", default="validation")
    parser.add_argument(
        "--model", default="amazon/chronos-2", help="a folder, or a name that is downloaded"
    )
    given = parser.parse_args()
    corpus, pipeline = (
        vaiom.open_corpus(given.corpus),
        Chronos2Pipeline.from_pretrained(given.model),
    )
    Chronos(pipeline).forecast(corpus, corpus.endpoints(given.split)).write_csv(given.out)


if __name__ == "__main__":
    main()
