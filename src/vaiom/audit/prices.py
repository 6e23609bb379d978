"""Proof on the prices themselves: no bar holds what happened after it.

Enters: bars by symbol. Leaves: a `Proof`. A pipeline cannot be blamed for a daily bar that its source had put among the
hours, and no cut shows it, because the future is inside one bar; the prices show it.
"""

from __future__ import annotations

from vaiom.audit.pipeline import Bars
from vaiom.audit.proof import Proof, proving
from vaiom.market.check import check_bars

NAME = "prices"
ABOUT = "no bar holds the range of the hours, days or weeks that follow it"
LEAKS = ("hidden_higher_timeframe_bar",)
"""Findings of the quality report that put the future into a row."""


def prove_prices(bars: Bars) -> Proof:
    with proving(NAME, ABOUT) as proof:
        for symbol, frame in bars.items():
            leaks = [finding for finding in check_bars(symbol, frame).findings if finding.kind in LEAKS]
            what = "; ".join(f"{leak.count} {leak.summary}, first {leak.examples[0]}" for leak in leaks)
            proof.check(not leaks, f"{symbol}: {what}", len(frame))
    return proof
