"""The model card of a served model: where it comes from, and what it cannot do."""

from __future__ import annotations

import platform
from importlib.metadata import distributions
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from vaiom.codec import to_json
from vaiom.forecast.bars import MIN_BARS
from vaiom.forecast.forecaster import Forecaster

PACKAGES = ("vaiom", "torch", "numpy", "polars", "onnxruntime", "fastapi", "uvicorn")
"""Installed packages whose versions decide what a forecast is."""


class ModelAnswer(BaseModel):
    """The model card: identity, training data and limits."""

    model_config = ConfigDict(extra="allow")

    engine: str
    sha256: str
    tokenizer_sha256: str
    corpus_sha256: str
    experiment: str
    seed: int
    step: int
    validation_bits: float | None
    train_end: str | None
    splits: dict[str, Any]
    timeframe: str
    context: int
    horizons: list[int]
    has_joint: bool
    """Whether it has a fitted dependence between assets."""
    symbols: list[str]
    model: dict[str, Any]
    """Its configuration."""
    trained_with: str
    """The version of vaiom that trained it."""
    train: dict[str, Any]
    inputs: list[Any]
    """The files that its corpus was made from."""
    versions: dict[str, str]
    limits: list[str]

    @classmethod
    def of(cls, forecaster: Forecaster) -> Self:
        """The card of a loaded model, with the versions that run it."""
        origin = forecaster.card.provenance
        installed = {name: each.version for name in PACKAGES for each in distributions(name=name)}
        return cls(
            **forecaster.describe(),
            model=to_json(forecaster.config),
            trained_with=origin.vaiom_version,
            train=origin.train,
            inputs=origin.inputs,
            train_end=origin.splits.get("train_end"),
            horizons=list(forecaster.horizons),
            has_joint=forecaster.dependence is not None,
            versions={"python": platform.python_version(), **installed},
            limits=_limits(forecaster),
        )


def _limits(forecaster: Forecaster) -> list[str]:
    """Limits in plain words, for users who act on a forecast."""
    end = forecaster.card.provenance.splits.get("train_end", "an unknown date")
    day = str(end).removesuffix("T00:00:00")
    seen = "one asset's bars at a time"
    if forecaster.reads_other_assets:
        seen = "the bars of its assets, and says when some are missing"
    ahead = " or ".join(map(str, forecaster.horizons))
    timeframe = forecaster.tokenizer.timeframe
    return [
        f"It has learned from bars before {day} and knows nothing of what changed since.",
        "Every figure but prob_zero is given that the next close differs from the last one.",
        f"Horizons, in bars of {timeframe}: {ahead}, whenever those bars come; where the market "
        "closes in between, the scale is still that of ordinary bars.",
        f"It sees {seen}: no news, no calendar of events, no order book.",
        f"Fewer than {forecaster.context} bars make a forecast worse, fewer than {MIN_BARS} make "
        "it impossible.",
        "An asset that it was not trained on is treated as an average one, and the forecast says "
        "so.",
        "What lies inside a bucket and beyond the outermost edges follows one pooled Train rule, "
        "whatever the asset.",
        "A distribution is not advice: costs, spreads and the size of a position are yours.",
    ]
