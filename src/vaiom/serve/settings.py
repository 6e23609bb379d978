"""How a service is run.

Enters: what the command line was given. Leaves: a checked `ServeConfig`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vaiom.errors import ConfigError

_RATE = re.compile(r"(\d+)\s*/\s*min")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    run: Path
    state: Path
    """Folder of what must survive a restart."""
    bars: Path | None = None
    """Bar folder whose assets are live from the start."""
    device: str = "cpu"
    threads: int | None = None
    api_keys: tuple[str, ...] = ()
    """None: everybody is let in."""
    rate_limit: int | None = None
    """Requests a minute for each key, or each address where there are no keys."""
    max_body: int = 1 << 20
    """Bytes of a request."""
    body_seconds: float = 10.0
    """A request must have arrived by then."""
    max_waiting: int = 256
    """Forecasts that may wait for the model."""
    alert_bits: float = 0.0
    """Alert where the recent mean loss exceeds Frequency's by more, and by more than chance explains."""
    backfill: int = 96
    """Bars of each asset of `bars` whose forecasts are made again at the start."""

    def __post_init__(self) -> None:
        for name in ("max_body", "body_seconds", "max_waiting"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive", got=getattr(self, name))
        if self.backfill < 0:
            raise ConfigError("backfill counts bars", expected="0 or more", got=self.backfill)


def parse_rate(text: str) -> int:
    """Requests a minute: 600/min."""
    match = _RATE.fullmatch(text.strip())
    if not match or int(match[1]) == 0:
        raise ConfigError("not a rate", expected="requests a minute, as in 600/min", got=repr(text))
    return int(match[1])


def read_keys(path: Path) -> tuple[str, ...]:
    """API keys of a file, one a line; blank lines and those that begin with # do not count."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the API keys cannot be read", where=path, got=str(error)) from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError("the file holds no API key", where=path, expected="one key a line")
    if any(not key.isascii() or not key.isprintable() for key in keys):
        raise ConfigError("a key must be printable ASCII: it travels in an HTTP header", where=path)
    return keys


def default_state(run: Path) -> Path:
    """Beside the model: a folder of the run, or one named after the file."""
    return run / "live" if run.is_dir() else run.with_name(f"{run.stem}-live")
