"""Quantiles of a GARCH(1,1) with Student-t shocks, forecast bar by bar with `arch`, as a table for
`vaiom score`.

    python examples/garch_quantiles.py CORPUS garch.csv --split validation
    vaiom score garch.csv --corpus CORPUS --split validation

The parameters of an asset are fitted once, on bars that end before the split; the variance then
rolls on, each forecast from returns through its own bar.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import polars as pl
from arch import arch_model

import vaiom

LEVELS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
    0.975,
    0.99,
    0.995,
)


class Garch:
    """A `ForecastSource`: `vaiom.score(Garch(), corpus)` needs no file."""

    def forecast(self, corpus: vaiom.Corpus, rows: Any) -> pl.DataFrame:
        return pl.concat(
            [self.forecast_asset(corpus, symbol, rows) for symbol in corpus.asset_slices]
        )

    def forecast_asset(self, corpus: vaiom.Corpus, symbol: str, rows: Any) -> pl.DataFrame:
        bars = corpus.asset_slices[symbol]
        own = rows[(rows >= bars.start) & (rows < bars.stop)] - bars.start
        returns = np.nan_to_num(corpus.columns["log_ret"][bars])
        scale = returns[: own[0]].std()  # the optimiser wants numbers near one
        model = arch_model(returns / scale, mean="Zero", vol="GARCH", p=1, q=1, dist="t")
        # Through the first forecast's own bar, which is the bar before `last_obs`.
        fit = model.fit(last_obs=int(own[0]) + 1, disp="off", show_warning=False)
        variance = fit.forecast(start=int(own[0]), horizon=1, reindex=False).variance.to_numpy()[
            own - own[0], 0
        ]
        shocks = model.distribution.ppf(
            np.array(LEVELS), fit.params[["nu"]].to_numpy()
        )  # of variance one
        quantiles = scale * np.sqrt(variance)[:, None] * shocks
        columns = {f"q{level}": each for level, each in zip(LEVELS, quantiles.T, strict=True)}
        return pl.DataFrame(
            {"time": corpus.timestamps[bars][own].astype("datetime64[ms]"), **columns}
        ).with_columns(symbol=pl.lit(symbol))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus")
    parser.add_argument("out")
    parser.add_argument("--split", default="validation")
    given = parser.parse_args()
    corpus = vaiom.open_corpus(given.corpus)
    Garch().forecast(corpus, corpus.endpoints(given.split)).write_csv(given.out)


if __name__ == "__main__":
    main()
