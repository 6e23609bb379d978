"""The log of the search is written from its files, and long enough to learn from."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from vaiom.experiments.registry import experiment

ROOT = Path(__file__).parents[2]


def test_the_log_is_written_from_its_files() -> None:
    spec = importlib.util.spec_from_file_location("log_page", ROOT / "tools" / "log.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), f"run `{module.COMMAND}`"


def test_every_run_has_a_figure_from_its_own_curve_and_settings_that_exist() -> None:
    rounds = json.loads((ROOT / "docs" / "results" / "search.json").read_text())
    runs = [(each, run) for each in rounds for run in each["runs"]]
    assert len(runs) >= 30
    removed = ("drop_field",)
    for each, run in runs:
        assert run["bits"] == min(run["validation"].values())
        assert run["validation"][str(run["step"])] == run["bits"]
        kept = [setting for setting in (*each["common"], *run["settings"]) if not setting.startswith(removed)]
        experiment("main").with_settings(kept)
