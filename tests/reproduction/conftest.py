"""A simulated market, its corpus and one finished reproduction of all tables; made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from reproductions import Reproduced, vaiom, words_of

from vaiom.events.corpus import LEDGER_NAME


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Here and in every process that a test starts: the order of sums would differ with their number."""
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
    vaiom("data", "simulate", "--assets", 1, "--bars", 60_000, "--out", folder / "bars")
    vaiom("corpus", "build", folder / "bars", "--out", folder / "corpus")
    return folder / "corpus"


@pytest.fixture(scope="session")
def reproduced(simulated_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    corpus, folder = simulated_corpus, tmp_path_factory.mktemp("reproduction")
    baselines, out = folder / "baselines", folder / "out"
    for split in ("validation", "test-h1", "test-h2"):
        only = ("--only", "frequency,markov,hour_of_week", "--split", split, "--context", 16)
        assert vaiom("baselines", corpus, "--out", baselines, *only).code == 0
    ran = vaiom(*words_of(corpus, out, "--baselines", baselines))
    ledger = (corpus / LEDGER_NAME).read_text()
    return Reproduced(corpus=corpus, baselines=baselines, out=out, ran=ran, ledger=ledger)
