"""The options of an audit, and the result of a proof: its verdict, how much was checked, what was
found.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec

P = ParamSpec("P")

PASSED, FAILED, NOT_RUN = "passed", "FAILED", "not run"
MAX_FINDINGS = 8
QUICK_BASELINES = ("frequency", "markov", "hour_of_week", "ewma_t")  # those that fit in seconds


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
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


@dataclass(frozen=True)
class Claim(Generic[P]):
    """A proof's name, what it checks in a sentence, and the function that checks it."""

    name: str
    about: str
    check: Callable[Concatenate[Proof, P], None]

    def __call__(self, *args: P.args, **options: P.kwargs) -> Proof:
        proof, start = Proof(claim=self), time.perf_counter()
        self.check(proof, *args, **options)
        proof.seconds = time.perf_counter() - start
        return proof


def claim(name: str, about: str) -> Callable[[Callable[Concatenate[Proof, P], None]], Claim[P]]:
    """Make a claim of the decorated function, which checks it."""
    return lambda check: Claim(name, about, check)


@dataclass(kw_only=True)
class Proof:
    """The result of one claim, a row of the audit's table; filled while its checks are made."""

    claim: Claim[Any]
    count: int = 0  # comparisons
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)  # the first of what contradicts the claim
    num_findings: int = 0
    notes: list[str] = field(default_factory=list)  # measured figures, and what was not checked

    def __repr__(self) -> str:
        return f"<Proof {self.name}: {self.verdict}, {self.count:,} comparisons>"

    @property
    def name(self) -> str:
        return self.claim.name

    @property
    def verdict(self) -> str:
        # No comparison, no proof.
        return FAILED if self.num_findings else PASSED if self.count else NOT_RUN

    def check(self, holds: bool, problem: str, count: int = 1) -> bool:
        """Count comparisons, and record the problem if they do not hold."""
        self.count += count
        if not holds:
            self.num_findings += 1
            if len(self.findings) < MAX_FINDINGS:
                self.findings.append(problem)
        return holds

    def summary(self) -> dict[str, Any]:
        """As `vaiom audit --json` shows it."""
        outcome = {
            "name": self.name,
            "about": self.claim.about,
            "verdict": self.verdict.lower(),
            "count": self.count,
        }
        found = {"num_findings": self.num_findings, "findings": self.findings, "notes": self.notes}
        return {**outcome, "seconds": round(self.seconds, 3), **found}
