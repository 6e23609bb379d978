"""Verdicts: what may be said of a difference, given the chance of training."""

from __future__ import annotations

import math
from statistics import mean, stdev

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from reproductions import record_of

from reproduction.findings import (
    FAILS,
    HOLDS,
    NOT_CLAIMED,
    NOT_RUN,
    STOPPED,
    UNMATCHED,
    UNRESOLVED,
    Records,
    gain_verdict,
    measure,
    verdict_of,
)
from reproduction.paper import MAIN, Comparison, Row
from reproduction.records import Record

T_95_OF_3 = 4.302652729911275
"""Student's quantile with two degrees of freedom, from a printed table."""

REFERENCE = Row("reference", "cont", 1_000, 3.1600)
ROW = Row("row", "disc-last-50k", 1_000, 3.1503, "reference")
TABLE = Comparison(name="test", title="", label="", rows=(REFERENCE, ROW))

deltas = st.lists(st.floats(-1, 1).map(lambda value: round(value, 6)), min_size=1, max_size=5)
published = st.floats(0.0001, 0.1).flatmap(lambda size: st.sampled_from([size, -size]))


def judged(
    own: dict[int, float], other: dict[int, float], *more: Record
) -> tuple[str, float | None, float | None]:
    """Verdict, difference and its error from one checkpoint a seed."""
    records = [record_of(ROW, seed, {1_000: bits}) for seed, bits in own.items()]
    records += [record_of(REFERENCE, seed, {1_000: bits}) for seed, bits in other.items()]
    measured = measure(TABLE, Records([*records, *more]))[1]
    return measured.verdict, measured.delta_bits, measured.delta_error


def test_by_hand() -> None:
    verdict, delta, error = judged(
        {17: 3.140, 29: 3.150, 43: 3.145}, {17: 3.150, 29: 3.162, 43: 3.159}
    )
    assert delta == pytest.approx(-0.012)
    assert error == pytest.approx(T_95_OF_3 * 0.002 / math.sqrt(3))
    assert verdict == HOLDS
    assert judged({17: 3.16, 29: 3.162, 43: 3.159}, {17: 3.15, 29: 3.15, 43: 3.145})[0] == FAILS
    assert judged({17: 3.14, 29: 3.17, 43: 3.15}, {17: 3.15, 29: 3.16, 43: 3.155})[0] == UNRESOLVED


@given(deltas, st.floats(0, 1), st.floats(0, 1), published)
def test_noise_only_ever_takes_a_verdict_away(
    values: list[float], error: float, more: float, theirs: float
) -> None:
    before = verdict_of(values, error, theirs)
    after = verdict_of(values, error + more, theirs)
    assert after in (before, UNRESOLVED)
    assert verdict_of(values, abs(mean(values)), theirs) == UNRESOLVED


@given(deltas, published)
def test_a_resolved_sign_is_the_published_one_or_it_is_not(
    values: list[float], theirs: float
) -> None:
    assume(abs(mean(values)) > 1e-6)
    assert verdict_of(values, 0.0, theirs) == (HOLDS if mean(values) * theirs > 0 else FAILS)
    assert verdict_of(values, 0.0, None) == ("better" if mean(values) < 0 else "worse")


def test_one_seed_has_the_noise_of_the_main_model() -> None:
    main = Row("main", MAIN, 1_000)
    seeds = [
        record_of(main, seed, {1_000: bits})
        for seed, bits in ((17, 3.140), (29, 3.144), (43, 3.142))
    ]
    width = T_95_OF_3 * math.sqrt(2) * stdev([3.140, 3.144, 3.142])
    assert judged({17: 3.14}, {17: 3.15}) == (UNRESOLVED, pytest.approx(-0.01), None)
    assert judged({17: 3.14}, {17: 3.15}, *seeds) == (
        UNRESOLVED,
        pytest.approx(-0.01),
        pytest.approx(width),
    )
    assert judged({17: 3.13}, {17: 3.15}, *seeds)[0] == HOLDS
    # Only seeds that both have are a pair.
    assert judged({17: 3.13, 29: 1.0}, {17: 3.15, 43: 9.0}, *seeds)[0] == HOLDS
    assert judged({17: 3.13}, {29: 3.15}, *seeds)[0] == NOT_RUN


