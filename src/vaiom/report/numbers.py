"""How the report spells numbers: one function per kind, a dash where there is nothing to spell."""

from __future__ import annotations

NOTHING = "\N{EN DASH}"
"""Stands where a figure does not exist."""
MINUS = "\N{MINUS SIGN}"
SMALLEST_P = 1e-4


def bits(value: float) -> str:
    return f"{value:.4f}"


def signed(value: float | None) -> str:
    """Bits with their sign."""
    return NOTHING if value is None else f"{value:+.4f}".replace("-", MINUS)


def interval(pair: tuple[float, float] | None) -> str:
    return "undefined" if pair is None else f"[{signed(pair[0])}, {signed(pair[1])}]"


def percent(share: float | None, digits: int = 1) -> str:
    """A share; exactly none and exactly all are told from what rounds to them."""
    if share is None:
        return NOTHING
    return f"{100 * share:.0f}%" if share in (0.0, 1.0) else f"{100 * share:.{digits}f}%"


def percents(pair: tuple[float, float] | None) -> str:
    return "undefined" if pair is None else f"[{percent(pair[0])}, {percent(pair[1])}]"


def p_value(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"<{SMALLEST_P:.4f}" if value < SMALLEST_P else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def count(value: int) -> str:
    return f"{value:,}"


def share_of(part: int, whole: int) -> str:
    return f"{part}/{whole}"
