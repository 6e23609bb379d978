"""Forecasts of many assets side by side, and the bars that they are made from.

Enters: a bar folder or file; distributions. Leaves: frames by symbol; rows of a table; CSV text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from vaiom.errors import DataError
from vaiom.events.distribution import SIDES
from vaiom.forecast.display import BASIS_POINTS, bar_chart
from vaiom.forecast.distribution import RISK_LEVELS, SHOWN_LEVELS, ReturnDistribution
from vaiom.market.folder import check_symbol, read_bars, read_file, symbols_in

TABLE_COLUMNS = (
    "asset", "bar", "chances", "caution", "up", "5%", "50%", "95%",
    "VaR99 long", "ES99 long", "VaR99 short", "ES99 short", "zero",
)  # fmt: skip


def newest_bars(path: Path, symbol: str | None = None, others: Sequence[str] = ()) -> dict[str, pl.DataFrame]:
    """The bars of a folder, of one asset in it and the `others` that it has, or of a file, which `symbol` may name."""
    if symbol is None:
        return read_bars(path)
    if path.is_file():
        return {check_symbol(symbol): read_file(path)}
    known = symbols_in(path)
    if symbol not in known:
        raise DataError("no such asset in the bar folder", where=path, expected=", ".join(known), got=symbol)
    return {each: read_file(path / f"{each}.parquet") for each in known if each in (symbol, *others)}


def table_row(dist: ReturnDistribution) -> list[str]:
    """What a person reads first, in the order of `TABLE_COLUMNS`."""
    known = (("stale", dist.stale), ("unknown", dist.unknown_asset), ("incomplete", bool(dist.missing_assets)))
    cautions = [word for word, true in known if true]
    quantiles = [f"{BASIS_POINTS * dist.quantile(level):+.1f}" for level in (0.05, 0.5, 0.95)]
    risks = [
        f"{BASIS_POINTS * measure(0.99, side):.1f}"
        for side in SIDES
        for measure in (dist.value_at_risk, dist.expected_shortfall)
    ]
    return [
        dist.symbol,
        f"{dist.target_time:%Y-%m-%d %H:%M}",
        bar_chart(dist.probs),
        " ".join(cautions),
        f"{dist.prob_up:.1%}",
        *quantiles,
        *risks,
        f"{dist.prob_zero:.1%}",
    ]


def as_csv(dists: Sequence[ReturnDistribution]) -> str:
    """A header and a line per forecast, in log returns and full precision."""
    out = io.StringIO()
    records = [_record(dist) for dist in dists]
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def _record(dist: ReturnDistribution) -> dict[str, Any]:
    names = (
        "symbol",
        "as_of",
        "target_time",
        "context",
        "stale",
        "unknown_asset",
        "sigma",
        "prob_zero",
        "prob_up",
        "mean",
    )
    value = dist.to_dict()
    record = {name: value[name] for name in names} | {"missing_assets": " ".join(dist.missing_assets)}
    record |= {f"q{level}": value["quantiles"][str(level)] for level in SHOWN_LEVELS}
    for name, short in (("value_at_risk", "var"), ("expected_shortfall", "es")):
        record |= {f"{short}{level}_{side}": value[name][side][str(level)] for side in SIDES for level in RISK_LEVELS}
    return record | {f"p{bucket}": p for bucket, p in enumerate(value["probs"], start=1)}
