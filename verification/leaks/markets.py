"""The bars that pipelines are audited on: a simulated market, and a stretch of real bars."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vaiom.auditing.pipeline import Bars
from vaiom.corpus.splits import SplitConfig
from vaiom.market.folder import read_bars
from vaiom.simulation.market import MarketConfig, simulate

ROWS = 5_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Market:
    bars: Bars
    splits: SplitConfig


def simulated_market() -> Market:
    return market_of(
        {
            symbol: asset.bars
            for symbol, asset in simulate(MarketConfig(assets=2, bars=ROWS)).items()
        }
    )


def real_market(folder: Path, symbols: tuple[str, ...] = ("EURUSD", "XAUUSD")) -> Market:
    bars = read_bars(folder)
    return market_of({symbol: bars[symbol].tail(ROWS) for symbol in symbols})


def market_of(bars: Bars) -> Market:
    """Boundaries at shares of the time that the bars cover."""
    first = max(frame["Datetime"][0] for frame in bars.values())
    last = min(frame["Datetime"][-1] for frame in bars.values())
    at = [
        (first + share * (last - first)).replace(minute=0, second=0, microsecond=0)
        for share in (0.5, 0.6, 0.7, 0.8)
    ]
    splits = SplitConfig(
        train_end=at[0], validation=(at[1], at[2]), tests=((at[2], at[3]),), seal=at[3]
    )
    return Market(bars=bars, splits=splits)
