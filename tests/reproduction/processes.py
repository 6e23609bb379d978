"""Processes as /proc shows them: which are below one, and which still live."""

from __future__ import annotations

from pathlib import Path

import pytest

PROC = Path("/proc")

needs_proc = pytest.mark.skipif(
    not (PROC / "self" / "stat").exists(), reason="no /proc to find processes in"
)


def children_of(pid: int) -> list[int]:
    """Processes below a process, nearest first."""
    parents = {}
    for folder in PROC.glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except (OSError, IndexError):
            continue
    found = [pid]
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return found[1:]


def command_of(pid: int) -> str:
    """What a process was started as, or calls itself; empty where it has ended."""
    try:
        return (
            (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""
