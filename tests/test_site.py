"""The site is whole: every page has a place in its navigation, every public name and every command
a description.
"""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml
from typer.main import get_command

import vaiom
from vaiom.cli.main import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
PAGES = runpy.run_path(str(ROOT / "tools" / "pages.py"))
NAMES = re.findall(
    r"^::: (\S+)$",
    "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md")),
    re.MULTILINE,
)


def leaves(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    else:
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(each)


def test_the_navigation_leads_to_every_page_once_and_nowhere_else() -> None:
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert sorted(leaves(SITE["nav"])) == sorted(written | PAGES["GENERATED"])
    assert all((ROOT / source).is_file() for source in PAGES["ROOT_PAGES"])


def test_whoever_reads_it_fetches_nothing_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False
    assert not {"extra_javascript", "repo_url"} & SITE.keys()
    assert all((DOCS / each).is_file() for each in SITE["extra_css"])
    assert "url(" not in "".join((DOCS / each).read_text() for each in SITE["extra_css"])


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_python_reference_is_there_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(resolve_name(name))


def test_public_names_of_the_package_are_in_the_python_reference() -> None:
    described = {name.rpartition(".")[2] for name in NAMES}
    assert {name for name in vaiom.__all__ if not name.startswith("__")} <= described


def test_every_command_and_option_is_in_the_reference() -> None:
    page = PAGES["commands_page"]()
    sections = dict(
        re.findall(r"^#{2,3} (vaiom .+?)\n(.*?)(?=^#{2,3} |\Z)", page, re.MULTILINE | re.DOTALL)
    )

    def check(command: Any, path: str) -> None:
        for name, each in getattr(command, "commands", {}).items():
            check(each, f"{path} {name}")
        if not hasattr(command, "commands"):
            options = [
                name
                for each in command.params
                if each.param_type_name == "option"
                for name in each.opts
            ]
            assert all(f"`{option}`" in sections[path] for option in options), path

    check(get_command(app), "vaiom")
    assert (
        "--budget" in sections["vaiom reproduce"]
    )  # from the programs that these pass their words on to
    assert "--corpus" in sections["vaiom bench"]
    assert re.search(r"`--seed` \| 0 \|", sections["vaiom risk"])


def test_a_table_keeps_its_columns() -> None:
    rows = [line for line in PAGES["commands_page"]().splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}


def test_links_out_of_docs_lead_to_their_copies_on_the_site() -> None:
    said = PAGES["on_page_markdown"](
        "[a](../CONTRIBUTING.md) [b](CHANGELOG.md#now) from [results](results)"
    )
    assert said == "[a](contributing.md) [b](changelog.md#now) from `docs/results`"


def test_results_of_the_readme_are_those_of_the_page_of_all_tables() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == PAGES["with_results"](readme), "run `python tools/pages.py`"
    shown = PAGES["RESULTS"].search(readme)
    assert shown
    rows = [line.split(" | ") for line in shown[0].splitlines()[2:]]
    assert len(rows) == len(PAGES["SHOWN"])
    losses = [float(row[1].strip("*")) for row in rows]
    assert losses[-1] == min(losses)  # the text says that `best` is better
