"""Joint forecasts of several assets from their own forecasts and past bars, and positions read from
a file.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vaiom.corpus.rows import Columns
from vaiom.distribution.buckets import ReturnDistributions
from vaiom.distribution.dependence import DependenceState, scale_of, series_of
from vaiom.distribution.joint import JointDistribution
from vaiom.distribution.returns import ReturnDistribution, notes_of
from vaiom.errors import ConfigError, DataError, require_installed
from vaiom.features.fields import inputs_of

if TYPE_CHECKING:
    from vaiom.forecast.forecaster import Forecaster

FEW_STAMPS = 100
"""With fewer common bars, correlations are unreliable."""


def state_after(
    forecaster: Forecaster,
    assets: Mapping[str, Columns],
    before: DependenceState | None = None,
    since: int = -1,
) -> DependenceState:
    """The dependence state after the last bars, from as many as it remembers, or from those `since`
    a stamp.
    """
    require_installed("scipy")
    fit, at = forecaster.dependence, forecaster.at(1)
    if fit is None:
        fix = "`vaiom dependence RUN` fits it, and packaged models have one"
        raise ConfigError(
            "this model was never fitted to several assets together", where=forecaster, fix=fix
        )
    series = {}
    for symbol, rows in assets.items():
        meta = forecaster.meta(symbol)
        new = min(fit.memory, int((rows["timestamp"].astype(np.int64) > since).sum()))
        columns = {name: column[-(new + forecaster.context) :] for name, column in rows.items()}
        events = inputs_of(forecaster.config, columns, meta)
        probs = forecaster.engine.probs_after_each(events, meta, forecaster.context)[-new - 1 :]
        last = {
            name: columns[name][-len(probs) :]
            for name in ("timestamp", "sigma20", "flags", "log_ret")
        }
        dists = ReturnDistributions(probs=probs, sigma=last["sigma20"], shape=at.shape)
        series[symbol] = series_of(dists, at.zero_share[meta[0]], last)
    stamps = np.concatenate([own for own, _, _ in series.values()])
    if before is None and len(series) > 1 and len(np.unique(stamps)) == len(stamps):
        expected = "bars of one clock that overlap"
        fix = (
            "bring their bars to one clock (vaiom data import --shift), or bring in longer "
            "histories"
        )
        raise DataError(
            "the assets have no bar in common", where=", ".join(series), expected=expected, fix=fix
        )
    return (before or fit.begin()).after_all(series)


def join(dists: Mapping[str, ReturnDistribution], state: DependenceState) -> JointDistribution:
    """Join forecasts of one horizon by the dependence before them."""
    symbols, fit = list(dists), state.fit
    scales = np.array([float(scale_of(dist)) for dist in dists.values()])
    newest, horizon = max(dist.as_of for dist in dists.values()), next(iter(dists.values())).horizon
    seen = dict(zip(state.symbols, state.counts.tolist(), strict=True))
    notes = notes_of(dists.values())
    notes += [
        f"{each}: its last bar is of {dists[each].as_of}"
        for each in symbols
        if dists[each].as_of < newest
    ]
    for symbol in symbols if len(symbols) > 1 else ():
        if seen.get(symbol, 0) < FEW_STAMPS:
            mostly = "that of Train" if symbol in fit.symbols else "the mean of its class"
            notes.append(
                f"{symbol}: {seen.get(symbol, 0)} bars beside others: its correlation is mostly "
                f"{mostly}"
            )
    if str(horizon) not in fit.degrees:
        notes.append(f"the dependence over {horizon} bars is taken to be that of one")
    return JointDistribution.of(
        dists,
        {symbol: dist.prob_zero for symbol, dist in dists.items()},
        state.correlation(symbols, scales),
        fit.degrees.get(str(horizon), fit.degrees["1"]),
        horizon=horizon,
        as_of=newest,
        notes=tuple(notes),
    )


def read_positions(file: Path) -> dict[str, float]:
    """Amounts of money by symbol, from `symbol,amount` or `symbol;amount` lines; a header is
    allowed.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
        lines = [
            line
            for line in csv.reader(text.splitlines(), delimiter=";" if ";" in text else ",")
            if line
        ]
    except (OSError, ValueError, csv.Error) as error:
        got = getattr(error, "strerror", None) or error
        raise DataError("the positions cannot be read", where=file, got=got) from error
    positions: dict[str, float] = {}
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line]
        if number == 1 and [cell.lower() for cell in cells] == ["symbol", "amount"]:
            continue
        try:
            symbol, amount = cells[0], float(cells[1])
            if len(cells) != 2 or not math.isfinite(amount) or symbol in positions:
                raise ValueError
        except (ValueError, IndexError) as error:
            expected, place = (
                "symbol,amount with a finite amount of money, each symbol once",
                f"{file}, line {number}",
            )
            raise DataError(
                "not a position", where=place, expected=expected, got=", ".join(line)
            ) from error
        positions[symbol] = amount
    if not positions:
        raise DataError("there are no positions", where=file, expected="symbol,amount lines")
    return positions
