"""What a run of a command leaves behind, and what a refusal must look like."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one object on stdout of a command that went well."""
        assert self.code == 0, self.err
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


Vaiom = Callable[..., Ran]


def listing(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, hidden ones too, and the content of the files."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in folder.rglob("*")
    }


def require_refusal(ran: Ran, *says: str) -> None:
    """Exit 2 and one message on stderr, after whatever progress there was; it says all of
    `says`.
    """
    assert ran.code == 2, ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.count("vaiom: ") == 1
    message = ran.err[ran.err.index("vaiom: ") :]
    problem, *details = message.rstrip("\n").split("\n")
    assert problem != "vaiom: "
    assert all(line.startswith("  ") for line in details), message
    for words in says:
        assert words in message, message
