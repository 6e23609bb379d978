"""What all commands share: defaults, dates and spans, answers and exit codes, lines of progress."""

from __future__ import annotations

import errno
import io
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import Vaiom, require_refusal

from vaiom.cli.console import Answer, print_answer, print_json, progress_bar, show, user_errors
from vaiom.cli.main import app
from vaiom.cli.options import parse_date, parse_span
from vaiom.errors import ConfigError, DataError
from vaiom.market.formats.source import Options
from vaiom.report.tables import Column, Table, prose
from vaiom.serve.server import ServeConfig


def test_no_flag_is_set_that_nobody_asked_for() -> None:
    def defaults(command: Any) -> Iterator[Any]:
        for below in getattr(command, "commands", {}).values():
            yield from defaults(below)
        yield from (each.default for each in command.params if each.name != "help")

    assert not any(value is True for value in defaults(typer.main.get_command(app)))


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("2h", timedelta(hours=2)),
        ("-30min", timedelta(minutes=-30)),
        ("+5 m", timedelta(minutes=5)),
        (" 1d ", timedelta(days=1)),
        *((text, None) for text in ("", "h", "2", "2w", "1.5h", "123456789h")),
    ],
)
def test_time_spans(text: str, span: timedelta | None) -> None:
    if span is None:
        with pytest.raises(ConfigError, match="not a time span"):
            parse_span(text)
    else:
        assert parse_span(text) == span


def test_dates() -> None:
    assert parse_date("2024-03-01") == datetime(2024, 3, 1)
    assert parse_date("2024-03-01T12:30") == datetime(2024, 3, 1, 12, 30)
    for text, problem in (("March", "not a date"), ("2024-03-01T12:30+02:00", "without an offset")):
        with pytest.raises(ConfigError, match=problem):
            parse_date(text)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (DataError("no bars", where="here"), "vaiom: no bars\n  where:    here"),
        (
            ModuleNotFoundError("x", name="ray.data"),
            "vaiom: this needs ray, which is not installed",
        ),
        (OSError(errno.ENOSPC, "full", "disk"), "vaiom: full\n  where:    disk"),
        (OSError(errno.EACCES, "locked"), "vaiom: locked\n  where:    while writing"),
        (OSError(errno.EBADF, "a bug"), None),
        (ModuleNotFoundError("x", name="nonsense"), None),
        (ModuleNotFoundError("x"), None),
        (ValueError("a bug"), None),
    ],
    ids=str,
)
def test_what_a_user_can_mend_is_exit_2_and_a_bug_is_raised(
    error: Exception, says: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit if says else type(error)) as ended, user_errors("vaiom"):
        raise error
    assert not says or ended.value.code == 2
    assert capsys.readouterr().err.startswith(says or "")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("failed", [False, True])
def test_an_answer_is_for_people_or_for_scripts(
    as_json: bool, failed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Answer(
        json={"a": Path("b")}, shown=["seen"], notes=["noted"], warnings=["warned"], failed=failed
    )
    if failed:
        with pytest.raises(typer.Exit) as ended:
            print_answer(answer, as_json)
        assert ended.value.exit_code == 1
    else:
        print_answer(answer, as_json)
    expected = ('{\n  "a": "b"\n}\n', "warned\n") if as_json else ("seen\n", "noted\nwarned\n")
    assert tuple(capsys.readouterr()) == expected


def test_what_is_printed_comes_in_order_and_is_json_or_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushed = list[str]()

    class Stdout(io.StringIO):
        def flush(self) -> None:
            flushed.append(self.getvalue())

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Stdout())
        show("first", "second")
    assert flushed[:2] == [
        "first\n",
        "first\nsecond\n",
    ]  # before a note on stderr, wherever both go
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json(math.nan)