def test_only_checkpoints_that_both_could_have_chosen_are_compared() -> None:
    own = [record_of(ROW, seed, {250: 3.10, 500: 3.15, 1_000: 3.30}) for seed in (17, 29)]
    other = [record_of(REFERENCE, seed, {500: 3.16, 1_000: 3.0, 5_000: 2.0}) for seed in (17, 29)]
    reference, row = measure(TABLE, Records([*own, *other]))
    assert reference.bits == pytest.approx(3.0)  # not 2.0, which is past the published step
    assert reference.best_steps == (1_000, 1_000)
    assert row.bits == pytest.approx(3.10)
    assert row.delta_bits == pytest.approx(3.15 - 3.0)
    assert row.at_published_step == pytest.approx(3.30)
    other = [record_of(REFERENCE, seed, {500: 3.16}, shortened="500 steps") for seed in (17, 29)]
    reference, row = measure(TABLE, Records([*own, *other]))
    assert row.delta_bits == pytest.approx(3.15 - 3.16)
    assert reference.shortened == "500 steps"


@pytest.mark.parametrize(
    ("own", "other", "windows", "verdict"),
    [
        (300, 50, 128, HOLDS),  # both whole
        (10, 10, 128, HOLDS),  # both shortened to one length
        (10, 50, 128, UNMATCHED),
        (300, 10, 128, UNMATCHED),
        (10, 10, 32, UNMATCHED),  # as many steps, fewer windows
    ],
)
def test_rows_of_different_published_lengths(
    own: int, other: int, windows: int, verdict: str
) -> None:
    reference = Row("reference", "cont", 50, 3.16)
    row = Row("row", "main-no-gap", 300, 3.15, "reference")
    table = Comparison(name="test", title="", label="", rows=(reference, row))
    records = [
        record_of(row, seed, {own: 3.0 + seed / 1e4}, windows_per_step=windows) for seed in (17, 29)
    ]
    records += [record_of(reference, seed, {other: 3.1 + seed / 1e4}) for seed in (17, 29)]
    assert measure(table, Records(records))[1].verdict == verdict


def test_what_is_too_short_is_not_claimed_and_what_is_missing_not_run() -> None:
    own = [record_of(ROW, seed, {1_000: 3.0}) for seed in (17, 29)]
    other = [record_of(REFERENCE, seed, {1_000: 3.1}, claimed=False) for seed in (17, 29)]
    assert measure(TABLE, Records([*own, *other]))[1].verdict == NOT_CLAIMED
    assert [each.verdict for each in measure(TABLE, Records([]))] == ["", NOT_RUN]
    assert measure(TABLE, Records(own))[1].verdict == NOT_RUN


def test_a_row_beyond_the_end_of_its_run_says_where_the_curve_turned() -> None:
    early = Row("early", "cont", 200, 3.2, "late", at_step=True)
    late = Row("late", "cont", 1_000, 3.1, at_step=True)
    table = Comparison(name="test", title="", label="", rows=(early, late))
    measured = measure(table, Records([record_of(early, 17, {100: 3.0, 200: 3.2, 300: 3.1})]))
    assert [(each.verdict, each.best_steps, each.bits) for each in measured] == [
        (STOPPED, (100,), 3.2),
        (STOPPED, (100,), None),
    ]


def test_of_several_lengths_the_longest_stands_for_a_run() -> None:
    short = record_of(ROW, 17, {10: 2.0}, key="short", claimed=False, windows_per_step=10_000)
    middle = record_of(ROW, 17, {500: 3.2}, key="middle")
    long = record_of(ROW, 17, {1_000: 3.1}, key="long")
    for records in ([short, middle, long], [long, middle, short]):
        assert Records(records).runs(ROW.experiment, "1h")[17].key == "long"


@given(st.floats(-1, 1), st.floats(0, 1), st.booleans())
def test_gains(low: float, width: float, in_paper: bool) -> None:
    verdict = gain_verdict((low, low + width), in_paper)
    if low > 0:
        assert verdict == (HOLDS if in_paper else "better")
    elif low + width < 0:
        assert verdict == (FAILS if in_paper else "worse")
    else:
        assert verdict == UNRESOLVED
    assert gain_verdict(None, in_paper) == UNRESOLVED
