"""The layout of a run folder: its files, raw configuration and training log."""

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
"""The packaged models, each a run folder without training files."""
DEFAULT_MODEL = "fx-1h"
EVIDENCE_SUFFIX = "-evidence"
"""Suffix of the model whose evaluation stands for a packaged model for use."""


def packaged_models() -> dict[str, Path]:
    """Run folders of the packaged models, by name."""
    return {best.parent.name: best.parent for best in sorted(MODELS.glob(f"*/{BEST_NAME}"))}


def find_run(path: Path) -> Path:
    """Resolve a path or the name of a packaged model; existing paths come first."""
    if path.exists():
        return path
    return packaged_models().get(str(path), path)


class Run:
    """The paths of a run's files, and what its configuration and its log say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG_NAME
        """Experiment, corpus and versions."""
        self.metrics = path / METRICS_NAME
        """The training log, a JSON object per line."""
        self.report = path / REPORT_NAME
        self.checkpoints = path / "checkpoints"
        """Weights and training states by step."""
        self.best = path / BEST_NAME
        """The selected checkpoint."""
        self.start = path / "start.safetensors"
        """The initial weights, if training started from a model."""
        self.horizons = path / "horizons.safetensors"
        """Heads for longer horizons."""
        self.dependence = path / "dependence.json"
        """The dependence between its assets."""
        self.about = path / "about.json"
        """For a packaged model, the facts of its training log and corpus."""
        self.forecasts = path / "forecasts"
        """Other people's forecasts scored with the run: a folder of evaluations for each name."""
        self.teachers = path / "teachers"
        """Runs of the teachers of this model, numbered from 1."""

    def checkpoint(self, step: int) -> Path:
        """The weights at a step."""
        return self.checkpoints / f"step-{step:07d}.safetensors"

    def state(self, step: int) -> Path:
        """The training state at a step, to resume from."""
        return self.checkpoints / f"step-{step:07d}.state.safetensors"

    def evaluation(self, split: str) -> Path:
        """All figures of a split, as JSON."""
        return self.path / f"evaluation-{split}.json"

    def events(self, split: str, suffix: str = ".parquet") -> Path:
        """The loss of every event; `.npz` if no Parquet writer is installed."""
        return self.path / f"events-{split}{suffix}"

    @property
    def exists(self) -> bool:
        """Whether this is a run folder."""
        return self.config.exists() or self.teachers.exists()

    def saved_steps(self) -> list[int]:
        """Steps with a training state, oldest first."""
        names = [path.name for path in self.checkpoints.glob("*.state.safetensors")]
        matches = [re.fullmatch(r"step-(\d+)\.state\.safetensors", name) for name in names]
        return sorted(int(match[1]) for match in matches if match)

    def evaluated_splits(self) -> list[str]:
        """Splits with an evaluation, sorted by name."""
        files = self.path.glob("evaluation-*.json")
        return sorted(file.stem.removeprefix("evaluation-") for file in files)

    def read_config(self) -> dict[str, Any]:
        """The tables of `config.toml`."""
        try:
            return tomllib.loads(self.config.read_text())
        except OSError as error:
            problem = "not a run folder"
            raise DataError(
                problem, where=self.path, expected=CONFIG_NAME, fix="vaiom train"
            ) from error
        except (ValueError, RecursionError) as error:
            raise DataError("not readable as TOML", where=self.config, got=str(error)) from error

    def corpus_path(self) -> Path:
        """The path of the corpus when the run was trained."""
        try:
            return Path(self.read_config()["corpus"]["path"])
        except (DataError, KeyError, TypeError) as error:
            problem = "no such run, or one that does not say where its corpus is"
            fix = "check the path, or name a --corpus"
            raise ConfigError(problem, where=self.path, fix=fix) from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """The training log, a dictionary per line; empty if the run was packaged without it."""
        return [entry for _, entry in self._log()]

    def validation_bits(self) -> dict[int, float]:
        """Validation bits per event, by step."""
        key = "validation_bits"
        return {entry["step"]: entry[key] for entry in self.read_metrics() if key in entry}

    def trim_metrics(self, last_step: int) -> None:
        """Drop log entries after a step."""
        kept = [line for line, entry in self._log() if entry["step"] <= last_step]
        write_bytes(self.metrics, b"".join(kept))

    def _log(self) -> list[tuple[bytes, dict[str, Any]]]:
        """The complete lines of the log, raw and parsed; a truncated last line is ignored."""
        if not self.metrics.is_file():
            return []
        log = []
        try:
            for line in self.metrics.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    continue
                entry = json.loads(line)
                if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
                    raise ValueError("a line without a step")
                log.append((line, entry))
        except (ValueError, RecursionError) as error:
            raise DataError(
                "the training log is damaged",
                where=self.metrics,
                got=str(error),
                fix="remove the damaged line; the model does not depend on it, only its curve does",
            ) from error
        return log
