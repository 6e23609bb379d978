"""The command line as a user has it, run in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import Ran, Vaiom

from vaiom.cli.main import main
from vaiom.simulate.market import MarketConfig, simulate, write_market


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
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hourly bars of two assets that reach from before the end of Train to the seal."""
    folder = tmp_path_factory.mktemp("market") / "bars"
    config = MarketConfig(assets=2, bars=14_000)
    write_market(simulate(config), config, folder)
    return folder


@pytest.fixture(scope="session")
def corpus(market: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vaiom.events.build import build_corpus

    folder = tmp_path_factory.mktemp("corpora") / "corpus"
    build_corpus(market, folder)
    return folder
