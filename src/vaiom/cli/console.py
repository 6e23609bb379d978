"""What commands share: options, answers as tables or JSON, errors as exits, progress, dates and spans."""

from __future__ import annotations

import errno
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from vaiom.errors import EXTRAS, ConfigError, UserError, not_installed

if TYPE_CHECKING:
    from vaiom.files import Progress
    from vaiom.report.tables import Table

P = ParamSpec("P")

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with a selected model.")]
ModelPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run, a packaged model's name, or a model file.")]
CorpusPath = Annotated[Path, typer.Argument(metavar="CORPUS", help="A corpus folder.")]
RunCorpus = Annotated[Path | None, typer.Option("--corpus", help="The run's, or that one grown, where it moved.")]
Split = Annotated[str, typer.Option(help="validation, test-h1, test-h2; a look at a test is recorded.")]
Unseal = Annotated[str | None, typer.Option(help="Must say `sealed` for --split sealed.")]
Every = Annotated[bool, typer.Option("--all", help="Everything, some of it long or wide.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Symbol = Annotated[str | None, typer.Option(help="The asset, where a file does not say it.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where the run stopped.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")]

# A disk that is full, a place that may not be written to or a name that no file can have is nobody's bug.
_USERS_ERRNOS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR),
)
_SPAN = re.compile(r"([+-]?\d{1,8})\s*(min|m|h|d)")
_SPAN_UNITS = {"min": "minutes", "m": "minutes", "h": "hours", "d": "days"}


def date(words: str, *names: str) -> Any:
    """An option that is a date."""
    return typer.Option(*names, metavar="DATE", parser=parse_date, help=words)


@contextmanager
def user_errors(program: str) -> Iterator[None]:
    """A user's error is one message on stderr and exit 2, ours a traceback and exit 1."""
    try:
        yield
    except UserError as error:
        note(f"{program}: {error}")
        raise SystemExit(2) from None
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if not any(library in brought for brought in EXTRAS.values()):
            raise
        note(f"{program}: {not_installed(library)}")
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno not in _USERS_ERRNOS:
            raise
        note(f"{program}: {error.strerror}\n  where:    {error.filename or 'while writing'}")
        raise SystemExit(2) from None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command says: one object for scripts, tables and lines for people."""

    json: Any
    shown: Sequence[Table | str] = ()
    """On stdout, for people."""
    notes: Sequence[str] = ()
    """On stderr after that, for people."""
    warnings: Sequence[str] = ()
    """On stderr, whoever asked."""
    failed: bool = False
    """Exit 1: the work was done and its result is bad."""


def answers(command: Callable[P, Answer | None]) -> Callable[..., None]:
    """A command that prints its answer, as JSON with `--json`, which this adds; None prints nothing."""

    @wraps(command)
    def run(*args: Any, json: bool = False, **kwargs: Any) -> None:
        answer = command(*args, **kwargs)
        if answer is not None:
            print_answer(answer, json)

    parameters = inspect.signature(command, eval_str=True).parameters
    option = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    run.__signature__ = inspect.Signature([*parameters.values(), option])  # type: ignore[attr-defined]
    run.__annotations__ = {**{name: each.annotation for name, each in parameters.items()}, "json": Json}
    return run


def print_answer(answer: Answer, as_json: bool) -> None:
    if as_json:
        print_json(answer.json)
    else:
        show(*answer.shown)
    for text in [*answer.warnings] if as_json else [*answer.notes, *answer.warnings]:
        note(text)
    if answer.failed:
        raise typer.Exit(1)


def show(*parts: Table | str) -> None:
    """Print tables, and lines as they are."""
    from rich.console import Console

    # Cells are paths and symbols: nothing in them is markup.
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 200
    for part in parts:
        if isinstance(part, str):
            print(part, flush=True)
        else:
            console.print()
            console.print(part.to_terminal(console.width), crop=False)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str, allow_nan=False))


def note(text: str) -> None:
    """A line for the person, never mixed into what a script reads from stdout."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A bar on a terminal; in a pipe at most one plain line per tenth of the work."""
    if not sys.stderr.isatty():
        tenths = -1

        def report_line(done: int, total: int, what: str) -> None:
            nonlocal tenths
            now = 10 * done // max(total, 1)
            if now != tenths:
                tenths = now
                note(f"{title}: {done}/{total} {what}".rstrip())

        yield report_line
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    name, what = TextColumn("{task.description}"), TextColumn("{task.fields[what]}")
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), what)
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, what="")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, what=what)


def parse_date(text: str) -> datetime:
    """A date or a moment of the stored clock, which has no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError("not a date", expected="YYYY-MM-DD", got=repr(text)) from error
    if moment.tzinfo is not None:
        raise ConfigError("dates are of the stored clock, without an offset", expected="YYYY-MM-DD", got=repr(text))
    return moment


def parse_span(text: str) -> timedelta:
    """A signed time span: 2h, -30min, 1d."""
    match = _SPAN.fullmatch(text.strip())
    if not match:
        expected = "a number of at most 8 digits and min, h or d, as in 2h or -30min"
        raise ConfigError("not a time span", expected=expected, got=repr(text))
    return timedelta(**{_SPAN_UNITS[match[2]]: int(match[1])})
