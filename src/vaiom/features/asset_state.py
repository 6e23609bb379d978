"""The recursive state of an asset: all that later bars need of the bars before them.

It is stored with a corpus, so that an append goes on where the build ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from vaiom import codec
from vaiom.features.recursions import NULL_IF_UNDEFINED, Ewma, Mean, Slots

SHORT_SPAN = 20
LONG_SPAN = 120
SCALES = {
    "ret20": ("ret", SHORT_SPAN),
    "ret120": ("ret", LONG_SPAN),
    "gap20": ("gap", SHORT_SPAN),
}
"""The paper's EWMAs of squared returns and gaps: the quantity and the span of each."""
MEANS = {
    "range20": ("range", 20),
    "range120": ("range", 120),
    "range480": ("range", 480),
    "ret120": ("ret", 120),
    "ret2400": ("ret", 2400),
    "volume120": ("volume", 120),
}
"""Running means of range variances, squared returns and volumes, for fields beyond the paper's."""
SLOT_QUANTITIES = ("ret", "range", "volume")
"""Quantities with a mean for each slot of the week."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AssetState:
    """The state after a bar; `means` and `slots` only if fields beyond the paper's are needed."""

    close: Annotated[float, NULL_IF_UNDEFINED] = math.nan
    num_clean: int = 0
    """Bars with a clean return so far."""
    scales: dict[str, Ewma]
    means: dict[str, Mean]
    slots: Slots | None

    def __post_init__(self) -> None:
        names = {} if self.slots is None else MEANS
        if self.scales.keys() != SCALES.keys() or self.means.keys() != names.keys():
            raise ValueError("means of other quantities")

    @classmethod
    def empty(cls, timeframe: timedelta | None) -> AssetState:
        """The state before the first bar; without a timeframe only that of the paper's fields."""
        scales = dict.fromkeys(SCALES, Ewma())
        if timeframe is None:
            return cls(scales=scales, means={}, slots=None)
        slots = Slots.empty(len(SLOT_QUANTITIES), int(timeframe.total_seconds()))
        return cls(scales=scales, means=dict.fromkeys(MEANS, Mean()), slots=slots)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that restores every bit; undefined values are null."""
        return dict(codec.to_json(self))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> AssetState:
        """The state from its `to_json`; an error if it is none."""
        return codec.decode(cls, value, "not the state of an asset", fix="build the corpus again")
