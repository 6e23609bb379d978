"""Copies and wrong clocks are found in returns alone; markets that are merely dull, or move
together, are not.
"""

from __future__ import annotations

from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vaiom.auditing.copies import (
    Returns,
    prove_duplicates,
    prove_lead_lag,
    returns_of_corpus,
    spans_of,
)
from vaiom.auditing.proof import FAILED, NOT_RUN, PASSED
from vaiom.corpus.store import open_corpus

HOUR = 3_600
ROWS = 3_000


def returns_of(moves: np.ndarray, start: int = 0) -> Returns:
    return Returns(HOUR * (start + np.arange(len(moves))), moves)


def split_at(row: int) -> dict[str, tuple[np.int64, np.int64]]:
    return {
        "train": (np.int64(0), np.int64(HOUR * row - 1)),
        "test-h1": (np.int64(HOUR * row), np.int64(HOUR * 10**6)),
    }


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_copy_is_found_scaled_turned_and_with_noise(sign: int, noise: float) -> None:
    rng = np.random.default_rng(3)
    own, other = rng.standard_t(4, ROWS), rng.standard_t(4, ROWS)
    other[300:450] = 2 * sign * own[2_500:2_650] + noise * rng.normal(size=150)
    proof = prove_duplicates(
        {"EURUSD": returns_of(own), "XAUUSD": returns_of(other)}, split_at(2_000)
    )
    assert proof.verdict == FAILED
    assert "XAUUSD" in proof.findings[0]
    assert "(train)" in proof.findings[0]
    inside = prove_duplicates(
        {"EURUSD": returns_of(own), "XAUUSD": returns_of(other)}, split_at(2_900)
    )
    assert inside.verdict == PASSED
    assert "inside one split" in inside.notes[0]


def test_a_pegged_price_and_assets_that_move_together_are_no_copies() -> None:
    rng = np.random.default_rng(4)
    ticks = np.where(np.arange(ROWS) % 2, 1.0, -1.0) * rng.choice([1, 1, 1, 2], ROWS)
    own = rng.standard_t(4, ROWS)
    steady = np.where(np.arange(ROWS) % 2, 1.0, -1.0)
    market = {
        "USDHKD": ticks,
        "USDAED": steady,
        "EURUSD": own,
        "EURUSX": own + 0.01 * rng.normal(size=ROWS),
    }
    proof = prove_duplicates(
        {symbol: returns_of(moves) for symbol, moves in market.items()}, split_at(2_000)
    )
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
        symbol: Returns(86_400 * np.arange(300), each)
        for symbol, each in zip(("US500", "JP225"), moves, strict=True)
    }
    proof = prove_lead_lag(days)
    assert proof.verdict == NOT_RUN
    assert "bars under a day" in proof.notes[0]


def test_markets_that_open_in_turn_follow_each_other() -> None:
    """Tokyo opens with what New York did; without stamps of both nothing tells a clock that is
    wrong from that.
    """
    rng, days, hours = np.random.default_rng(4), 500, np.arange(6)
    new_york, tokyo = rng.normal(size=(2, days, len(hours)))
    tokyo[1:, 0] += new_york[:-1].sum(axis=1)
    start = 24 * np.arange(days)[:, None]
    opens = {"AAPL": (14, new_york), "TOYOTA": (0, tokyo)}
    market = {
        symbol: Returns((HOUR * (start + first + hours)).ravel(), moves.ravel())
        for symbol, (first, moves) in opens.items()
    }
    assert prove_lead_lag(market).verdict == PASSED
    later = {
        "AAPL": market["AAPL"],
        "MSFT": Returns(market["AAPL"].seconds, np.roll(market["AAPL"].log_ret, -2)),
    }
    assert prove_lead_lag(later).verdict == FAILED


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


