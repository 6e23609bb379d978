"""How two ways to the same result are raced: alternately, in one process, by the median.

Enters: two functions of no arguments. Leaves: a `Measurement`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from types import ModuleType
from typing import Any

from vaiom.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Medians in seconds; `ratio` is how many times faster than the reference, `equal` what was found equal."""

    name: str
    input: str
    ours_seconds: float
    reference_seconds: float
    ratio: float
    equal: str
    extra: dict[str, Any] = field(default_factory=dict)


def race(ours: Callable[[], object], reference: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of both, taken in turns so that a busy moment hits both alike."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for one, taken in zip((ours, reference), seconds, strict=True):
            start = time.perf_counter()
            one()
            taken.append(time.perf_counter() - start)
    return median(seconds[0]), median(seconds[1])


def reference_library(name: str) -> ModuleType:
    """Import what a benchmark compares with, or say how to get it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"this benchmark compares with {name}, which is not installed", fix="pip install 'vaiom[dev]'"
        ) from error
