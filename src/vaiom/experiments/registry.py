"""The named experiments of `experiments.toml`, each a few settings over its parent."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from vaiom.errors import ConfigError
from vaiom.model.config import RUNGS
from vaiom.training.experiment import Experiment

SHOWN = ("main", "demo", "best")
"""The experiments that are listed first."""
OURS = ("demo", "best")
"""Prefixes of the experiments that are not the paper's."""
PATIENCE = 4
"""Validations without a new best."""


def experiment(name: str) -> Experiment:
    """A named experiment; an unknown name is an error that lists the known ones."""
    if name not in EXPERIMENTS:
        raise ConfigError("unknown experiment", expected=", ".join(EXPERIMENTS), got=name)
    return EXPERIMENTS[name]


def stopping_early(chosen: Experiment) -> Experiment:
    """The experiment with early stopping, unless it is one of the paper's, whose lengths
    are fixed.
    """
    ours = chosen.name.startswith(OURS) and not chosen.train.patience
    return chosen.with_changes(patience=PATIENCE) if ours else chosen


def _read(file: Path) -> dict[str, Experiment]:
    """The experiments of a file, each with the settings of its parents."""
    experiments: dict[str, Experiment] = {}
    for name, settings in tomllib.loads(file.read_text()).items():
        parent = settings.pop("parent", None)
        start = experiments[parent] if parent else Experiment(name=name)
        changes = RUNGS.get(settings.pop("rung", ""), {}) | {"about": ""} | settings
        about = changes.pop("about")
        changes = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in changes.items()
        }
        experiments[name] = replace(start, name=name, about=about).with_changes(**changes)
    return experiments


EXPERIMENTS = _read(Path(__file__).with_name("experiments.toml"))