def test_moves_are_in_usual_sizes_and_large_ones_are_cut_off() -> None:
    seconds = np.arange(8)
    own = Returns(seconds, np.array([np.nan, 0.0, 2.0, -2.0, 4.0, -8.5, 1.0, -np.inf])).moves()
    assert own.seconds.tolist() == [2, 3, 4, 5, 6]
    assert own.log_ret.tolist() == [1.0, -1.0, 2.0, -4.0, 0.5]
    assert len(Returns(seconds[:2], np.array([0.0, np.nan])).moves().log_ret) == 0


def test_returns_and_spans_are_those_of_the_corpus(finished: Path) -> None:
    corpus = open_corpus(finished / "corpus")
    returns = returns_of_corpus(corpus)
    assert list(returns) == ["EURUSD", "XAUUSD"]
    for symbol, rows in corpus.asset_slices.items():
        np.testing.assert_array_equal(returns[symbol].seconds, corpus.columns["timestamp"][rows])
        np.testing.assert_array_equal(returns[symbol].log_ret, corpus.columns["log_ret"][rows])
    rows = np.array([70, 2_500, 30])
    times = corpus.columns["timestamp"][rows + 1]
    assert spans_of(corpus, {"some": rows, "none": rows[:0]}) == {
        "some": (times.min(), times.max())
    }


def similar(sizes: np.ndarray, correlation: float, rng: np.random.Generator) -> np.ndarray:
    """Other sizes that correlate so with these."""
    x, noise = sizes - sizes.mean(), rng.normal(size=len(sizes))
    noise -= noise.mean() + (noise @ x) / (x @ x) * x
    x, noise = x / np.sqrt(x @ x), noise / np.sqrt(noise @ noise)
    return 2 + 0.5 * np.sqrt(len(x)) * (correlation * x + np.sqrt(1 - correlation**2) * noise) / 2


@pytest.mark.parametrize(
    ("correlation", "verdict"), [(0.91, FAILED), (0.89, PASSED), (-0.95, PASSED)]
)
def test_a_copy_has_sizes_that_correlate_with_its_own(correlation: float, verdict: str) -> None:
    """Signs alone are no copy: sizes of 64 moves agree to nine tenths."""
    rng = np.random.default_rng(11)
    signs, sizes = rng.choice([-1.0, 1.0], 64), 1 + rng.random(64)
    other = similar(sizes, correlation, rng)
    assert (other > 0.1).all()
    assert (other < 4 * np.median(other)).all()
    market = {"EURUSD": returns_of(signs * sizes), "XAUUSD": returns_of(signs * other, start=500)}
    proof = prove_duplicates(market, split_at(100))
    assert (proof.verdict, proof.count) == (verdict, 2 + len(proof.findings))


def test_each_copy_is_told_once_with_times_and_splits() -> None:
    rng = np.random.default_rng(12)
    own, other, third = rng.standard_t(4, (3, 300))
    other[100:200] = own[20:120]
    third[200:300] = own[20:120]
    spans = {
        name: (np.int64(HOUR * first), np.int64(HOUR * last))
        for name, first, last in (
            ("train", 0, 20),
            ("validation", 100, 150),
            ("test-h1", 163, 163),
            ("late", 201, 999),
        )
    }
    market = {"A": returns_of(own), "B": returns_of(other), "C": returns_of(third)}
    alike: dict[int, list[tuple[str, int]]] = {}
    for symbol, each in market.items():
        up = each.log_ret > 0
        for place in range(len(up) - 63):
            own = up[place : place + 32]
            code = sum(1 << lag for lag in range(32) if own[lag] != own[0])
            alike.setdefault(code, []).append((symbol, place))
    expected: dict[tuple[str, ...], str] = {}
    for code in sorted(
        alike
    ):  # of several stretches of a pair of splits, that of the lowest signs is told
        for pair in pairwise(alike[code]):
            sizes = [
                np.abs(market[symbol].moves().log_ret[place : place + 64]) for symbol, place in pair
            ]
            if pair[0][1] == pair[1][1] or np.corrcoef(*sizes)[0, 1] < 0.9:
                continue
            told = []
            for symbol, place in pair:
                inside = next(
                    (n for n, span in spans.items() if span[0] <= HOUR * place <= span[1]),
                    "no split",
                )
                told.append(
                    (symbol, inside, f"{symbol} from {np.datetime64(HOUR * place, 's')} ({inside})")
                )
            copy = " comes again as ".join(text for *_, text in told)
            same = told[0][1] == told[1][1]
            expected.setdefault(
                tuple(part for symbol, inside, _ in told for part in (symbol, inside)),
                f"inside one split, {copy}" if same else copy,
            )
    inside_one = [text for text in expected.values() if text.startswith("inside")]
    proof = prove_duplicates(market, spans)
    assert sorted(proof.findings) == sorted(set(expected.values()) - set(inside_one))
    assert sorted(proof.notes[:-1]) == sorted(inside_one)
    kinds = {key[1::2] for key in expected}
    assert kinds >= {("train", "validation"), ("no split", "validation"), ("validation", "late")}
    assert proof.notes[-1] == "stretches of 64 moves"
    assert proof.count == 3 * (300 - 63) + len(proof.findings)


