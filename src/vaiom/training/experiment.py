"""An experiment: a model and how it is trained, under a name, as `config.toml` has it; the defaults
are the paper's.

Paper: Methods, "Optimization and Reproducibility Settings"; Appendix F, "Optimization and Numerical
Evaluation".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from vaiom.codec import (
    Interval,
    Share,
    Stored,
    check_fields,
    decode,
    override,
    parse_value,
    to_json,
    to_toml,
)
from vaiom.errors import CheckpointError, ConfigError
from vaiom.files import canonical_json, sha256_of
from vaiom.model.checkpoint import Checkpoint
from vaiom.model.config import ModelConfig
from vaiom.run import Run

SEED_LIMIT = 2**63
LAST_RATE = 0.1
"""Last rate of the cosine schedule, as a share of the learning rate."""

Count = Annotated[int, Interval("[1, inf)")]
Natural = Annotated[int, Interval("[0, inf)")]
Weight = Annotated[float, Interval("[0, inf)")]
Positive = Annotated[float, Interval("(0, inf)")]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained; the defaults are the paper's."""

    seed: Annotated[int, Interval(f"[0, {SEED_LIMIT})")] = 17
    steps: Count = 5_500
    micro_batch: Count = 32
    num_micro_batches: Count = 4
    scope: Literal["full", "last"] = "full"
    learning_rate: Positive = 3e-4
    schedule: Literal["constant", "cosine"] = "constant"
    """`cosine` decays the learning rate over the steps of the run."""
    warmup_steps: Natural = 0
    """Steps of linear warm-up."""
    ema_decay: Share = 0.0
    """Decay per step of the moving average of the weights, which is then validated and saved; 0 for
    none.
    """
    mirror: Share = 0.0
    """Probability of mirroring a window: the inverse of an exchange rate is an exchange rate."""
    teachers: Natural = 0
    """Number of models trained first, whose mean distribution this one is distilled from."""
    teacher_share: Annotated[float, Interval("[0, 1]")] = 0.0
    """Share of the return loss that is the cross-entropy to the teachers."""
    weight_decay: Weight = 0.01
    clip_norm: Positive = 1.0
    gap_weight: Weight = 0.1
    vol_regime_weight: Weight = 0.1
    ordinal_weight: Weight = 0.1
    precision: Literal["auto", "fp16", "bf16", "fp32"] = "auto"
    validate_every: Count = 500
    log_every: Count = 50
    patience: Natural = 0
    """Stop after this many Validations without a new best; 0 never stops early."""
    keep_last: Count = 3

    def __post_init__(self) -> None:
        check_fields(self)
        if bool(self.teachers) != bool(self.teacher_share):
            raise ValueError(
                f"teachers ({self.teachers}) and teacher_share ({self.teacher_share}) need each "
                f"other"
            )

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 1: a linear warm-up, then constant, or a cosine
        from 1 to `LAST_RATE`.
        """
        rate = self.learning_rate * min(1.0, step / (self.warmup_steps + 1))
        if self.schedule == "constant":
            return rate
        done = (step - 1) / self.steps
        return rate * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2)

    def has_ended(self, bits: Mapping[int, float]) -> bool:
        """Whether a run with these Validation bits by step reached its last step or ran out of
        patience.
        """
        if max(bits, default=0) >= self.steps:
            return True
        best = min(bits, key=lambda step: bits[step], default=0)
        num_stale = sum(step > best for step in bits)
        return 0 < self.patience <= num_stale

    @property
    def windows_per_step(self) -> int:
        """Windows of a step, over all processes."""
        return self.micro_batch * self.num_micro_batches

    @property
    def task_weights(self) -> dict[str, float]:
        """Weights in the loss of the tasks beside the return."""
        return {
            "gap": self.gap_weight,
            "vol_regime": self.vol_regime_weight,
            "ordinal": self.ordinal_weight,
        }


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model and how it is trained, under a name."""

    name: str
    about: Annotated[str, Stored(None)] = ""
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.train.mirror and self.model.input == "disc":
            raise ConfigError(
                "buckets have no sign to turn", got="mirror with input=disc", fix="--set mirror=0"
            )
        if self.train.teachers and not self.model.attention_window:
            raise ConfigError(
                "teachers predict after every row",
                expected="an attention window",
                fix="--set attention_window=256 positions=rotary, or teachers=0 teacher_share=0",
            )

    def with_changes(self, **changes: Any) -> Experiment:
        """A copy with fields of the model or of its training changed; an unknown name lists the
        known ones.
        """
        parts: dict[str, dict[str, Any]] = {"model": {}, "train": {}}
        for key, value in changes.items():
            parts[self._owner(key)][key] = value
        return replace(
            self, **{part: override(getattr(self, part), values) for part, values in parts.items()}
        )

    def with_settings(self, settings: Iterable[str]) -> Experiment:
        """`with_changes` from `key=value` texts."""
        changes = {}
        for setting in settings:
            key, equals, text = setting.partition("=")
            if not equals:
                raise ConfigError(
                    "not a setting",
                    expected="KEY=VALUE, as in learning_rate=1e-3",
                    got=repr(setting),
                )
            present = getattr(getattr(self, self._owner(key)), key)
            changes[key] = parse_value(key, text, present)
        return self.with_changes(**changes)

    def to_toml(self) -> str:
        """The text of `config.toml`."""
        value = to_json(self)
        experiment = {"name": self.name}
        return to_toml({"experiment": experiment, "model": value["model"], "train": value["train"]})

    def identity(self) -> dict[str, Any]:
        """The name, and the settings that differ from the defaults.

        Hashes are computed over it, so a setting that is added one day leaves them valid.
        """
        differences = changed(Experiment(name=""), self)
        return {"name": self.name, **{key: value for key, (value, _) in differences.items()}}

    @property
    def sha256(self) -> str:
        """Hash of the settings that must not change when a run is resumed."""
        free = {"patience", "keep_last", "log_every"}
        if self.train.schedule == "constant":  # other schedules depend on the last step
            free.add("steps")
        fixed = {key: value for key, value in self.identity().items() if key not in free}
        return sha256_of(canonical_json(fixed))

    def _owner(self, key: str) -> str:
        """The part that has a setting: `model` or `train`."""
        for part in ("model", "train"):
            if key in vars(getattr(self, part)):
                return part
        known = sorted([*vars(self.model), *vars(self.train)])
        raise ConfigError("unknown setting", expected=", ".join(known), got=key)


def changed(before: Experiment, after: Experiment) -> dict[str, tuple[Any, Any]]:
    """New and old value of each setting that differs."""
    old = {**to_json(before.model), **to_json(before.train)}
    new = {**to_json(after.model), **to_json(after.train)}
    return {name: (new[name], old[name]) for name in old if new[name] != old[name]}


def experiment_of_run(run: Path) -> Experiment:
    """The experiment in a run's `config.toml`."""
    config = Run(run).read_config()
    table = config.get("experiment")
    name = table.get("name") if isinstance(table, dict) else None
    value = {"name": name, "model": config.get("model"), "train": config.get("train")}
    problem = "the run does not say how it was trained"
    return decode(Experiment, value, problem, where=Run(run).config, error=ConfigError)


def experiment_of_checkpoint(checkpoint: Checkpoint) -> Experiment:
    """The experiment that a checkpoint was trained with."""
    origin = checkpoint.provenance
    problem = "the checkpoint does not say how it was trained"
    train = decode(TrainConfig, origin.train, problem, error=CheckpointError)
    return Experiment(name=origin.experiment, model=checkpoint.model.config, train=train)
