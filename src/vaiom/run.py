"""A run folder: what lies where, its raw configuration, its training log. Used by every room."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from vaiom.errors import ConfigError, DataError
from vaiom.files import write_bytes

CONFIG_NAME = "config.toml"
METRICS_NAME = "metrics.jsonl"
BEST_NAME = "best.safetensors"
REPORT_NAME = "report.html"

MODELS = Path(__file__).parent / "models"
"""The models inside the package, each a run folder without its training."""
DEFAULT_MODEL = "fx-1h"
EVIDENCE_SUFFIX = "-evidence"
"""Ends the name of the model that a packaged model for use is judged by."""

_STATE = re.compile(r"step-(\d+)\.state\.safetensors")


def packaged_models() -> dict[str, Path]:
    """The run folders inside the package, by their names."""
    return {best.parent.name: best.parent for best in sorted(MODELS.glob(f"*/{BEST_NAME}"))}


def find_run(path: Path) -> Path:
    """What a path or the name of a packaged model stands for; what lies on the disk comes first."""
    return path if path.exists() else packaged_models().get(str(path), path)


class Run:
    def __init__(self, path: Path) -> None:
        self.path, self.checkpoints = path, path / "checkpoints"
        self.config, self.metrics, self.report = path / CONFIG_NAME, path / METRICS_NAME, path / REPORT_NAME
        self.best = path / BEST_NAME
        """The selected checkpoint."""
        self.start = path / "start.safetensors"
        """The model that training went on from, where there was one."""
        self.horizons = path / "horizons.safetensors"
        """What it knows of more bars than the next."""
        self.dependence = path / "dependence.json"
        """How its assets depend on each other."""
        self.about = path / "about.json"
        """Beside a packaged model, what its training's log and corpus say of a run."""
        self.forecasts = path / "forecasts"
        """Others' forecasts that were scored beside it: by name a folder with evaluations and events."""
        self.teachers = path / "teachers"
        """The folder of the runs whose models taught this one, numbered from 1."""

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:07d}.safetensors"

    def state(self, step: int) -> Path:
        """What training needs to go on from a step."""
        return self.checkpoints / f"step-{step:07d}.state.safetensors"

    def evaluation(self, split: str) -> Path:
        return self.path / f"evaluation-{split}.json"

    def events(self, split: str, suffix: str = ".parquet") -> Path:
        """The loss of every event; `.npz` where no Parquet writer was installed."""
        return self.path / f"events-{split}{suffix}"

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.config.exists() or self.teachers.exists()

    def saved_steps(self) -> list[int]:
        """Steps with a training state, oldest first."""
        names = (path.name for path in self.checkpoints.glob("*.state.safetensors"))
        return sorted(int(match[1]) for name in names if (match := _STATE.fullmatch(name)))

    def evaluated_splits(self) -> list[str]:
        """Splits with an evaluation, in the order of their names."""
        return sorted(file.stem.removeprefix("evaluation-") for file in self.path.glob("evaluation-*.json"))

    def read_config(self) -> dict[str, Any]:
        """The tables of `config.toml`."""
        try:
            return tomllib.loads(self.config.read_text())
        except OSError as error:
            raise DataError("not a run folder", where=self.path, expected=CONFIG_NAME, fix="vaiom train") from error
        except (ValueError, RecursionError) as error:
            raise DataError("not readable as TOML", where=self.config, got=str(error)) from error

    def corpus_path(self) -> Path:
        """Where the corpus was when the run was trained."""
        try:
            return Path(self.read_config()["corpus"]["path"])
        except (DataError, KeyError, TypeError) as error:
            problem = "the run does not say where its corpus is"
            raise ConfigError(problem, where=self.config, fix="name it with --corpus") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """The training log; none where the run was packed without it."""
        return [entry for _, entry in self._log()]

    def validation_bits(self) -> dict[int, float]:
        """Bits per event at every Validation, by step."""
        return {entry["step"]: entry["validation_bits"] for _, entry in self._log() if "validation_bits" in entry}

    def trim_metrics(self, last_step: int) -> None:
        """Drop what was logged after a step."""
        write_bytes(self.metrics, b"".join(line for line, entry in self._log() if entry["step"] <= last_step))

    def _log(self) -> list[tuple[bytes, dict[str, Any]]]:
        """The whole lines of the log and what they say; a torn last line is what a killed run leaves."""
        lines = self.metrics.read_bytes().splitlines(keepends=True) if self.metrics.is_file() else []
        lines = [line for line in lines if line.endswith(b"\n")]
        try:
            entries = [json.loads(line) for line in lines]
            if not all(isinstance(entry, dict) and isinstance(entry.get("step"), int) for entry in entries):
                raise ValueError("a line without a step")
        except (ValueError, RecursionError) as error:
            fix = "remove the damaged line; the model does not depend on it, only its curve does"
            raise DataError("the training log is damaged", where=self.metrics, got=str(error), fix=fix) from error
        return list(zip(lines, entries, strict=True))