def reference_of_lead_lag(moves: dict[str, np.ndarray]) -> tuple[list[str], float, int]:
    """Hour by hour: correlations where both moved, over everything and in blocks of 500 bars."""
    symbols, size, found, largest, count = list(moves), len(next(iter(moves.values()))), [], 0.0, 0
    sizes = {
        symbol: np.clip(each / np.median(np.abs(each[each != 0])), -4, 4)
        for symbol, each in moves.items()
    }

    def correlate(one: np.ndarray, two: np.ndarray) -> tuple[float, int]:
        both = (one != 0) & (two != 0)
        x, y = one[both], two[both]
        return float(x @ y / np.sqrt(max((x @ x) * (y @ y), 1e-12))), int(both.sum())

    begins = (*range(0, size - 500, 500), max(0, size - 500))
    for begin, end in ((0, size), *((begin, begin + 500) for begin in begins)):
        part = {symbol: each[begin:end] for symbol, each in sizes.items()}
        for lag in range(1, 65):
            count += len(symbols) ** 2
            for leader, follower in permutations(symbols, 2):
                ahead, shared = correlate(part[leader][:-lag], part[follower][lag:])
                at_once, _ = correlate(part[leader], part[follower])
                largest = max(largest, abs(ahead))
                if shared >= 200 and abs(ahead) > max(6 / np.sqrt(shared), 2 * abs(at_once)):
                    since = np.datetime64(HOUR * begin, "s")
                    values = f"{ahead:+.2f}, at one stamp {at_once:+.2f}"
                    found.append(
                        f"{leader} runs {lag} bars ahead of {follower} from {since} on: "
                        f"correlation {values}"
                    )
    return found, largest, count


@pytest.mark.parametrize("seed", range(4))
def test_leads_are_those_of_a_plain_loop(seed: int) -> None:
    """Of many strengths near what is allowed, where few bars are shared, in all blocks and at all
    lags.
    """
    rng = np.random.default_rng(seed)
    one, two, three = rng.normal(size=(3, 1_300))
    for lag, share in zip(
        (1, 2, 5, 20, 63, 64, 65, *range(30, 45)), rng.uniform(0.1, 0.45, 22), strict=True
    ):
        two[lag:] += share * one[:-lag]
    two += 0.08 * one
    three[700:950] = two[702:952] + 0.7 * rng.normal(size=250)
    three[rng.random(1_300) < (0.3, 0.45, 0.5, 0.6)[seed]] = 0
    moves = {"A": one, "B": two, "C": three}
    expected, largest, count = reference_of_lead_lag(moves)
    proof = prove_lead_lag({symbol: returns_of(each) for symbol, each in moves.items()})
    of_blocks = [each for each in proof.findings if " from 19" in each]
    assert of_blocks == expected
    assert proof.count >= count
    assert proof.notes[0].startswith("largest correlation ")
    assert " at lags of 1 to 64 bars, in blocks of 500, on each weekday" in proof.notes[0]
    assert float(proof.notes[0].split()[2]) >= round(largest, 2)
    assert len(expected) > 3


