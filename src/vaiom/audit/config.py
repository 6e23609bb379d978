"""What an audit is asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CUTS = 6
SEED = 17
QUICK_BASELINES = ("frequency", "markov", "hour_of_week", "ewma_t")
"""Those that fit in seconds; the others can be named."""
RESCORE = 8_192


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    cuts: int = CUTS
    """Random moments after which the bars are damaged."""
    seed: int = SEED
    context: int | None = None
    """Rows of a window where there is no model to say it; None is the corpus's default."""
    baselines: Sequence[str] = QUICK_BASELINES
    """Which baselines are fitted again."""
    rescore: int = RESCORE
    """Splits with up to so many events are scored again, for figures that need whole forecasts."""
