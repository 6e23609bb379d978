"""Everything that reads what somebody else wrote, as functions of bytes: each must succeed or raise
a `UserError`.

Enters: a folder with one valid file of each kind, made by `make_materials`. Leaves: named targets
with their seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from verification.fuzz import formats, stored, words
from verification.fuzz.mutations import Mutate

Parse = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    seeds: Sequence[bytes]
    mutate: Mutate
    parse: Parse
    share: int
    """How many of a thousand executions the long run spends here: cheap parsers do most of them."""


def targets(materials: Path, scratch: Path) -> dict[str, Target]:
    """All of them; `scratch` is theirs to write to."""
    groups = (formats.targets(), stored.targets(materials, scratch), words.targets(scratch))
    return {name: Target(*entry) for group in groups for name, entry in group.items()}
