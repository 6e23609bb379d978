"""The API page is what its tool writes now, and what it names is there."""

from __future__ import annotations

import inspect
import runpy
from importlib import import_module
from pathlib import Path

import pytest

import vaiom

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "api.py"))
NAMES = [(module, name) for modules in TOOL["CONTENTS"].values() for module in modules for name in modules[module]]


def test_the_page_is_up_to_date() -> None:
    same = TOOL["PAGE"].read_text(encoding="utf-8") == TOOL["page"]()
    assert same, f"docs/api.md is older than the docstrings: run `{TOOL['COMMAND']}`"


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda value: value)
def test_a_name_on_the_page_can_be_imported_and_says_what_it_is(module: str, name: str) -> None:
    named = getattr(import_module(module), name)
    assert inspect.getdoc(named) or inspect.getdoc(import_module(module))
    if inspect.isfunction(named):
        shown = TOOL["Module"](module).entry(name)
        assert inspect.getdoc(named)
        assert all(f"{argument}:" in shown for argument in inspect.signature(named).parameters)


def test_public_names_of_the_package_are_on_the_page() -> None:
    on_page = {name for _, name in NAMES}
    assert {name for name in vaiom.__all__ if not name.startswith("__")} <= on_page


def test_signatures_and_members_are_shown_as_written() -> None:
    shown = TOOL["Module"]("vaiom.events.distribution").entry("BucketDistribution")
    assert '- `value_at_risk(level: float = 0.99, side: str = "long") -> Value`: The loss that is not passed' in shown
    assert "- `sigma: Value`: The scale through the last bar" in shown
    assert "_losses" not in shown
    with pytest.raises(SystemExit, match="has no Nonsense"):
        TOOL["Module"]("vaiom.errors").entry("Nonsense")
