"""What an audit is asked to do, and what a proof leaves behind: a verdict, how much was checked, what was found."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec

P = ParamSpec("P")

PASSED, FAILED, NOT_RUN = "passed", "FAILED", "not run"
MAX_FINDINGS = 8
QUICK_BASELINES = ("frequency", "markov", "hour_of_week", "ewma_t")
"""Those that fit in seconds; the others can be named."""


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    cuts: int = 6
    """Random moments after which the bars are damaged."""
    rare_cuts: int = 1
    """Moments at each hour of the week and each asset's missing bars, week ends, holidays, start and end."""
    seed: int = field(default_factory=lambda: secrets.randbelow(2**32))
    """Of cuts, damage and the events that are scored again: nobody can prepare for one that the auditor draws."""
    context: int | None = None
    """Rows of a window where there is no model to say it; None is the corpus's default."""
    baselines: Sequence[str] = QUICK_BASELINES
    """Which baselines are fitted again."""
    rescore: int | None = None
    """How many events of a split are scored again; None is all where that is cheap, and some thousands elsewhere."""


@dataclass(frozen=True)
class Claim(Generic[P]):
    """What a proof is called, what it checks in a sentence, and the function that checks it."""

    name: str
    about: str
    check: Callable[Concatenate[Proof, P], None]

    def __call__(self, *args: P.args, **options: P.kwargs) -> Proof:
        proof, start = Proof(claim=self), time.perf_counter()
        self.check(proof, *args, **options)
        proof.seconds = time.perf_counter() - start
        return proof


def claim(name: str, about: str) -> Callable[[Callable[Concatenate[Proof, P], None]], Claim[P]]:
    """Decorates the function that checks it."""
    return lambda check: Claim(name, about, check)


@dataclass(kw_only=True)
class Proof:
    """One line of the audit's table; it is open while its checks are made."""

    claim: Claim[Any]
    count: int = 0
    """How many comparisons were made."""
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    """What contradicts the proof, the first few of them."""
    num_findings: int = 0
    notes: list[str] = field(default_factory=list)
    """Measured figures, and why a proof was not run."""

    def __repr__(self) -> str:
        return f"<Proof {self.name}: {self.verdict}, {self.count:,} comparisons>"

    @property
    def name(self) -> str:
        return self.claim.name

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

    def summary(self) -> dict[str, Any]:
        """As `vaiom audit --json` shows it."""
        return {
            "name": self.name,
            "about": self.claim.about,
            "verdict": self.verdict.lower(),
            "count": self.count,
            "seconds": round(self.seconds, 3),
            "num_findings": self.num_findings,
            "findings": self.findings,
            "notes": self.notes,
        }
