"""What commands share: errors as exits, progress for a terminal or a pipe, JSON on stdout, dates and spans."""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from vaiom.errors import ConfigError, UserError

Progress = Callable[[int, int, str], None]
"""Called with (done, total, what is being done)."""

# A disk that is full, a place that may not be written to or a name that no file can have is nobody's bug.
_USERS_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
LONGEST_SPAN = 8
_SPAN = re.compile(r"([+-]?\d+)\s*(min|m|h|d)")
_SPAN_UNITS = {"min": "minutes", "m": "minutes", "h": "hours", "d": "days"}


@contextmanager
def user_errors(program: str) -> Iterator[None]:
    """A user's error is one message on stderr and exit 2, ours a traceback and exit 1."""
    try:
        yield
    except UserError as error:
        note(f"{program}: {error}")
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno not in _USERS_ERRNOS:
            raise
        note(f"{program}: {error.strerror}\n  where:    {error.filename or 'while writing'}")
        raise SystemExit(2) from None


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

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}"),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, what="")

        def report_bar(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, what=what)

        yield report_bar


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
        raise ConfigError("not a time span", expected="a number and min, h or d, as in 2h or -30min", got=repr(text))
    if len(match[1]) > LONGEST_SPAN:
        raise ConfigError("a time span beyond all calendars", expected=f"{LONGEST_SPAN} digits at most", got=repr(text))
    return timedelta(**{_SPAN_UNITS[match[2]]: int(match[1])})
