"""The model card: which model this is, what it has seen, and what it cannot do.

Enters: a `Forecaster`. Leaves: JSON-safe values.
"""

from __future__ import annotations

import platform
from importlib.metadata import distributions
from typing import Any

from vaiom.forecast.bars import MIN_BARS
from vaiom.forecast.forecaster import Forecaster

_PACKAGES = ("vaiom", "torch", "numpy", "polars", "onnxruntime", "fastapi", "uvicorn")


def model_card(forecaster: Forecaster) -> dict[str, Any]:
    origin = forecaster.card.provenance
    versions = {name: found.version for name in _PACKAGES for found in distributions(name=name)}
    return {
        **forecaster.describe(),
        "train_end": origin.splits.get("train_end"),
        "trained_with": origin.vaiom_version,
        "train": origin.train,
        "inputs": origin.inputs,
        "model": forecaster.config.to_json(),
        "versions": {"python": platform.python_version(), **versions},
        "limits": _limits(forecaster),
    }


def _limits(forecaster: Forecaster) -> list[str]:
    """In plain words, for somebody who will act on a forecast."""
    end = str(forecaster.card.provenance.splits.get("train_end", "an unknown date")).removesuffix("T00:00:00")
    reads = forecaster.reads_other_assets
    seen = "the bars of its assets, and says when some are missing" if reads else "one asset's bars at a time"
    return [
        f"It has learned from bars before {end} and knows nothing of what changed since.",
        "Every figure but prob_zero is given that the next close differs from the last one.",
        f"It forecasts one {forecaster.tokenizer.timeframe} bar ahead, whenever that bar comes: "
        "where the market closes in between, the scale is still that of an ordinary bar.",
        f"It sees {seen}: no news, no calendar of events, no order book.",
        f"Fewer than {forecaster.context} bars make a forecast worse, fewer than {MIN_BARS} make it impossible.",
        "An asset that it was not trained on is treated as an average one, and the forecast says so.",
        "What lies inside a bucket and beyond the outermost edges follows one pooled Train rule, whatever the asset.",
        "A distribution is not advice: costs, spreads and the size of a position are yours.",
    ]
