"""What readers are told of the live assets.

Enters: `LiveAssets`, whose state may move on meanwhile. Leaves: answers that show one state.
"""

from __future__ import annotations

import logging
from collections import Counter

from vaiom.errors import UserError
from vaiom.features.fields import MASK_BITS
from vaiom.forecast.bars import seconds_of
from vaiom.serve import monitor, schemas
from vaiom.serve.server import WINDOW
from vaiom.serve.state import LiveAssets

_log = logging.getLogger("vaiom.serve")


def describe_assets(live: LiveAssets) -> schemas.AssetsAnswer:
    """The state of every live asset, its forecast made if needed, and the model's drift on it."""
    return schemas.AssetsAnswer(
        timeframe=live.timeframe,
        frequency=live.frequency.name,
        alert_bits=live.alert_bits,
        utc_offset_seconds=live.utc_offset.total_seconds(),
        window=WINDOW,
        e_value=live.ledger.e_value if live.ledger else None,
        assets=[_describe_asset(live, symbol) for symbol in live.symbols],
    )


def describe_history(live: LiveAssets, symbol: str, last: int) -> schemas.HistoryAnswer:
    """The last bars of an asset with their masks, the forecasts that they settled, calibration and
    data quality.
    """
    live.require(symbol)
    settled = live.settled.get(symbol, ())
    bars = _masked_bars(live, symbol)
    masks = Counter(name for bar in bars for name in bar.masks)
    num_masked = sum(bool(bar.masks) for bar in bars)
    by_mask = dict(sorted(masks.items()))
    return schemas.HistoryAnswer(
        symbol=symbol,
        bars=bars[-last:],
        forecasts=list(settled),
        calibration=monitor.measure_calibration(settled),
        quality=schemas.Quality(bars=len(bars), masked=num_masked, by_mask=by_mask),
    )


def _describe_asset(live: LiveAssets, symbol: str) -> schemas.AssetAnswer:
    """Where an asset stands; a forecast that cannot be made is null here, and logged."""
    dist = None
    try:
        dist = live.newest(symbol)
    except UserError as error:  # a request for it raises again
        _log.warning("no forecast of %s: %s", symbol, error)
    stream = live.online.streams.get(symbol)
    bars = live.bars.get(symbol)
    return schemas.AssetAnswer(
        symbol=symbol,
        known=symbol in live.forecaster.symbols,
        ready=live.online.ready(symbol),
        num_bars=stream.num_bars if stream else 0,
        as_of=stream.last if stream else None,
        close=bars[-1].close if bars else None,
        prob_up=dist.prob_up if dist else None,
        drift=live.drift(symbol),
    )


def _masked_bars(live: LiveAssets, symbol: str) -> list[schemas.MaskedBar]:
    """The last bars with the masks of their rows."""
    stream = live.online.streams.get(symbol)
    if stream is None:
        return []
    last = slice(-live.forecaster.context, None)
    stamps, flags = (stream.columns[name][last].tolist() for name in ("timestamp", "flags"))
    flags_at = dict(zip(stamps, flags, strict=True))
    masked = []
    for bar in list(live.bars.get(symbol, ())):
        row_flags = flags_at.get(seconds_of(bar.datetime))
        if row_flags is not None:  # a bar that is just arriving has no row yet
            masks = [name for name, bit in MASK_BITS.items() if row_flags & bit]
            masked.append(schemas.MaskedBar.model_construct(None, **bar._asdict(), masks=masks))
    return masked
