"""The options of an audit, and the result of a proof.

A claim is a name, a sentence about what it checks, and the function that checks it. Calling it
gives a `Proof`: its verdict, how many comparisons were made, and what was found.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec

import numpy as np

P = ParamSpec("P")

PASSED = "passed"
FAILED = "FAILED"
NOT_RUN = "not run"
MAX_SHOWN = 8
"""How many findings of a proof are printed; all are counted."""
QUICK_BASELINES = ("frequency", "markov", "hour_of_week", "ewma_t")
"""Those that fit in seconds."""


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """How thorough an audit is; a smaller one proves less, never something else."""

    cuts: int = 6
    """Random moments after which the bars are damaged."""
    rare_cuts: int = 1
    """Moments at each hour of the week and each asset's missing bars, week ends, holidays, start
    and end.
    """
    seed: int = field(default_factory=lambda: secrets.randbelow(2**32))
    """Of cuts, damage and rescored events; drawn by default, so that nobody can prepare for it."""
    context: int | None = None
    """Rows of a window in the audit of a corpus; a run has its own."""
    baselines: Sequence[str] = QUICK_BASELINES
    """Which baselines are fitted again."""
    rescore: int | None = None
    """Events of a split that are scored again; None is all if that is cheap, and otherwise some
    thousands.
    """


@dataclass(kw_only=True)
class Proof:
    """The result of one claim, a row of the audit's table; filled while its checks are made."""

    name: str
    about: str = ""
    """What is checked, in a sentence."""
    count: int = 0
    """Comparisons made; without any there is no proof."""
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    """Each comparison that contradicts the claim, in words."""
    notes: list[str] = field(default_factory=list)
    """Measured figures, and what was not checked."""

    def __repr__(self) -> str:
        return f"<Proof {self.name}: {self.verdict}, {self.count:,} comparisons>"

    @property
    def verdict(self) -> str:
        """Failed with any finding, passed with none, and not run where nothing was compared."""
        if self.findings:
            return FAILED
        return PASSED if self.count else NOT_RUN

    @property
    def first_findings(self) -> list[str]:
        """The findings that are printed."""
        return self.findings[:MAX_SHOWN]

    def check(self, holds: bool | np.bool_, problem: str, count: int = 1) -> bool:
        """Count comparisons, and record the problem unless they hold; returns whether they do."""
        self.count += count
        if not holds:
            self.findings.append(problem)
        return bool(holds)

    def note(self, text: str) -> None:
        """Tell a measured figure, or what was not checked and why."""
        self.notes.append(text)

    def summary(self) -> dict[str, Any]:
        """As `vaiom audit --json` shows it."""
        return {
            "name": self.name,
            "about": self.about,
            "verdict": self.verdict.lower(),
            "count": self.count,
            "num_findings": len(self.findings),
            "findings": self.first_findings,
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Claim(Generic[P]):
    """Something that an audit proves; calling it with what is examined makes the proof."""

    name: str
    about: str
    examine: Callable[Concatenate[Proof, P], None]

    def __call__(self, *args: P.args, **options: P.kwargs) -> Proof:
        proof = self.proof()
        start = time.perf_counter()
        self.examine(proof, *args, **options)
        proof.seconds = time.perf_counter() - start
        return proof

    def proof(self, *notes: str) -> Proof:
        """A proof without any comparison yet, with notes on why."""
        return Proof(name=self.name, about=self.about, notes=[*notes])


def claim(name: str, about: str) -> Callable[[Callable[Concatenate[Proof, P], None]], Claim[P]]:
    """Make a claim of the decorated function, which fills the proof that it is given."""

    def decorate(examine: Callable[Concatenate[Proof, P], None]) -> Claim[P]:
        return Claim(name, about, examine)

    return decorate
