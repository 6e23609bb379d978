"""The unit of a corpus: one history of bars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vaiom.codec import Stored


@dataclass(frozen=True, kw_only=True)
class Series:
    """A symbol at one timeframe; a corpus of one timeframe names its series by their symbols."""

    symbol: str
    asset_class: Annotated[str, Stored("class")]
    timeframe: str
    """The length of a bar, such as 1h."""
    source: str | None = None
    """The venue or data source, where a symbol has several."""
