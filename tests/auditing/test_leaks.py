"""A sample of planted leaks, each caught by its proof; `verification/leaks` has all of them."""

from __future__ import annotations

import pytest

from vaiom.auditing.proof import PASSED
from verification.leaks.leaky import (
    AUDIT,
    LEAKS,
    Leak,
    audit_pipeline,
    failed_proofs,
    make_pipeline,
)
from verification.leaks.markets import Market

SAMPLE = (
    "edges fitted on all data",
    "a centred EWMA",
    "a target longer than its stamp says",
    "a model that normalises over its batch",
    "a look ahead on first Fridays",
    "a look ahead on one day of the year",
    "large test moves dropped",
    "test bars a year before",
    "one asset stamped early",
    "one asset early on Fridays",
)


def test_the_honest_pipeline_passes(simulated: Market) -> None:
    proofs = audit_pipeline(make_pipeline(simulated.splits), simulated.bars, AUDIT)
    assert {proof.name: proof.findings for proof in proofs if proof.verdict != PASSED} == {}


@pytest.mark.parametrize(
    "leak", [leak for leak in LEAKS if leak.name in SAMPLE], ids=lambda leak: leak.name
)
def test_a_leak_is_caught(leak: Leak, simulated: Market) -> None:
    assert leak.caught_by in failed_proofs(simulated, leak)
