"""What an audit is asked to do, and what a proof leaves behind: a verdict, how much was checked, what was found."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class Claim(NamedTuple):
    """What a proof is called, and what it checks in a sentence."""

    name: str
    about: str


@dataclass(kw_only=True)
class Proof:
    """One line of the audit's table; it is open while its checks are made."""

    claim: Claim
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
            **self.claim._asdict(),
            "verdict": self.verdict.lower(),
            "count": self.count,
            "seconds": round(self.seconds, 3),
            "num_findings": self.num_findings,
            "findings": self.findings,
            "notes": self.notes,
        }


@contextmanager
def proving(claim: Claim) -> Iterator[Proof]:
    """A proof whose time is taken while its checks are made."""
    proof, start = Proof(claim=claim), time.perf_counter()
    yield proof
    proof.seconds = time.perf_counter() - start


def not_run(claim: Claim, why: str) -> Proof:
    return Proof(claim=claim, notes=[f"not run: {why}"])
