"""VAIOM: the distribution of the next volatility-normalised return, from continuous market events."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public names are imported on first use, so that `import vaiom` costs nothing and needs no heavy library.
_LAZY = {
    "Forecaster": "vaiom.forecast.forecaster",
    "ReturnDistribution": "vaiom.forecast.distribution",
    "read_bars": "vaiom.market.folder",
}
__all__ = ["Forecaster", "ReturnDistribution", "__version__", "read_bars"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'vaiom' has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