AUTUMNS = ("2015-10-25", "2016-10-30", "2017-10-29", "2018-10-28")
"""The ends of European summer time; that of America ends a week later."""


def hours_of_years(years: int) -> np.ndarray:
    return np.arange(np.datetime64("2015"), np.datetime64(str(2015 + years)), dtype="datetime64[h]")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda day: (day.astype(int) + 3) % 7 == 4, "on Fridays"),
        (
            lambda day: np.isin(
                day,
                [np.datetime64(start) + days for start in AUTUMNS for days in range(7)],
            ),
            "in the weeks of autumn with summer time on one side of the Atlantic alone",
        ),
    ],
)
def test_a_clock_that_is_wrong_on_a_weekday_or_between_changes_of_clocks_is_found(
    wrong: Any, told: str
) -> None:
    hours = hours_of_years(4)
    rng = np.random.default_rng(3)
    shared, own = rng.normal(size=(2, len(hours)))
    one, two = shared + own / 2, shared - own / 2
    early = np.where(wrong(hours.astype("datetime64[D]")), np.roll(two, -1), two)
    seconds = hours.astype("datetime64[s]").astype(np.int64)
    honest = prove_lead_lag({"EURUSD": Returns(seconds, one), "XAUUSD": Returns(seconds, two)})
    assert honest.findings == []
    proof = prove_lead_lag({"EURUSD": Returns(seconds, one), "XAUUSD": Returns(seconds, early)})
    assert [each.split(": ")[0] for each in proof.findings] == [
        f"XAUUSD runs 1 bars ahead of EURUSD {told}"
    ]


@pytest.mark.parametrize("bars", [2_400, 2_500, 2_501])
def test_a_clock_that_is_wrong_of_late_is_found(bars: int) -> None:
    """In the newest bars alone, however many whole blocks came before."""
    one = np.random.default_rng(2).normal(size=bars)
    other = np.concatenate([one[:-400], np.roll(one[-400:], -3)])
    proof = prove_lead_lag({"A": returns_of(other), "B": returns_of(one)})
    assert [each[:24] for each in proof.findings][-1:] == ["A runs 3 bars ahead of B"]


@pytest.mark.parametrize(("bars", "found"), [(203, True), (202, False)])
def test_a_lead_is_one_of_two_hundred_bars(bars: int, found: bool) -> None:
    one = np.random.default_rng(2).normal(size=bars)
    proof = prove_lead_lag({"A": returns_of(np.roll(one, -3)), "B": returns_of(one)})
    everything_and_the_block = 2
    assert [each[:24] for each in proof.findings] == [
        "A runs 3 bars ahead of B"
    ] * found * everything_and_the_block


def test_one_asset_and_days_are_not_run() -> None:
    why = "not run: needs several assets, and bars under a day: markets of one day close in turn"
    for symbols, step, notes in (("A", HOUR, [why]), ("AB", 86_400, [why]), ("AB", 86_399, [])):
        moves = np.random.default_rng(1).normal(size=(2, 300))
        market = {
            symbol: Returns(step * np.arange(300), moves["AB".index(symbol)]) for symbol in symbols
        }
        proof = prove_lead_lag(market)
        assert (proof.notes == notes, proof.count == 0) == (
            (True, True) if notes else (False, False)
        )


def test_few_bars_have_few_lags() -> None:
    moves = np.random.default_rng(1).normal(size=(2, 40))
    proof = prove_lead_lag({"A": returns_of(moves[0]), "B": returns_of(moves[1])})
    everything_and_the_block = 2
    assert (proof.findings, proof.count) == ([], 39 * 4 * everything_and_the_block)
