"""Comparison of stored figures and losses with those that were computed again.

Values enter; findings go into a proof.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vaiom.auditing.proof import Proof
from vaiom.auditing.rounding import ABSOLUTE, RELATIVE, Rounding
from vaiom.baselines.base import Floats

Figures = dict[str, Any]
"""Part of an evaluation as JSON."""
NO_TOLERANCES: Mapping[str, float] = {}


def largest(values: Floats) -> float:
    """The largest absolute value of an array; 0 of none."""
    return float(np.abs(values).max(initial=0))


def compare_losses(proof: Proof, what: str, off: Floats, tolerance: float) -> None:
    """Differences (n,) of losses in bits must not exceed a tolerance; `what` names whose they are.

    The largest difference is named in the finding.
    """
    most = largest(off)
    problem = f"{what} gives an event {most:.1e} bits more or fewer than the file"
    proof.check(most <= tolerance, problem, len(off))


def compare_rounded(
    proof: Proof, where: str, whose: str, rounding: Rounding, bits: Floats, probs: Floats
) -> None:
    """Differences of losses (n,) and of probabilities (n, K) must be what rounding explains.

    `whose` names in findings what the stored ones should be.
    """
    off = f"{largest(bits):.1e} bits off, {bits.mean():+.1e} in the mean"
    problem = f"{where}: losses that are not {whose}: {off}"
    proof.check(rounding.explains(bits), problem, len(bits))
    moved = largest(probs)
    problem = f"{where}: a probability differs by {moved:.1e} from {whose}"
    proof.check(moved <= rounding.probability, problem, probs.size)


def compare_figures(
    proof: Proof,
    ours: Any,
    stored: Any,
    path: str,
    tolerances: Mapping[str, float] = NO_TOLERANCES,
    absolute: float = ABSOLUTE,
) -> None:
    """Every value of what was computed again must be in the file, and no other.

    Figures agree to nine digits. `tolerances` allow more below the keys that they name. `path`
    says in findings where a value lies, such as `validation.bits.model`.
    """
    if isinstance(ours, dict):
        theirs = stored if isinstance(stored, dict) else {}
        added = sorted(theirs.keys() - ours.keys())
        proof.check(not added, f"{path}: the file has {', '.join(added)}, which nothing gives")
        for key, value in ours.items():
            allowed = tolerances.get(key, absolute)
            inside = f"{path}.{key}"
            compare_figures(proof, value, theirs.get(key), inside, tolerances, allowed)
    elif isinstance(ours, list):
        num_stored = len(stored) if isinstance(stored, list) else None
        problem = f"{path}: {len(ours)} entries recomputed, not those of the file"
        if proof.check(num_stored == len(ours), problem):
            for at, value in enumerate(ours):
                inside = f"{path}[{at}]"
                compare_figures(proof, value, stored[at], inside, tolerances, absolute)
    else:
        same = bool(ours == stored)
        if isinstance(ours, float) and isinstance(stored, int | float):
            same = math.isclose(ours, stored, rel_tol=RELATIVE, abs_tol=absolute)
        proof.check(same, f"{path}: the file says {stored}, recomputed {ours}")
