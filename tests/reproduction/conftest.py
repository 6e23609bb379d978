"""A simulated market, its corpus and finished reproductions of most tables and of some;
made once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from reproductions import RUN_TABLES, SOME, SPLITS, Reproduced, reproduce, vaiom


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Here and in every process that a test starts: the order of sums would differ with their
    number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def paper_text() -> str:
    """The paper itself; it is never part of the repository."""
    path = Path(__file__).parents[3] / "shared" / "paper" / "vaiom.tex"
    if not path.is_file():
        pytest.skip("the paper is not beside this checkout")
    return path.read_text()


@pytest.fixture(scope="session")
def simulated_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated")
    vaiom("data", "simulate", "--assets", 1, "--bars", 45_000, "--out", folder / "bars")
    options = [word for name, value in SPLITS.items() for word in (f"--{name}", value)]
    vaiom("corpus", "build", folder / "bars", "--out", folder / "corpus", *options)
    return folder / "corpus"


@pytest.fixture(scope="session")
def reproduced(simulated_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    """Every kind of table."""
    return reproduce(simulated_corpus, tmp_path_factory.mktemp("reproduction"), RUN_TABLES)


@pytest.fixture(scope="session")
def some_reproduced(simulated_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    """Tables that never look at a test split."""
    return reproduce(simulated_corpus, tmp_path_factory.mktemp("reproduction"), (*SOME, "sweep"))
