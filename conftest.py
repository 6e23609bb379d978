"""What `tests/` and `verification/` share: settings of hypothesis, one thread, the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from cli.command_line import Ran, Vaiom
from vaiom.cli.main import main

# A busy machine is not a bug: no test fails for being slow once. The same examples every time: no
# test fails by chance. `make check-random` draws new ones.
settings.register_profile("vaiom", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("random", deadline=None, database=None, print_blob=True)
settings.load_profile("vaiom")

LONG = ("reproduction", "training", "forecast")
"""Folders of few, long tests run first, so that the workers finish at about the same time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        folder = item.path.parent.name
        return LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=place)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Products this small are slower on several threads, and much slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def vaiom(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Vaiom:
    """Run a command; an error that is not the user's comes through as it is."""
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["vaiom", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return Ran(code=code, out=out, err=err)

    return run


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real bars beside the checkout; they are never part of the repository."""
    path = Path(__file__).parents[1] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("real bars are not beside this checkout")
    return path
