"""An experiment: a model and how it is trained, under a name. What a run folder's `config.toml` says.

The defaults are the paper's selected run.
Paper: Methods, "Optimization and Reproducibility Settings"; Appendix F, "Optimization and Numerical Evaluation".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from vaiom.codec import Stored, decode, override, parse_value, to_json, to_toml
from vaiom.errors import CheckpointError, ConfigError
from vaiom.files import canonical_json, sha256_of
from vaiom.model.checkpoint import Checkpoint
from vaiom.model.config import HASHED_DEFAULTS, REMOVED, RENAMED, ModelConfig, spell_as_hashed, upgrade_settings
from vaiom.run import Run

SEED_LIMIT = 2**63
LAST_RATE = 0.1
"""Where a falling rate ends, as a share of the learning rate."""

_COUNTS = ("validate_every", "log_every", "keep_last")
_WEIGHTS = ("gap_weight", "vol_regime_weight", "ordinal_weight", "weight_decay")
_RANGES: tuple[tuple[tuple[str, ...], float, float, str], ...] = (
    (("steps", "micro_batch", "num_micro_batches", *_COUNTS), 1, math.inf, "1 or more"),
    (("patience", "warmup_steps", "teachers", *_WEIGHTS), 0, math.inf, "finite and not negative"),
    (("learning_rate", "clip_norm"), math.ulp(0.0), math.inf, "finite and positive"),
    (("seed",), 0, SEED_LIMIT, f"0 or more and below {SEED_LIMIT}"),
    (("ema_decay", "mirror"), 0, 1, "in [0, 1)"),
    (("teacher_share",), 0, math.nextafter(1, 2), "in [0, 1]"),
)
_CHOICES = {
    "schedule": ("constant", "cosine"),
    "scope": ("full", "last"),
    "precision": ("auto", "fp16", "bf16", "fp32"),
}
RENAMED_EXPERIMENT = ("best", "best-512")
"""How the names of some experiments began in version 0.1, and how they begin now."""


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
    ema_decay: float = 0.0
    """Decay per step of the moving average of the weights, which is what is then validated and kept; 0 for none."""
    mirror: float = 0.0
    """How often a window is shown upside down: an exchange rate read the other way round is an exchange rate."""
    teachers: int = 0
    """How many models are trained first, for this one to learn from their mean distribution beside the truth."""
    teacher_share: float = 0.0
    """How much of the return's loss is towards the teachers."""
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
    __upgrade__ = staticmethod(upgrade_settings)

    def __post_init__(self) -> None:
        for names, least, limit, expected in _RANGES:
            for name in names:
                if not least <= getattr(self, name) < limit:
                    raise ValueError(f"{name} must be {expected}, got {getattr(self, name)}")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if bool(self.teachers) != bool(self.teacher_share):
            raise ValueError(f"teachers ({self.teachers}) and teacher_share ({self.teacher_share}) need each other")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        rate = self.learning_rate * min(1.0, step / (self.warmup_steps + 1))
        if self.schedule == "constant":
            return rate
        done = (step - 1) / self.steps
        return rate * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2)

    def ema_weight_at(self, step: int) -> float:
        """How far the average moves to the weights of a step: with its bias corrected, nothing of the start is left."""
        return (1 - self.ema_decay) / (1 - self.ema_decay**step)

    def has_ended(self, bits: Mapping[int, float]) -> bool:
        """Whether a run with these Validation bits by step came to its end, or to that of its patience."""
        best = min(bits, key=lambda step: bits[step], default=0)
        return max(bits, default=0) >= self.steps or 0 < self.patience <= sum(step > best for step in bits)

    @property
    def windows_per_step(self) -> int:
        return self.micro_batch * self.num_micro_batches

    @property
    def task_weights(self) -> dict[str, float]:
        return {"gap": self.gap_weight, "vol_regime": self.vol_regime_weight, "ordinal": self.ordinal_weight}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model and how it is trained, under a name."""

    name: str
    about: Annotated[str, Stored(None)] = ""
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.train.mirror and self.model.input == "disc":
            raise ConfigError("buckets have no sign to turn", got="mirror with input=disc", fix="--set mirror=0")
        if self.train.teachers and not self.model.attention_window:
            fix = "--set attention_window=256 positions=rotary, or teachers=0 teacher_share=0"
            raise ConfigError("teachers answer for every row", expected="an attention window", fix=fix)

    def with_changes(self, **changes: Any) -> Experiment:
        """A copy with fields of the model or of its training changed; an unknown name lists the known ones."""
        parts: dict[str, dict[str, Any]] = {"model": {}, "train": {}}
        try:
            changes = upgrade_settings(changes)
        except ValueError as error:
            raise ConfigError("a setting that is gone", got=str(error)) from error
        for key, value in changes.items():
            parts[self._owner(key)][key] = value
        return replace(self, **{part: override(getattr(self, part), values) for part, values in parts.items()})

    def with_settings(self, settings: Iterable[str]) -> Experiment:
        """`with_changes` from `key=value` texts."""
        changes = {}
        for setting in settings:
            key, equals, text = setting.partition("=")
            if not equals:
                raise ConfigError("not a setting", expected="KEY=VALUE, as in learning_rate=1e-3", got=repr(setting))
            now = RENAMED.get(key, key)
            example = REMOVED[key] if key in REMOVED else getattr(getattr(self, self._owner(now)), now)
            changes[now] = parse_value(key, text, example)
        return self.with_changes(**changes)

    def to_toml(self) -> str:
        value = to_json(self)
        return to_toml({"experiment": {"name": self.name}, "model": value["model"], "train": value["train"]})

    def identity(self) -> dict[str, Any]:
        """Name and settings as version 0.1 spelled them: what hashes are over, so that new words change none."""
        model, train = (spell_as_hashed(to_json(part)) for part in (self.model, self.train))
        return {"name": self.hashed_name, "model": {**model, **HASHED_DEFAULTS}, "train": train}

    @property
    def hashed_name(self) -> str:
        """The name as version 0.1 had it."""
        return self.name.replace(RENAMED_EXPERIMENT[1], RENAMED_EXPERIMENT[0])

    @property
    def sha256(self) -> str:
        """Of everything that decides what is learned; how long, what is kept and logged may change on resuming."""
        value = self.identity()
        free = ["patience", "keep_last", "log_every"]
        # A falling rate depends on where it ends.
        free += ["steps"] if self.train.schedule == "constant" else []
        for key in free:
            value["train"].pop(key)
        return sha256_of(canonical_json(value))

    def _owner(self, key: str) -> str:
        for part in ("model", "train"):
            if key in vars(getattr(self, part)):
                return part
        known = sorted([*vars(self.model), *vars(self.train)])
        raise ConfigError("unknown setting", expected=", ".join(known), got=key)


def changed(before: Experiment, after: Experiment) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, as they are and as they were."""
    old, new = ({**to_json(each.model), **to_json(each.train)} for each in (before, after))
    return {name: (new[name], old[name]) for name in old if new[name] != old[name]}


def experiment_of_run(run: Path) -> Experiment:
    """What a run was trained with, as its `config.toml` says."""
    config = Run(run).read_config()
    experiment = config.get("experiment")
    name = experiment.get("name") if isinstance(experiment, dict) else None
    value = {"name": name, "model": config.get("model"), "train": config.get("train")}
    problem = "the run does not say how it was trained"
    return decode(Experiment, value, problem, where=Run(run).config, error=ConfigError)


def experiment_of_checkpoint(checkpoint: Checkpoint) -> Experiment:
    """What a checkpoint was trained with."""
    origin = checkpoint.provenance
    train = decode(TrainConfig, origin.train, "the checkpoint does not say how it was trained", error=CheckpointError)
    return Experiment(name=origin.experiment, model=checkpoint.model.config, train=train)
