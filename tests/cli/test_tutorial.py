"""The tutorial is done as it stands, in an empty folder: each command, each snippet of Python, each
shown output.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from command_line import Vaiom, require_refusal

from vaiom.market.folder import read_bars

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(bash|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REFUSED = "# refused: "
STEPS = {
    "data",
    "corpus",
    "train",
    "baselines",
    "evaluate",
    "report",
    "audit",
    "refit",
    "predict",
    "serve",
}


def commands_of(script: str) -> Iterator[tuple[list[str], str]]:
    """The words of each command, and what its refusal must say where it is meant to be refused."""
    waiting = ""
    for line in script.replace("\\\n", " ").splitlines():
        waiting += line + "\n"
        try:
            words = shlex.split(waiting, comments=True)
        except ValueError:  # a quotation that goes on
            continue
        if words:
            yield words, waiting.partition(REFUSED)[2].strip()
        waiting = ""


def masked(text: str) -> set[str]:
    """Its lines without what depends on the machine: figures, the height of bars, the width of
    columns.
    """
    plain = re.sub(r"[▁-█]+", "|", re.sub(r"[+-]?\d[\d.,:]*", "0", text))
    return {" ".join(line.split()) for line in plain.splitlines()}


@contextmanager
def served(words: list[str]) -> Iterator[int]:
    """A service on a port that is free, which it says on stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words, "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr
        said = next(
            found
            for line in process.stderr
            if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line))
        )
        yield int(said[1])
    finally:
        process.kill()
        process.communicate()


def answer_of(words: list[str], port: int) -> str:
    words = [word.replace("localhost:8000", f"127.0.0.1:{port}") for word in words]
    ran = subprocess.run(words, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_step(vaiom: Vaiom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # Those of every hour of the week have tests of their own.
    monkeypatch.setattr("vaiom.auditing.leakage.rare_moments", lambda bars: {})
    port, done, printed, answers = 0, set(), "", []
    with ExitStack() as services:
        for language, content in BLOCK.findall(PAGE):
            if language == "python":
                exec(compile(content, "tutorial.md", "exec"), {})
                continue
            if language == "text":
                assert masked(content) <= masked(printed), printed
                continue
            for (program, *words), refusal in commands_of(content):
                if program == "curl":
                    answers.append(json.loads(answer_of([program, *words], port)))
                    continue
                assert program == "vaiom"
                done.add(words[0])
                if words[0] == "serve":
                    port = services.enter_context(served([program, *words]))
                    continue
                ran = vaiom(*words)
                printed = ran.out
                if refusal:
                    require_refusal(ran, refusal)
                else:
                    assert ran.code == 0, ran.err

    assert done >= STEPS
    # Own columns, another zone and half hours came back as the hours that they were made from.
    hours = read_bars("bars-1h")
    assert all(hours[symbol].equals(frame) for symbol, frame in read_bars("simulated").items())
    assert Path("runs/first/report.html").is_file()
    ready, pushed, forecast = answers
    assert ready["status"] == "ready"
    assert pushed["accepted"] == 1
    assert forecast["as_of"] == pushed["as_of"] == "2026-01-01T00:00:00"
    assert 0 < forecast["prob_beyond"] < 1


@pytest.mark.parametrize("option", sorted(set(re.findall(r"`(--[a-z-]+)[^`]*`", PAGE))))
def test_options_in_the_text_exist(vaiom: Vaiom, option: str) -> None:
    commands = ("data import", "corpus build", "train", "baselines", "predict")
    assert any(option in vaiom(*command.split(), "--help").out for command in commands)
