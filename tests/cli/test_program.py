"""The installed program in a process of its own: what only shows there."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from vaiom import __version__
from vaiom.cli import main
from vaiom.cli.console import user_errors
from vaiom.corpus.store import open_corpus

PROGRAM = Path(sys.executable).with_name("vaiom")


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "code"), [(["--version"], 0), (["corpus", "show", "nowhere"], 2)]
)
def test_the_exit_code_is_the_same_under_torchrun(words: list[str], code: int) -> None:
    environment = {**os.environ, "WORLD_SIZE": "1", "RANK": "0", "PYTHONUNBUFFERED": ""}
    ran = subprocess.run([PROGRAM, *words], capture_output=True, text=True, env=environment)
    assert ran.returncode == code
    assert ran.stdout.strip() == (__version__ if code == 0 else "")


def run_on_terminal(*words: object, columns: int, stdout: IO[str] | None = None) -> str:
    """All that a person sees, but for what goes into a file."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": str(columns)}
    with subprocess.Popen(
        [PROGRAM, *map(str, words)], stdout=stdout or theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while piece := os.read(ours, 65536):
                seen += piece
        except OSError:
            pass  # how Linux says that the other end was closed
    os.close(ours)
    assert process.returncode == 0
    return seen.decode()


def test_the_installed_program_answers() -> None:
    ran = run("--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{__version__}\n", "")


def test_json_on_stdout_and_plain_progress_on_stderr(market: Path, tmp_path: Path) -> None:
    ran = run("corpus", "build", market, "--out", tmp_path / "corpus", "--json")
    assert ran.returncode == 0
    assert list(json.loads(ran.stdout)["series"]) == ["SIM01USD", "SIM02USD"]
    assert ran.stderr.splitlines() == [
        "building: 0/2 SIM01USD",
        "building: 1/2 SIM02USD",
        "building: 2/2",
    ]


def test_a_refusal_is_one_message_without_a_traceback(tmp_path: Path) -> None:
    ran = run("corpus", "show", tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[0] == "vaiom: not a corpus"
    assert "Traceback" not in ran.stderr


def test_a_terminal_shows_a_bar(market: Path, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        seen = run_on_terminal("data", "check", market, "--json", columns=100, stdout=out)
    assert "━" in seen
    assert "2/2" in seen
    assert json.loads((tmp_path / "out").read_text())["assets"]


def test_a_narrow_terminal_cuts_no_number_and_no_sentence(market: Path, corpus: Path) -> None:
    events = open_corpus(corpus).manifest["events"]
    seen = run_on_terminal("corpus", "show", corpus, columns=60)
    assert "…" not in seen
    assert all(f"{count:,}" in seen for count in events.values())
    assert "…" not in run_on_terminal("data", "check", market, columns=60)


def test_forecasts_fit_80_columns_and_say_once_what_holds_for_all(market: Path) -> None:
    seen = (
        run_on_terminal("predict", "fx-1h", "--bars", market, columns=80)
        .replace("\r", "")
        .splitlines()
    )
    parts = [line for line in seen if line.startswith("SIM01USD  ")]
    assert len(parts) == 2
    assert max(map(len, parts)) <= 80
    assert any(line.startswith("SIM01USD, SIM02USD: stale since") for line in seen)


def test_a_folder_in_the_place_of_a_file_is_the_users_to_move(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, user_errors("vaiom"):
        tmp_path.open("ab")
    assert ended.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_warnings_are_lines_for_a_person() -> None:
    assert main.plain_warning("no fit", UserWarning, "code.py", 7) == "note: no fit\n"
    assert main.plain_warning("odd", RuntimeWarning, "code.py", 7).startswith(
        "code.py:7: RuntimeWarning: odd"
    )