def test_tables_in_a_pipe_are_plain_and_200_wide(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    show(Table("Of 3 parts", [Column("text", prose)], [["7 " * 300]]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ""
    assert max(len(line.rstrip()) for line in lines) in (199, 200)


def test_in_a_pipe_progress_is_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("work") as progress:
        for done in range(31):
            progress(done, 30, "" if done == 30 else "parts")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [*(f"work: {done}/30 parts" for done in range(0, 30, 3)), "work: 30/30"]
    with progress_bar("nothing") as progress:
        progress(0, 0, "to do")
    assert capsys.readouterr().err == "nothing: 0/0 to do\n"


@pytest.mark.parametrize(
    ("words", "got"),
    [
        ([], "neither"),
        (["--experiment", "main", "--from", "fx-1h"], "both"),
        (["--experiment", "main", "--against", "x"], "--against alone"),
        (["--against", "x"], "--against alone"),
    ],
)
def test_one_thing_is_trained(words: list[str], got: str, vaiom: Vaiom, tmp_path: Path) -> None:
    require_refusal(
        vaiom("train", tmp_path, "--out", tmp_path / "run", *words),
        "--experiment NAME or --from",
        got,
    )


def test_a_service_is_what_its_options_say(
    vaiom: Vaiom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def serve(config: ServeConfig, host: str, port: int, ready: Callable[[str], None]) -> None:
        asked.append((config, host, port))
        ready("http://there")

    monkeypatch.setattr("vaiom.serve.server.serve", serve)
    monkeypatch.setattr("vaiom.serve.server.default_state", lambda run: run / "beside")
    monkeypatch.setenv("POLARS_MAX_THREADS", "")  # so that it is put back
    monkeypatch.delenv("POLARS_MAX_THREADS")
    ran = vaiom("serve", tmp_path)
    assert os.environ["POLARS_MAX_THREADS"] == "1"
    assert (ran.code, ran.err) == (0, f"serving {tmp_path} at http://there (Ctrl+C stops it)\n")
    (tmp_path / "keys").write_text("0123456789abcdef0123456789abcdef\n")
    options = "--host 0.0.0.0 --port 9 --allow-host a.b --rate-limit 600/min --utc-offset 2h"
    folders = ("--state", tmp_path, "--api-key-file", tmp_path / "keys")
    more = ("--follow", "x", "--backfill", 3)
    assert vaiom("serve", tmp_path, *options.split(), *folders, *more).code == 0
    plain = ServeConfig(run=tmp_path, state=tmp_path / "beside", hosts=("127.0.0.1",))
    changed = replace(
        plain,
        state=tmp_path,
        hosts=("0.0.0.0", "a.b"),
        rate_limit=600,
        api_keys=("0123456789abcdef0123456789abcdef",),
        utc_offset=timedelta(hours=2),
        follow="x",
        backfill=3,
    )
    assert asked == [(plain, "127.0.0.1", 8000), (changed, "0.0.0.0", 9)]


def test_a_source_is_followed_as_its_options_say(
    vaiom: Vaiom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Service:
        timeframe = "1h"
        symbols = ("EURUSD", "XAUUSD")

        def __init__(self, url: str, key: str | None) -> None:
            asked.append((url, key))

    asked: list[Any] = []
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("vaiom.serve.follow.HttpService", Service)
    monkeypatch.setattr("vaiom.market.feeds.open_feed", lambda *inputs: asked.append(inputs))
    monkeypatch.setattr(
        "vaiom.serve.follow.Follower.run", lambda follower: asked.append(follower.utc_offset)
    )
    (tmp_path / "key").write_text("secret\nof-another\n")
    words = ("--symbol", "*", "--shift", "-30min", "--utc-offset", "2h")
    try:
        ran = vaiom("follow", "there", *words, "--api-key-file", tmp_path / "key")
    finally:
        signal.signal(signal.SIGTERM, before)
    url = "http://127.0.0.1:8000"
    said = f"following there for EURUSD, XAUUSD at {url} (Ctrl+C stops it)\n"
    assert (ran.code, ran.err) == (0, said)
    half_hour = timedelta(minutes=-30)
    options = Options(symbol="*", shift=half_hour, utc=True, repair=True, whole_lines=True)
    assert asked == [(url, "secret"), ("there", "1h", options), timedelta(hours=2)]
