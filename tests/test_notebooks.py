"""The notebooks run from the first cell to the last, and keep nothing of the machine that wrote
them.
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
run_notebook = runpy.run_path(str(ROOT / "tools" / "pages.py"))["run_notebook"]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
PROMISED = {
    "first-forecast": ["99% value at risk", "24 bars: nine of ten returns"],
    "own-data": ["hour_of_week", "bits per event", "VaR 99% in bp"],
    "portfolio-risk": ["expected shortfall", "gold falls: median", "over 24 bars"],
    "leakage": [
        "by_recent: 0% of past values changed causal",
        "by_whole_sample: 99% of past values changed LEAK",
        "passed",
    ],
}


def test_each_notebook_is_known_here() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(PROMISED)


@every_notebook
def test_it_runs_in_order_and_prints_what_its_text_promises(path: Path) -> None:
    printed = "".join(said for _, _, said in run_notebook(path))
    assert all(words in printed for words in PROMISED[path.stem]), printed
    assert not re.search(r"failed|\bnan\b", printed)


@every_notebook
def test_it_stores_no_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in codes)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


@every_notebook
def test_its_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
