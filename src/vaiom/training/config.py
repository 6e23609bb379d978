"""How a model is trained; the defaults are the paper's selected run.

Paper: Methods, "Optimization and Reproducibility Settings"; Appendix F, "Optimization and Numerical Evaluation".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SCOPES = ("full", "last")
SCHEDULES = ("constant", "cosine")
PRECISIONS = ("auto", "fp16", "bf16", "fp32")
SEED_LIMIT = 2**63
LAST_RATE = 0.1
"""Where a falling rate ends, as a share of the learning rate."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    seed: int = 17
    steps: int = 5_500
    micro_batch: int = 32
    num_micro_batches: int = 4
    scope: str = "full"
    learning_rate: float = 3e-4
    schedule: str = "constant"
    """`cosine` falls from the learning rate to a tenth of it over the steps of the run."""
    warmup_steps: int = 0
    """The rate rises over this many steps first."""
    average: float = 0.0
    """Decay per step of an exponential average of the weights, which is what is then validated and kept; 0 for none."""
    mirror: float = 0.0
    """How often a window is shown upside down: an exchange rate read the other way round is an exchange rate."""
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
        for name in (
            "seed",
            "patience",
            "warmup_steps",
            "gap_weight",
            "vol_regime_weight",
            "ordinal_weight",
            "weight_decay",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        for name in ("learning_rate", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and positive, got {getattr(self, name)}")
        if self.seed >= SEED_LIMIT:
            raise ValueError(f"seed must be below {SEED_LIMIT}, got {self.seed}")
        if not 0 <= self.average < 1:
            raise ValueError(f"average must lie in [0, 1), got {self.average}")
        if not 0 <= self.mirror < 1:
            raise ValueError(f"mirror must lie in [0, 1), got {self.mirror}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        if self.scope not in SCOPES:
            raise ValueError(f"scope must be one of {', '.join(SCOPES)}, got {self.scope!r}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        rate = self.learning_rate * min(1.0, step / (self.warmup_steps + 1))
        if self.schedule == "constant":
            return rate
        done = (step - 1) / self.steps
        return rate * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2)

    @property
    def windows_per_step(self) -> int:
        return self.micro_batch * self.num_micro_batches

    @property
    def task_weights(self) -> dict[str, float]:
        return {"gap": self.gap_weight, "vol_regime": self.vol_regime_weight, "ordinal": self.ordinal_weight}
