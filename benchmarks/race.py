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
    """Median seconds of both ways to a result; `ratio` is how many times faster ours is, `equal`
    what was compared.
    """

    name: str
    input: str
    ours_seconds: float
    reference_seconds: float
    ratio: float = field(init=False)
    equal: str
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", self.reference_seconds / self.ours_seconds)


def race(
    ours: Callable[[], object], reference: Callable[[], object], repeats: int
) -> tuple[float, float]:
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
        problem = f"this benchmark compares with {name}, which is not installed"
        raise ConfigError(problem, fix="pip install 'vaiom[dev]'") from error
