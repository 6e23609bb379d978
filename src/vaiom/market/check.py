"""The quality report: what is wrong with prices as prices, before anything is computed from them.

Enters: a bar folder, or one asset's bars in any order. Leaves: a `QualityReport`, facts and findings per asset.
Faults of the data are findings here, never errors: the report is what a user reads to decide what to do about them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from vaiom.codec import stored, to_json
from vaiom.market.check_prices import find_higher_timeframe_bars, neighbour_findings, value_findings
from vaiom.market.check_times import Clock, Gaps, find_gaps, read_clock, stamp_findings
from vaiom.market.findings import Finding, Severity
from vaiom.market.folder import PRICE_COLUMNS, Progress, conform, read_file, symbols_in
from vaiom.market.stamps import infer_timeframe


@dataclass(frozen=True, kw_only=True)
class AssetQuality:
    """Facts and findings of one asset."""

    symbol: str
    rows: int
    first: datetime | None
    last: datetime | None
    timeframe_seconds: int | None
    zero_return_share: float | None
    """Share of rows whose Close equals the one before; None where no two rows can be compared."""
    gaps: Gaps
    clock: Clock
    findings: tuple[Finding, ...] = field(metadata=stored(None))
    """Apart in JSON, where `QualityReport` lists those of all assets together."""


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """The assets of a folder, in sorted-symbol order."""

    assets: tuple[AssetQuality, ...]

    def worst(self) -> Severity | None:
        """The gravest severity found, None where there is no finding."""
        found = {finding.severity for asset in self.assets for finding in asset.findings}
        return next((severity for severity in Severity if severity in found), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "assets": to_json(self.assets),
            "findings": [{"symbol": asset.symbol, **to_json(each)} for asset in self.assets for each in asset.findings],
        }


def check_folder(folder: Path, progress: Progress | None = None) -> QualityReport:
    """Check every asset of a bar folder; `progress` is told (done, total, symbol)."""
    symbols = symbols_in(folder)
    assets = []
    for done, symbol in enumerate(symbols, start=1):
        assets.append(check_bars(symbol, read_file(folder / f"{symbol}.parquet")))
        if progress:
            progress(done, len(symbols), symbol)
    return QualityReport(assets=tuple(assets))


def check_bars(symbol: str, bars: pl.DataFrame) -> AssetQuality:
    """Check one asset; rows may be unordered, repeated or incomplete, which the findings then say."""
    bars = conform(bars, Path(symbol))
    stamped = bars.filter(pl.col("Datetime").is_not_null()).sort("Datetime", maintain_order=True)
    stamps = stamped["Datetime"]
    step = infer_timeframe(stamps.dt.truncate("1s"))
    timeframe = int(step.total_seconds()) if step else None
    higher, higher_findings = find_higher_timeframe_bars(stamped, timeframe)
    priced = pl.all_horizontal(pl.col(*PRICE_COLUMNS) > 0, pl.col(*PRICE_COLUMNS).is_finite())
    # A row that is certainly wrong is reported once, and its neighbours are compared without it.
    usable = stamped.filter(priced & ~pl.lit(pl.Series(higher))).unique("Datetime", keep="last", maintain_order=True)
    gaps, gap_findings = find_gaps(stamps, timeframe)
    clock, clock_findings = read_clock(stamps, timeframe)
    findings = (
        *stamp_findings(bars, timeframe),
        *value_findings(bars),
        *higher_findings,
        *neighbour_findings(usable),
        *gap_findings,
        *clock_findings,
    )
    return AssetQuality(
        symbol=symbol,
        rows=len(bars),
        first=stamps[0] if len(stamps) else None,
        last=stamps[-1] if len(stamps) else None,
        timeframe_seconds=timeframe,
        zero_return_share=usable.select((pl.col("Close").diff() == 0).mean()).item(),
        gaps=gaps,
        clock=clock,
        findings=tuple(sorted(findings, key=lambda finding: list(Severity).index(finding.severity))),
    )
