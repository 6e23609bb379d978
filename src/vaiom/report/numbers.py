"""How the reproduction's tables spell numbers."""

from __future__ import annotations

from vaiom.report.tables import MINUS, NOTHING, bits, count, interval, percent, percents, signed

__all__ = ["MINUS", "NOTHING", "bits", "count", "interval", "percent", "percents", "share_of", "signed"]


def share_of(part: int, whole: int) -> str:
    return f"{part}/{whole}"
