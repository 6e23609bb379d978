"""What tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# A busy machine is not a bug: no test fails for being slow once. The same examples every time: no test fails by chance.
# `make check-random` draws new ones.
settings.register_profile("vaiom", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None, database=None, print_blob=True)
settings.load_profile("vaiom")

LONG = ("reproduction", "faults", "training", "forecast")
"""Folders with files of few, long tests: they come first, so that what is left at the end is short."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.parent.name) if item.path.parent.name in LONG else len(LONG))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Products this small are slower on several threads, and much slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real bars beside the checkout; they are never part of the repository."""
    path = Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("real bars are not beside this checkout")
    return path
