"""What commands print: tables or JSON, errors as exit codes, progress."""

from __future__ import annotations

import errno
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import typer

from vaiom.cli.options import Json
from vaiom.errors import EXTRAS, UserError, not_installed

if TYPE_CHECKING:
    from vaiom.files import Progress
    from vaiom.report.tables import Table

P = ParamSpec("P")

USERS_ERRNOS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.EISDIR,
    errno.ENOTDIR,
)
"""A full disk, a folder without write permission or an impossible file name is not a bug."""
PIPE_WIDTH = 200
"""Characters of a table's line where there is no terminal."""


@contextmanager
def user_errors(program: str) -> Iterator[None]:
    """Print an error that the user can fix as one message and exit 2.

    Bugs are raised, which exits 1 with a traceback.
    """
    try:
        yield
        return
    except UserError as error:
        message = str(error)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if not any(library in libraries for libraries in EXTRAS.values()):
            raise
        message = str(not_installed(library))
    except OSError as error:
        if error.errno not in USERS_ERRNOS:
            raise
        message = f"{error.strerror}\n  where:    {error.filename or 'while writing'}"
    note(f"{program}: {message}")
    raise SystemExit(2)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command prints: JSON for scripts, or tables and lines for people."""

    json: Any
    shown: Sequence[Table | str] = ()
    """On stdout, without --json."""
    notes: Sequence[str] = ()
    """On stderr after that, without --json."""
    warnings: Sequence[str] = ()
    """On stderr, always."""
    failed: bool = False
    """Exit 1: the work was done and its result is bad."""


def answers(command: Callable[P, Answer | None]) -> Callable[..., None]:
    """Make a command print its answer, and give it the option `--json`; None prints nothing."""

    @wraps(command)
    def run(*args: Any, json: bool, **kwargs: Any) -> None:
        answer = command(*args, **kwargs)
        if answer is not None:
            print_answer(answer, json)

    # Typer reads options from the signature.
    parameters = dict(inspect.signature(command, eval_str=True).parameters)
    parameters["json"] = inspect.Parameter(
        "json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json
    )
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    return run


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print JSON alone on stdout, or tables there and notes on stderr; exits 1 if the answer
    failed.
    """
    notes = list(answer.warnings)
    if as_json:
        print_json(answer.json)
    else:
        show(*answer.shown)
        notes = [*answer.notes, *notes]
    for text in notes:
        note(text)
    if answer.failed:
        raise typer.Exit(1)


def show(*parts: Table | str) -> None:
    """Print tables and lines of text on stdout; in a pipe, tables are 200 characters wide."""
    from rich.console import Console

    # Cells hold paths and symbols, which must not be read as markup.
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for part in parts:
        if isinstance(part, str):
            print(part, flush=True)
        else:
            console.print()
            console.print(part.to_terminal(console.width), crop=False)


def print_json(value: Any) -> None:
    """Print a value as indented JSON; what JSON lacks is printed as text, but NaN is an error."""
    print(json.dumps(value, indent=2, default=str, allow_nan=False))


def note(text: str) -> None:
    """Print a line to stderr, apart from what a script reads on stdout."""
    print(text, file=sys.stderr)


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A progress bar on a terminal; in a pipe, at most one plain line per tenth of the work."""
    if not sys.stderr.isatty():
        yield _progress_lines(title)
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}"),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, what="")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, what=what)


def _progress_lines(title: str) -> Progress:
    """Progress as lines on stderr, one for each tenth of the work that is reached."""
    tenths: int | None = None

    def report(done: int, total: int, what: str) -> None:
        nonlocal tenths
        now = 10 * done // max(total, 1)
        if now != tenths:
            tenths = now
            note(f"{title}: {done}/{total} {what}".rstrip())

    return report
