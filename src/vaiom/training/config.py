"""How a model is trained; the defaults are the paper's selected run.

Paper: Methods, "Optimization and Reproducibility Settings"; Appendix F, "Optimization and Numerical Evaluation".
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

SCOPES = ("full", "last")
PRECISIONS = ("auto", "fp16", "bf16", "fp32")
SEED_LIMIT = 2**63


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    seed: int = 17
    steps: int = 5_500
    micro_batch: int = 32
    num_micro_batches: int = 4
    scope: str = "full"
    learning_rate: float = 3e-4
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    gap_weight: float = 0.1
    vol_regime_weight: float = 0.1
    ordinal_weight: float = 0.1
    precision: str = "auto"
    validate_every: int = 500
    log_every: int = 50
    patience: int = 0
    """Stop after this many Validations without a new best; 0 never stops early."""
    keep_last: int = 3

    def __post_init__(self) -> None:
        for name in ("steps", "micro_batch", "num_micro_batches", "validate_every", "log_every", "keep_last"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("seed", "patience", "gap_weight", "vol_regime_weight", "ordinal_weight", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        for name in ("learning_rate", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and positive, got {getattr(self, name)}")
        if self.seed >= SEED_LIMIT:
            raise ValueError(f"seed must be below {SEED_LIMIT}, got {self.seed}")
        if self.scope not in SCOPES:
            raise ValueError(f"scope must be one of {', '.join(SCOPES)}, got {self.scope!r}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")

    @property
    def windows_per_step(self) -> int:
        return self.micro_batch * self.num_micro_batches

    @property
    def task_weights(self) -> dict[str, float]:
        return {"gap": self.gap_weight, "vol_regime": self.vol_regime_weight, "ordinal": self.ordinal_weight}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
