"""The hand-written pages stay true: their links, files, modules, commands and options exist."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from vaiom.cli.main import app

ROOT = Path(__file__).parents[1]
GENERATED = {"reproduction.md", "LOG.md", "fx-1h.md"}
PAGES = [
    *ROOT.glob("*.md"),
    *(page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED),
]
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
ROOMS = "|".join(path.name for path in (ROOT / "src" / "vaiom").iterdir() if path.is_dir())
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors_of(page: Path) -> set[str]:
    """Headings as a browser finds them on GitHub."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, heading = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not heading or heading in anchors_of(file), target


@every_page
def test_files_and_modules_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    roots = [ROOT, ROOT / "src", ROOT / "src" / "vaiom"]
    for name in re.findall(r"`((?:\w+/)+\w+\.(?:py|toml))`", text):
        assert any((root / name).exists() for root in roots), name
    for name in re.findall(r"`((?:vaiom|benchmarks)(?:\.\w+)+)(?<!\.py)`", text):
        resolve_name(name)


def test_the_map_names_real_files() -> None:
    _, rooms = DESIGN.split("## The rooms")
    named = 0
    for place, start in re.findall(r"^\| (.+?) \|.*\| (.+?) \|$", rooms, re.MULTILINE)[2:]:
        folder = re.match(r"`(\w+)/`", place)
        where = ROOT / "src" / "vaiom" / (folder[1] if folder else "")
        for file in re.findall(r"`([\w/]+\.\w+)`", start):
            assert (ROOT if "/" in file else where).joinpath(file).exists(), file
            named += 1
    assert named > 20


@pytest.mark.parametrize("name", re.findall(rf"`((?:{ROOMS})\.\w+\.[\w.]+)`", DESIGN))
def test_the_way_of_a_bar_names_what_there_is(name: str) -> None:
    found = resolve_name(f"vaiom.{name}")
    assert f"vaiom.{name}" == f"{found.__module__}.{found.__qualname__}"


def test_the_way_of_a_bar_has_three_paths_of_ten_steps() -> None:
    _, paths = DESIGN.split("## Three paths")
    steps = re.findall(r"^(\d+)\. ", paths.split("## The rooms")[0], re.MULTILINE)
    assert steps == [str(number) for number in range(1, 11)] * 3


@every_page
def test_commands_exist(page: Path) -> None:
    from typer.main import get_command

    root = get_command(app)
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"(?:^ *|`)vaiom ([a-z][^`\n#]*)", text, re.MULTILINE):
        command, words = root, [word.strip("[]") for word in line.split()]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert command is not root, line
        if command.params and command.name not in ("reproduce", "bench"):
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= known, line


@every_page
def test_targets_of_make_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    named = re.findall(r"(?:^|`)make ([\w-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= targets


def test_the_readme_does_everything_right_after_the_first_forecast() -> None:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    forecast, everything = blocks[:2]
    assert "vaiom forecast" in forecast
    assert re.findall(r"^make (\w+)", everything, re.MULTILINE) == ["demo", "test"]
