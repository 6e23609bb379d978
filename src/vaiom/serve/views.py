"""Live assets as JSON-safe values, in the shapes of `schemas`.

Enters: forecasts, settled forecasts, live assets. Leaves: dictionaries.
"""

from __future__ import annotations

from typing import Any

from vaiom.forecast.distribution import ReturnDistribution
from vaiom.serve.live import LiveAssets
from vaiom.serve.monitor import WINDOW, AssetMonitor
from vaiom.serve.store import Candle, Scored

_PRICES = Candle._fields[1:]


def forecast_view(dist: ReturnDistribution, *, beyond: float | None = None, law: bool = False) -> dict[str, Any]:
    """A forecast; on request the probability of a move beyond, and all that is needed to compute any other."""
    view = dist.to_dict()
    view["prob_beyond"] = None if beyond is None else dist.prob_beyond(beyond)
    view["law"] = _law(dist) if law else None
    return view


def scored_view(scored: Scored) -> dict[str, Any]:
    return {
        "as_of": scored.as_of.isoformat(),
        "target_time": scored.target.isoformat(),
        "replayed": scored.replayed,
        "quantiles": scored.quantiles,
        "log_return": scored.log_ret,
        "bucket": scored.bucket,
        "model_bits": scored.model_bits,
        "frequency_bits": scored.frequency_bits,
        "pit": scored.pit,
    }


def assets_view(live: LiveAssets) -> dict[str, Any]:
    return {
        "timeframe": live.forecaster.tokenizer.timeframe,
        "frequency": live.frequency.name,
        "alert_bits": live.alert_bits,
        "window": WINDOW,
        "assets": [_asset(live, symbol) for symbol in live.symbols],
    }


def history_view(live: LiveAssets, symbol: str, last: int) -> dict[str, Any]:
    """The last bars with their masks, settled forecasts, calibration, and what the remembered bars are worth."""
    live.require(symbol)
    candles, masks = list(live.candles.get(symbol, [])), live.masks(symbol)
    bars = [
        {"datetime": candle.stamp.isoformat(), **dict(zip(_PRICES, candle[1:], strict=True)), "masks": names}
        for candle, names in zip(candles, masks, strict=True)
    ]
    monitor = _monitor(live, symbol)
    return {
        "symbol": symbol,
        "bars": bars[-last:],
        "forecasts": [scored_view(each) for each in monitor.recent],
        "calibration": monitor.calibration(),
        "quality": {
            "bars": len(bars),
            "masked": sum(bool(names) for names in masks),
            "by_mask": {name: sum(name in names for names in masks) for name in sorted({n for m in masks for n in m})},
        },
    }


def _asset(live: LiveAssets, symbol: str) -> dict[str, Any]:
    stream, last = live.online.streams.get(symbol), live.last(symbol)
    dist, candles = live.forecast(symbol), live.candles.get(symbol)
    return {
        "symbol": symbol,
        "known": symbol in live.forecaster.symbols,
        "ready": live.online.ready(symbol),
        "num_bars": stream.num_bars if stream else 0,
        "as_of": last.isoformat() if last else None,
        "close": candles[-1].close if candles else None,
        "prob_up": dist.prob_up if dist else None,
        "drift": _monitor(live, symbol).drift(),
    }


def _monitor(live: LiveAssets, symbol: str) -> AssetMonitor:
    return live.monitors.get(symbol) or AssetMonitor(live.alert_bits)


def _law(dist: ReturnDistribution) -> dict[str, Any]:
    tails = {
        name: {"scale": tail.scale * dist.sigma, "shape": tail.shape}
        for name, tail in (("lower", dist.shape.lower), ("upper", dist.shape.upper))
    }
    return {"knots": (dist.shape.knots * dist.sigma).tolist(), "cumulative": dist.cumulative.tolist(), **tails}
