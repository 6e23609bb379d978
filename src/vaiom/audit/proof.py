"""What a proof leaves behind: a verdict, how much was checked, and every exception that was found.

Enters: the checks of one proof as they are made. Leaves: a `Proof`, one line of the audit's table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "FAILED", "not run"
MAX_FINDINGS = 8


@dataclass(kw_only=True)
class Proof:
    """One proof; it is open while its checks are made."""

    name: str
    about: str
    """What is checked, in a sentence."""
    count: int = 0
    """How many comparisons were made."""
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    """What contradicts the proof, the first few of them."""
    num_findings: int = 0
    notes: list[str] = field(default_factory=list)
    """Measured figures, and why a proof was not run."""

    @property
    def verdict(self) -> str:
        # A proof that compared nothing proves nothing.
        return FAILED if self.num_findings else PASSED if self.count else NOT_RUN

    def check(self, holds: bool, otherwise: str, count: int = 1) -> bool:
        """Count comparisons, and keep what contradicts the proof."""
        self.count += count
        if not holds:
            self.num_findings += 1
            if len(self.findings) < MAX_FINDINGS:
                self.findings.append(otherwise)
        return holds

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "about": self.about,
            "verdict": self.verdict.lower(),
            "count": self.count,
            "seconds": round(self.seconds, 3),
            "num_findings": self.num_findings,
            "findings": self.findings,
            "notes": self.notes,
        }


@contextmanager
def proving(name: str, about: str) -> Iterator[Proof]:
    """A proof whose time is taken while its checks are made."""
    proof, start = Proof(name=name, about=about), time.perf_counter()
    yield proof
    proof.seconds = time.perf_counter() - start


def not_run(name: str, about: str, why: str) -> Proof:
    return Proof(name=name, about=about, notes=[f"not run: {why}"])
