"""Copies and wrong clocks are found in returns alone; markets that are merely dull, or move together, are not."""

from __future__ import annotations

import numpy as np
import pytest

from vaiom.audit.leakage import Returns, prove_duplicates, prove_lead_lag
from vaiom.audit.proof import FAILED, NOT_RUN, PASSED

HOUR = 3_600
ROWS = 3_000


def returns_of(moves: np.ndarray, start: int = 0) -> Returns:
    return Returns(HOUR * (start + np.arange(len(moves))), moves)


def split_at(row: int) -> dict[str, tuple[np.int64, np.int64]]:
    return {"train": (np.int64(0), np.int64(HOUR * row - 1)), "test-h1": (np.int64(HOUR * row), np.int64(HOUR * 10**6))}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_copy_is_found_scaled_turned_and_with_noise(sign: int, noise: float) -> None:
    rng = np.random.default_rng(3)
    own, other = rng.standard_t(4, ROWS), rng.standard_t(4, ROWS)
    other[300:450] = 2 * sign * own[2_500:2_650] + noise * rng.normal(size=150)
    proof = prove_duplicates({"EURUSD": returns_of(own), "XAUUSD": returns_of(other)}, split_at(2_000))
    assert proof.verdict == FAILED
    assert "XAUUSD" in proof.findings[0]
    assert "(train)" in proof.findings[0]
    inside = prove_duplicates({"EURUSD": returns_of(own), "XAUUSD": returns_of(other)}, split_at(2_900))
    assert inside.verdict == PASSED
    assert "inside one split" in inside.notes[0]


def test_a_pegged_price_and_assets_that_move_together_are_no_copies() -> None:
    rng = np.random.default_rng(4)
    ticks = np.where(np.arange(ROWS) % 2, 1.0, -1.0) * rng.choice([1, 1, 1, 2], ROWS)
    own = rng.standard_t(4, ROWS)
    steady = np.where(np.arange(ROWS) % 2, 1.0, -1.0)
    market = {"USDHKD": ticks, "USDAED": steady, "EURUSD": own, "EURUSX": own + 0.01 * rng.normal(size=ROWS)}
    proof = prove_duplicates({symbol: returns_of(moves) for symbol, moves in market.items()}, split_at(2_000))
    assert proof.findings == []
    assert proof.verdict == PASSED


@pytest.mark.parametrize("hours", [0, 1, 7])
def test_an_asset_ahead_of_another_is_found_even_for_a_few_weeks(hours: int) -> None:
    rng = np.random.default_rng(5)
    shared, own = rng.normal(size=(2, ROWS))
    one, two = shared + own, shared - own / 2
    part = slice(1_000, 1_600)
    two[part] = np.roll(two, -hours)[part]
    proof = prove_lead_lag({"EURUSD": returns_of(one), "XAUUSD": returns_of(two)})
    assert proof.verdict == (FAILED if hours else PASSED)
    assert all(f"XAUUSD runs {hours} bars ahead of EURUSD" in finding for finding in proof.findings)


def test_a_short_copy_a_few_hours_early_is_named() -> None:
    one, two = np.random.default_rng(9).standard_t(4, (2, ROWS))
    two[1_000:1_120] = one[1_003:1_123]
    market = {"EURUSD": returns_of(one), "XAUUSD": returns_of(two)}
    proof = prove_duplicates(market, split_at(2_000))
    assert proof.verdict == PASSED
    assert proof.notes[0].startswith("inside one split, ")
    assert prove_duplicates(market, split_at(1_002)).verdict == FAILED


def test_days_follow_each_other_around_the_world() -> None:
    moves = np.random.default_rng(6).normal(size=(2, 300))
    days = {
        symbol: Returns(86_400 * np.arange(300), each) for symbol, each in zip(("US500", "JP225"), moves, strict=True)
    }
    proof = prove_lead_lag(days)
    assert proof.verdict == NOT_RUN
    assert "bars shorter than a day" in proof.notes[0]


def test_an_asset_that_follows_itself_is_ahead_of_nobody() -> None:
    """What is reported is between assets; a price that trends says nothing of the clocks."""
    own, other = np.random.default_rng(7).normal(size=(2, ROWS))
    trending = np.convolve(own, np.ones(8), "same")
    proof = prove_lead_lag({"EURUSD": returns_of(trending), "XAUUSD": returns_of(other)})
    assert proof.verdict == PASSED
    largest = float(proof.notes[-1].removeprefix("largest correlation ").split()[0])
    assert largest < 0.4


@pytest.mark.parametrize("hours", [25, 40, 64])
def test_no_lead_is_too_long_for_a_lag_and_too_short_for_a_copy(hours: int) -> None:
    one = np.random.default_rng(8).standard_t(4, ROWS)
    proof = prove_lead_lag({"EURUSD": returns_of(one), "XAUUSD": returns_of(np.roll(one, -hours))})
    assert f"XAUUSD runs {hours} bars ahead of EURUSD" in proof.findings[0]
