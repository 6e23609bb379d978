"""An experiment: a model and how it is trained, under a name. What a run folder's `config.toml` says.

Enters: configuration, `key=value` changes. Leaves: a resolved, hashable configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vaiom.codec import decode, override, parse_value, stored, to_json, to_toml
from vaiom.errors import CheckpointError, ConfigError
from vaiom.files import canonical_json, sha256_of
from vaiom.model.checkpoint import Checkpoint
from vaiom.model.config import HASHED_DEFAULTS, REMOVED, RENAMED, ModelConfig, spell_as_hashed, upgrade_settings
from vaiom.run import Run
from vaiom.training.config import TrainConfig

RENAMED_EXPERIMENT = ("best", "best-512")
"""How the names of some experiments began in version 0.1, and how they begin now."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model and how it is trained, under a name."""

    name: str
    about: str = field(default="", metadata=stored(None))
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
