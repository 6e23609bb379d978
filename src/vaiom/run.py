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
    return path if path.exists() else packaged_models().get(str(path), path)


class Run:
    def __init__(self, path: Path) -> None:
        self.path, self.checkpoints = path, path / "checkpoints"
        self.config, self.metrics, self.report = (
            path / CONFIG_NAME,
            path / METRICS_NAME,
            path / REPORT_NAME,
        )
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
        """External forecasts scored with the run: a folder per name, with evaluations and events.
        """
        self.teachers = path / "teachers"
        """Runs of the teachers of this model, numbered from 1."""

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:07d}.safetensors"

    def state(self, step: int) -> Path:
        """The training state at a step, to resume from."""
        return self.checkpoints / f"step-{step:07d}.state.safetensors"

    def evaluation(self, split: str) -> Path:
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
        names = (path.name for path in self.checkpoints.glob("*.state.safetensors"))
        return sorted(
            int(step[1])
            for name in names
            if (step := re.fullmatch(r"step-(\d+)\.state\.safetensors", name))
        )

    def evaluated_splits(self) -> list[str]:
        """Splits with an evaluation, sorted by name."""
        return sorted(
            file.stem.removeprefix("evaluation-") for file in self.path.glob("evaluation-*.json")
        )

    def read_config(self) -> dict[str, Any]:
        """The tables of `config.toml`."""
        try:
            return tomllib.loads(self.config.read_text())
        except OSError as error:
            raise DataError(
                "not a run folder", where=self.path, expected=CONFIG_NAME, fix="vaiom train"
            ) from error
        except (ValueError, RecursionError) as error:
            raise DataError("not readable as TOML", where=self.config, got=str(error)) from error

    def corpus_path(self) -> Path:
        """The path of the corpus when the run was trained."""
        try:
            return Path(self.read_config()["corpus"]["path"])
        except (DataError, KeyError, TypeError) as error:
            problem = "no such run, or one that does not say where its corpus is"
            raise ConfigError(
                problem, where=self.path, fix="check the path, or name a --corpus"
            ) from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """The training log; empty if the run was packaged without it."""
        return [entry for _, entry in self._log()]

    def validation_bits(self) -> dict[int, float]:
        """Validation bits per event, by step."""
        return {
            entry["step"]: entry["validation_bits"]
            for _, entry in self._log()
            if "validation_bits" in entry
        }

    def trim_metrics(self, last_step: int) -> None:
        """Drop log entries after a step."""
        write_bytes(
            self.metrics,
            b"".join(line for line, entry in self._log() if entry["step"] <= last_step),
        )

    def _log(self) -> list[tuple[bytes, dict[str, Any]]]:
        """The complete lines of the log, raw and parsed; a killed run may leave a torn
        last line.
        """
        lines = (
            self.metrics.read_bytes().splitlines(keepends=True) if self.metrics.is_file() else []
        )
        lines = [line for line in lines if line.endswith(b"\n")]
        try:
            entries = [json.loads(line) for line in lines]
            if not all(
                isinstance(entry, dict) and isinstance(entry.get("step"), int) for entry in entries
            ):
                raise ValueError("a line without a step")
        except (ValueError, RecursionError) as error:
            fix = "remove the damaged line; the model does not depend on it, only its curve does"
            raise DataError(
                "the training log is damaged", where=self.metrics, got=str(error), fix=fix
            ) from error
        return list(zip(lines, entries, strict=True))
