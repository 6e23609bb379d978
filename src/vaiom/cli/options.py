"""Options and arguments that commands share, and how dates and time spans are read."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from vaiom.errors import ConfigError

_UNITS = {
    "min": timedelta(minutes=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def option(text: str, *names: str, **settings: Any) -> Any:
    """An option with its help text, for `Annotated`."""
    return typer.Option(*names, help=text, **settings)


def argument(metavar: str, text: str) -> Any:
    """An argument with its name in usage lines and its help text, for `Annotated`."""
    return typer.Argument(metavar=metavar, help=text)


def date(text: str, *names: str) -> Any:
    """An option that is a date or a time without a zone."""
    return option(text, *names, metavar="DATE", parser=parse_date)


RunPath = Annotated[Path, argument("RUN", "Run folder, as `vaiom train` writes it.")]
ModelPath = Annotated[Path, argument("RUN", "Run folder, name of a packaged model, or model file.")]
CorpusPath = Annotated[Path, argument("CORPUS", "Corpus folder.")]
RunCorpus = Annotated[
    Path | None, option("Corpus of the run, if it has moved or grown.", "--corpus")
]
Split = Annotated[str, option("validation, test-h1 or test-h2; each look at a test is recorded.")]
Unseal = Annotated[str | None, option("Write `sealed` here to allow --split sealed.")]
Every = Annotated[bool, option("Show everything, even if it is long or wide.", "--all")]
Device = Annotated[str, option("auto, cpu, cuda or cuda:N.")]
Symbol = Annotated[str | None, option("Name of the asset, if the files do not say it.")]
Resume = Annotated[bool, option("Continue where the run stopped.", "--resume")]
Overwrite = Annotated[bool, option("Replace existing output.", "--overwrite")]
Json = Annotated[bool, option("Print one JSON object on stdout, and nothing else there.", "--json")]


def parse_date(text: str) -> datetime:
    """A date or time without a zone, as bars have it."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        expected = "YYYY-MM-DD, or YYYY-MM-DDTHH:MM"
        raise ConfigError("not a date", expected=expected, got=repr(text)) from error
    if moment.tzinfo is not None:
        problem = "dates are written without an offset"
        raise ConfigError(problem, expected="YYYY-MM-DD", got=repr(text))
    return moment


def parse_span(text: str) -> timedelta:
    """A signed time span of minutes, hours or days: 2h, -30min, 1d."""
    match = re.fullmatch(r"([+-]?\d{1,8})\s*(min|m|h|d)", text.strip())
    if not match:
        expected = "a number of at most 8 digits and min, h or d, as in 2h or -30min"
        raise ConfigError("not a time span", expected=expected, got=repr(text))
    return int(match[1]) * _UNITS[match[2]]
