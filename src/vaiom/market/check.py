"""The data-quality report of bars: facts, gaps, the clock and findings.

Bars enter as they are stored, unordered or damaged; what is wrong with them leaves as findings and
never as an error. Each kind of check has its file: `findings`, `hidden_bars`, `gaps`, `clock`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import polars as pl

from vaiom.codec import Stored, to_json
from vaiom.files import Progress
from vaiom.market.clock import Clock, read_clock
from vaiom.market.findings import (
    Finding,
    Severity,
    check_prices,
    check_values,
    finding,
    row_findings,
)
from vaiom.market.folder import (
    PRICE_COLUMNS,
    conform,
    counted,
    infer_timeframe,
    keep_last,
    read_file,
    symbols_in,
)
from vaiom.market.gaps import Gaps, find_gaps
from vaiom.market.hidden_bars import find_higher_timeframe_bars
from vaiom.market.sessions import FIRST_MONDAY, HOUR, WEEK

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class AssetQuality:
    """What the report says of one asset: facts, gaps, the clock of its stamps, and findings."""

    symbol: str
    rows: int
    first: datetime | None
    last: datetime | None
    timeframe_seconds: int | None
    phase_seconds: int | None
    """Offset of most stamps from the timeframe's steps since midnight, or Monday: 1800 for hours
    that begin at :30.
    """
    zero_return_share: float | None
    """Share of rows whose Close equals the one before; None if no two rows can be compared."""
    gaps: Gaps
    clock: Clock
    findings: Annotated[tuple[Finding, ...], Stored(None)]
    """By severity. In JSON, `QualityReport` lists those of all assets together."""

    @property
    def problems(self) -> str:
        """A line about the errors and warnings; empty if there are none."""
        return describe_problems(self.symbol, self.findings)


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """The report of a bar folder: its assets, in sorted-symbol order."""

    assets: tuple[AssetQuality, ...]

    def plus(self, more: Mapping[str, list[Finding]]) -> QualityReport:
        """The report with more findings, given by symbol."""
        assets = []
        for asset in self.assets:
            found = [*asset.findings, *more.get(asset.symbol, [])]
            assets.append(replace(asset, findings=_by_severity(found)))
        return QualityReport(assets=tuple(assets))

    def to_json(self) -> dict[str, Any]:
        """The assets, and the findings of all of them with their symbols."""
        findings = [
            {"symbol": asset.symbol, **to_json(each)}
            for asset in self.assets
            for each in asset.findings
        ]
        return {"assets": to_json(self.assets), "findings": findings}


def _by_severity(found: list[Finding]) -> tuple[Finding, ...]:
    """Errors first, then warnings, then facts; otherwise in the order in which they were found."""
    return tuple(sorted(found, key=lambda each: list(Severity).index(each.severity)))


def describe_problems(
    symbol: str, findings: Sequence[Finding], repairs: Mapping[str, int] | None = None
) -> str:
    """A line about errors, warnings and what an import repaired; empty if there are none."""
    problems = [f"{each.kind} {each.count:,}" for each in findings if each.severity != "info"]
    for name, count in (repairs or {}).items():
        if count:
            problems.append(f"{name.replace('_', ' ')} {count:,}")
    if not problems:
        return ""
    return f"{symbol}: quality: {', '.join(problems)} (`vaiom data check` says more)"


def check_folder(folder: Path, progress: Progress | None = None) -> QualityReport:
    """Check every asset of a bar folder, and whether their bars begin at the same moments."""
    symbols = counted(symbols_in(folder), progress)
    assets = [check_bars(symbol, read_file(folder / f"{symbol}.parquet")) for symbol in symbols]
    grids = {asset.symbol: (asset.timeframe_seconds, asset.phase_seconds) for asset in assets}
    [(usual_grid, _)] = Counter(grids.values()).most_common(1)
    summary = (
        "bars that begin at other moments than those of most assets here, and are never read "
        "beside them"
    )
    others = {
        asset.symbol: finding("other_grid", Severity.WARNING, asset.rows, summary)
        for asset in assets
        if grids[asset.symbol] != usual_grid
    }
    return QualityReport(assets=tuple(assets)).plus(others)


def check_bars(symbol: str, bars: pl.DataFrame) -> AssetQuality:
    """Check the bars of one asset; rows may be unordered, repeated or incomplete.

    Stamps and values are checked in all rows. Checks that compare neighbours see the rows that are
    left in order of time when repeated stamps, rows without prices and bars of a higher timeframe
    are out.
    """
    bars = conform(bars, Path(symbol))
    stamped = bars.filter(pl.col("Datetime").is_not_null()).sort("Datetime", maintain_order=True)
    stamps = stamped["Datetime"]
    step = infer_timeframe(stamps.dt.truncate("1s"))
    timeframe = int(step.total_seconds()) if step else None

    phase, stamp_findings = check_stamps(bars, timeframe)
    holds_more, wide_findings = find_higher_timeframe_bars(stamped, timeframe)
    # Rows that are certainly wrong are reported once, and left out where neighbours are compared.
    has_prices = pl.all_horizontal(pl.col(*PRICE_COLUMNS) > 0, pl.col(*PRICE_COLUMNS).is_finite())
    usable = keep_last(stamped.filter(has_prices & ~pl.lit(pl.Series(holds_more))))
    gaps, gap_findings = find_gaps(stamps, timeframe)
    clock, clock_findings = read_clock(stamps, timeframe)
    findings = [
        *stamp_findings,
        *check_values(bars),
        *wide_findings,
        *check_prices(symbol, usable),
        *gap_findings,
        *clock_findings,
    ]
    return AssetQuality(
        symbol=symbol,
        rows=len(bars),
        first=stamps[0] if len(stamps) else None,
        last=stamps[-1] if len(stamps) else None,
        timeframe_seconds=timeframe,
        phase_seconds=phase,
        zero_return_share=usable.select((pl.col("Close").diff() == 0).mean()).item(),
        gaps=gaps,
        clock=clock,
        findings=_by_severity(findings),
    )


def check_stamps(bars: pl.DataFrame, timeframe: int | None) -> tuple[int | None, list[Finding]]:
    """The usual phase in seconds; missing, repeated, unordered and off-grid stamps.

    Rows are in their original order, the timeframe is in seconds.
    """
    stamp = pl.col("Datetime")
    is_repeated = ~stamp.is_first_distinct() & stamp.is_not_null()
    is_unordered = stamp < stamp.cum_max().shift().forward_fill()
    # Months differ in length, so bars longer than a week have no grid.
    has_grid = timeframe is not None and 0 < timeframe <= WEEK
    step = timeframe * _MICROSECONDS if has_grid and timeframe else 1
    monday = FIRST_MONDAY * _MICROSECONDS
    phases = (bars["Datetime"].dt.epoch("us") - monday) % step
    usual_phase: Any = phases.drop_nulls().mode().min()
    allowed = [0]
    hour = HOUR * _MICROSECONDS
    if step > hour:
        # With daylight saving, longer bars that begin with a session are an hour off for half of
        # the year.
        allowed = [0, hour, step - hour]
    off_grid = ~pl.lit((phases - (usual_phase or 0)) % step).is_in(allowed)
    findings = row_findings(
        bars,
        ("missing_stamp", Severity.ERROR, "rows without a stamp", stamp.is_null()),
        ("duplicate_stamp", Severity.ERROR, "rows whose stamp came before", is_repeated),
        ("unordered_stamp", Severity.ERROR, "rows that go back in time", is_unordered),
        ("off_grid_stamp", Severity.WARNING, "rows off the usual step of the stamps", off_grid),
    )
    return usual_phase // _MICROSECONDS if timeframe else None, findings
