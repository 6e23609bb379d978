"""Proofs (a) to (d), step by step: where cuts lie, what is damaged and compared there, and what is
said of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from auditing.leaky import CONTEXT, changed, daily_among_hours, make_pipeline
from auditing.markets import Market
from strategies import random_bars
from vaiom.auditing import leakage
from vaiom.auditing.pipeline import Bars, Pipeline, widest_model
from vaiom.auditing.proof import PASSED, AuditConfig, Proof
from vaiom.corpus.splits import SEALED, TRAIN, VALIDATION
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.corpus.tokenizer import Tokenizer
from vaiom.features.fields import MASK_BITS
from vaiom.features.quantities import MAX_LOG_MOVE
from vaiom.market.check import check_bars
from vaiom.market.folder import NUMBER_COLUMNS
from vaiom.training.experiment import TrainConfig

HOUR = np.timedelta64(1, "h")


@pytest.fixture(autouse=True)
def all_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vaiom.auditing.proof.MAX_FINDINGS", 10**6)


@pytest.fixture(scope="module")
def corpus(finished: Path) -> Corpus:
    return open_corpus(finished / "corpus")


def pipeline_of(kind: type[Pipeline] = Pipeline, **words: Any) -> Pipeline:
    return kind(None, widest_model(16), baselines=("frequency",), **words)


def test_a_leak_inside_bars_is_told_with_its_first_bar(simulated: Market) -> None:
    rows = sum(map(len, simulated.bars.values()))
    honest = leakage.prove_prices(simulated.bars)
    assert (honest.findings, honest.count) == ([], rows)
    spoiled = daily_among_hours(simulated.bars)
    says = []
    for symbol, frame in spoiled.items():
        leak = next(
            each for each in check_bars(symbol, frame).findings if "higher_timeframe" in each.kind
        )
        says.append(f"{symbol}: {leak.count} {leak.summary}, first {leak.examples[0]}")
    proof = leakage.prove_prices(spoiled)
    assert (proof.findings, proof.count) == (says, rows)


def test_other_faults_of_bars_are_no_leak(simulated: Market) -> None:
    symbol, frame = next(iter(simulated.bars.items()))
    spike = (
        pl.when(pl.int_range(pl.len()) == 2_000).then(pl.col("High") * 3).otherwise(pl.col("High"))
    )
    spoiled = frame.with_columns(High=spike)
    assert check_bars(symbol, spoiled).findings
    assert leakage.prove_prices({symbol: spoiled}).findings == []


@pytest.mark.parametrize("how", leakage.DAMAGES)
def test_damage_is_drawn_by_the_seed(how: str) -> None:
    """Prices and volumes in another order with a tenth of noise; the clock up to a thousand hours
    later; nothing.
    """
    bars = {"EURUSD": random_bars(40, 1), "XAUUSD": random_bars(30, 2)}
    cut = bars["EURUSD"]["Datetime"].to_numpy()[12]
    damaged = leakage.damage_after(bars, cut, how, np.random.default_rng(5))
    assert list(damaged) == list(bars)
    rng = np.random.default_rng(5)
    for symbol, frame in bars.items():
        kept, tail = frame[:13], frame[13:]
        if how == "scrambled":
            noise, order = np.exp(rng.normal(0, 0.1, len(tail))), rng.permutation(len(tail))
            numbers = tail.select(NUMBER_COLUMNS).to_numpy()[order] * noise[:, None]
            stamps = tail["Datetime"]
        elif how == "shifted":
            stamps, numbers = (
                tail["Datetime"] + timedelta(hours=int(rng.integers(1, 1_000))),
                tail[:, 1:].to_numpy(),
            )
        else:
            stamps, numbers = tail["Datetime"].clear(), np.empty((0, len(NUMBER_COLUMNS)))
        assert damaged[symbol][:13].equals(kept)
        assert damaged[symbol]["Datetime"][13:].to_list() == stamps.to_list()
        np.testing.assert_allclose(damaged[symbol][13:].select(NUMBER_COLUMNS).to_numpy(), numbers)


class Restless(Pipeline):
    """Notes the bars that it is asked about, and has other inputs each time."""

    asked: list[Bars]
    built: Corpus

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        self.asked.append(bars)
        return changed(self.built, cont=self.built.cont + len(self.asked))


class NeverAsked:
    name = "never"

    def predict_proba(self, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        raise AssertionError("short cuts ask no model")


def restless(bars: Bars, market: Market, predictor: Any = None) -> Restless:
    pipeline: Any = make_pipeline(market.splits, Restless, predictor)
    pipeline.asked, pipeline.built = [], make_pipeline(market.splits).corpus(bars)
    return pipeline


def test_random_cuts_lie_before_and_after_the_end_of_train_where_all_assets_have_begun(
    simulated: Market,
) -> None:
    first, *_, last = simulated.bars
    bars = {first: simulated.bars[first][:3_000], last: simulated.bars[last][1_000:3_100]}
    begun, end = bars[last]["Datetime"].to_numpy()[0], bars[last]["Datetime"].to_numpy()[-1]
    stamps = np.unique(np.concatenate([frame["Datetime"].to_numpy() for frame in bars.values()]))
    stamps = np.array([each for each in stamps.astype("datetime64[s]") if begun <= each < end])
    train_end = np.datetime64(simulated.splits.train_end)
    parts = [
        np.array([each for each in stamps if (each < train_end) is np.bool_(part)])
        for part in (True, False)
    ]
    parts = [part for part in parts if len(part)]
    rng = np.random.default_rng(4)
    cuts = [rng.choice(parts[number % len(parts)]) for number in range(5)]
    pipeline = restless(bars, simulated)
    proof = leakage.prove_future(
        pipeline, bars, pipeline.built, AuditConfig(cuts=5, rare_cuts=0, seed=4)
    )
    found = [
        re.fullmatch(r"\S+, (\w+) after (\S+): cont at \S+ changed", each)
        for each in proof.findings
    ]
    told = list(dict.fromkeys((each[1], each[2]) for each in found if each))
    assert told == [(how, str(cut)) for cut in cuts for how in leakage.DAMAGES]
    assert len(pipeline.asked) == 15
    assert proof.notes[0] == "5 cuts, 3 kinds of damage"
    assert proof.notes[1].startswith("0 short cuts: ")


def test_cuts_are_dealt_to_both_sides_of_the_end_of_train(simulated: Market) -> None:
    pipeline = restless(simulated.bars, simulated)
    proof = leakage.prove_future(
        pipeline, simulated.bars, pipeline.built, AuditConfig(cuts=4, rare_cuts=0, seed=1)
    )
    cuts = dict.fromkeys(
        each[1] for finding in proof.findings if (each := re.search(r"after (\S+):", finding))
    )
    inside = [np.datetime64(cut) < np.datetime64(simulated.splits.train_end) for cut in cuts]
    assert inside == [True, False, True, False]


def test_short_cuts_take_the_bars_around_each_rare_moment(simulated: Market) -> None:
    """Two at each kind, never the same; 64 rows before the first whole window, and 48 after the
    cut.
    """
    first, *_, last = simulated.bars
    bars = {first: simulated.bars[first][:400], last: simulated.bars[last][200:420]}
    pipeline = restless(bars, simulated, NeverAsked())
    proof = leakage.prove_future(
        pipeline, bars, pipeline.built, AuditConfig(cuts=0, rare_cuts=2, seed=7)
    )
    found = (
        re.fullmatch(r"\S+, (\w+) after (\S+) \((.*)\): cont at \S+ changed", each)
        for each in proof.findings
    )
    told = list(dict.fromkeys((each[3], each[2], each[1]) for each in found if each))
    moments = leakage.rare_moments(bars)
    assert [kind for kind, _, _ in told] == [
        kind for kind, places in moments.items() for _ in places[:2]
    ]
    assert len({(kind, cut) for kind, cut, _ in told}) == len(told)
    assert {how for _, _, how in told} == set(leakage.DAMAGES)
    kinds = "hours of the week, months, missing bars, week ends, holidays, ends of assets"
    assert proof.notes == ["0 cuts, 3 kinds of damage", f"{len(told)} short cuts: {kinds}"]
    for (kind, cut, how), old, new in zip(
        told, pipeline.asked[::2], pipeline.asked[1::2], strict=True
    ):
        moment = np.datetime64(cut)
        assert moment in moments[kind]
        known = {
            symbol: int((frame["Datetime"].to_numpy() <= moment).sum())
            for symbol, frame in bars.items()
        }
        assert list(old) == list(new) == [symbol for symbol in bars if known[symbol]]
        for symbol, frame in old.items():
            assert frame.equals(
                bars[symbol][max(0, known[symbol] - CONTEXT - 64) : known[symbol] + 48]
            )
            kept = int((frame["Datetime"].to_numpy() <= moment).sum())
            assert new[symbol][:kept].equals(frame[:kept])
            assert len(new[symbol]) == (kept if how == "deleted" else len(frame))


def frame_at(hours: list[int], missing: tuple[int, ...] = ()) -> pl.DataFrame:
    frame = random_bars(len(hours), 3)
    stamps = pl.Series(
        [datetime(2024, 1, 29) + timedelta(hours=hour) for hour in hours],
        dtype=frame["Datetime"].dtype,
    )
    gone = pl.Series([index in missing for index in range(len(hours))])
    return frame.with_columns(Datetime=stamps, Low=pl.when(~gone).then(pl.col("Low")))


def test_rare_moments_are_named_by_what_is_there() -> None:
    """A missing bar, a day, a night of 30 hours, long week ends of 84 and 85 hours, bars without
    prices.
    """
    hours = [
        *range(20),
        *range(21, 30),
        *range(53, 60),
        *range(89, 95),
        *range(178, 184),
        *range(268, 280),
    ]
    assert len(hours) == 60
    bars = {
        "AAA": frame_at(hours, missing=(3, 40)),
        "BBB": frame_at(list(range(47))),
        "CCC": frame_at(list(range(400, 448))),
    }
    found = leakage.rare_moments(bars)

    def told(kind: str) -> list[int]:
        start = np.datetime64("2024-01-29")
        return ((found[kind] - start) / HOUR).astype(int).tolist() if kind in found else []

    expected = {
        "AAA, a bar without prices": [3, hours[40]],
        "AAA, before a missing bar": [19, 29],
        "AAA, at a missing bar": [20, 30],
        "AAA, a week's last bar": [59, 94],
        "AAA, a week's first bar": [89, 178],
        "AAA, before a holiday": [183],
        "AAA, after a holiday": [268],
        "AAA, the asset's start": [hours[24]],
        "AAA, the asset's end": [hours[-2]],
        "CCC, the asset's start": [424],
        "CCC, the asset's end": [446],
    }
    for kind, moments in expected.items():
        assert told(kind) == moments, kind
    every = [hour for hour in (*hours, *range(400, 448)) if hour < 447]
    weekly: dict[str, list[int]] = {}
    for hour in every:  # a Monday begins four days after the epoch's Thursday
        weekly.setdefault(f"hour {(hour + 4 * 24) % (7 * 24)} of the week", []).append(hour)
        weekly.setdefault("in 2024-01" if hour < 72 else "in 2024-02", []).append(hour)
    for kind, moments in weekly.items():
        assert told(kind) == sorted(moments), kind
    assert found.keys() == expected.keys() | weekly.keys()


SAME: dict[str, tuple[list[Any], list[Any], str]] = {
    "equal": ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], ""),
    "nothing there": ([], [], ""),
    "not a number, twice": ([1.0, np.nan], [1.0, np.nan], ""),
    "not a number any more": ([1.0, np.nan, 3.0], [1.0, 2.0, 3.0], "x at 11 changed"),
    "not a number now": ([1.0, 2.0, 3.0], [1.0, 2.0, np.nan], "x at 12 changed"),
    "twice, the first is named": ([1.0, 2.0, 3.0], [0.0, 2.0, 0.0], "x at 10 changed"),
    "fewer": ([1.0, 2.0, 3.0], [1.0, 2.0], "x: 2 instead of 3"),
    "none": ([1.0], [], "x: 0 instead of 1"),
    "some where none were": ([], [1.0], "x: 1 instead of 0"),
    "tables": ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 5.0]], "x at 11 changed"),
    "the same tables": ([[1.0, np.nan], [3.0, 4.0]], [[1.0, np.nan], [3.0, 4.0]], ""),
}


@pytest.mark.parametrize("which", SAME)
def test_values_are_the_same_where_both_are_not_numbers(which: str) -> None:
    old, new, says = SAME[which]
    proof = Proof(claim=leakage.prove_future)
    leakage._check_same(proof, np.array(old), np.array(new), 10 + np.arange(len(old)), "x")
    assert proof.findings == ([says] if says else [])
    assert proof.count == len(old)


def test_what_is_known_at_a_cut(corpus: Corpus) -> None:
    """Rows up to the cut, targets that have come by then, and the events of each split
    among them.
    """
    splits = pipeline_of().splits(corpus)
    cut = corpus.timestamps[corpus.asset_slices["XAUUSD"]][2_100]
    for rows in corpus.asset_slices.values():
        known = leakage._known_at(corpus, splits, rows, cut)
        own = [row for row in range(rows.start, rows.stop) if corpus.timestamps[row] <= cut]
        settled = [row for row in own if corpus.target_timestamps[row] <= cut]
        assert 0 < len(settled) == len(own) - 1
        expected = {"timestamp": (own, corpus.timestamps[own])}
        expected |= {name: (own, getattr(corpus, name)[own]) for name in leakage.KNOWN}
        expected |= {
            f"target: {name.removeprefix('target_')}": (settled, getattr(corpus, name)[settled])
            for name in leakage.TARGETS
        }
        assert list(known) == [*expected, *(f"an event of {name}" for name in splits)]
        for name, (at, values) in expected.items():
            times = corpus.target_timestamps if name.startswith("target") else corpus.timestamps
            np.testing.assert_array_equal(known[name][1], values)
            np.testing.assert_array_equal(known[name][0][: len(at)], times[at])
        for name, split in splits.items():
            events = sorted(row for row in split.tolist() if row in set(settled))
            times, places = known[f"an event of {name}"]
            assert places.tolist() == [row - rows.start for row in events]
            np.testing.assert_array_equal(times, corpus.target_timestamps[events])


class Shown(Pipeline):
    """Notes the rows whose windows, of one row here, are compared."""

    rows: list[list[int]]

    def windows(self, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        self.rows.append(rows.tolist())
        return corpus.cont[rows]


class Lowest:
    """Draws the smallest number that it may, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    def integers(self, low: int, high: int, size: int) -> np.ndarray:
        self.asked.append((low, high, size))
        return np.full(size, low)


def compared(
    before: Corpus, after: Corpus, known: int, **words: Any
) -> tuple[Proof, list[list[int]], list[tuple[int, int, int]]]:
    """At a cut after so many rows of each asset."""
    pipeline: Any = pipeline_of(Shown, **words)
    pipeline.rows, rng, proof = [], Lowest(), Proof(claim=leakage.prove_future)
    cut: Any = before.timestamps[known - 1]
    leakage._compare(proof, pipeline, before, after, cut, "cut", rng)  # type: ignore[arg-type]
    return proof, pipeline.rows, rng.asked


@pytest.mark.parametrize(
    ("known", "own"),
    [
        (15, []),
        (16, [15]),
        (18, [15, 16, 17]),
        (24, [15, *range(16, 24)]),
        (100, [15, *range(92, 100)]),
    ],
)
def test_windows_next_to_a_cut_and_anywhere_before_it_are_compared(
    corpus: Corpus, known: int, own: list[int]
) -> None:
    start = corpus.asset_slices["XAUUSD"].start
    proof, rows, asked = compared(corpus, corpus, known)
    assert proof.findings == []
    assert rows == ([[*own, *(start + row for row in own)]] * 2 if own else [])
    assert asked == ([(15, known, 8)] * 2 if own else [])


def test_what_changed_is_named_with_its_row(corpus: Corpus) -> None:
    class Same:
        name = "same"

        def predict_proba(self, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
            return corpus.sigma20[rows][:, None]

    start = corpus.asset_slices["XAUUSD"].start
    sigma = corpus.sigma20.copy()
    sigma[[start + 97, start + 150]] += 1
    moved = replace(corpus, columns={**corpus.columns, "sigma20": sigma})
    after = changed(moved, cont=corpus.cont, extra=corpus.extra)
    at = corpus.timestamps[start + 97]
    for predictor, more in (
        (None, []),
        (Same(), [f"cut: probabilities of the row at {at} changed"]),
    ):
        proof, _, _ = compared(corpus, after, 100, predictor=predictor)
        assert proof.findings == [f"XAUUSD, cut: sigma20 at {at} changed", *more]
    cont = corpus.cont.copy()
    cont[start + 99, 0] += 1
    proof, _, _ = compared(corpus, changed(corpus, cont=cont), 100)
    at = corpus.timestamps[start + 99]
    assert proof.findings == [
        f"XAUUSD, cut: cont at {at} changed",
        f"cut: window of the row at {at} changed",
    ]


def test_rows_that_are_gone_are_counted_and_the_others_compared(
    finished: Path, corpus: Corpus
) -> None:
    after = make_pipeline(corpus.splits).corpus(
        {"XAUUSD": pl.read_parquet(finished / "bars/XAUUSD.parquet")}, corpus.tokenizer
    )
    start = corpus.asset_slices["XAUUSD"].start
    proof, rows, _ = compared(corpus, after, 100)
    assert proof.findings[0] == "EURUSD, cut: 0 rows up to the cut instead of 100"
    shown = [15, *range(92, 100)]
    assert rows == [[start + row for row in shown], shown]


class Fits(Pipeline):
    """What is fitted is all bars up to the end of Train, or some more, of which there must
    be some.
    """

    later, needed = timedelta(0), False

    def hashes(self, corpus: Corpus) -> dict[str, str]:
        end = corpus.splits.train_end
        seen = corpus.timestamps < np.datetime64(end + self.later)
        if self.needed and corpus.timestamps.max() < np.datetime64(end):
            raise ValueError("no bars to fit on\nreally none")
        return {"first": "1", "sum": repr(float(np.nansum(corpus.columns["log_ret"][seen])))}


class FitsOneMore(Fits):
    later = timedelta(hours=1)


class FitsOnLater(Fits):
    later, needed = timedelta(days=9), True


OTHERWISE = "later bars {}: sum was fitted otherwise"
NOTHING = "later bars deleted: nothing could be fitted: no bars to fit on"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Fits, []),
        (FitsOneMore, [OTHERWISE.format("deleted"), OTHERWISE.format("scrambled")]),
        (FitsOnLater, [NOTHING, OTHERWISE.format("scrambled")]),
    ],
)
def test_fits_know_nothing_of_the_first_bar_after_train(
    simulated: Market, kind: type[Pipeline], says: list[str]
) -> None:
    pipeline = make_pipeline(simulated.splits, kind)
    stamps = {np.datetime64(simulated.splits.train_end)} & set(
        next(iter(simulated.bars.values()))["Datetime"].to_numpy()
    )
    assert stamps, "a bar at the very end of Train"
    proof = leakage.prove_refit(pipeline, simulated.bars, pipeline.corpus(simulated.bars), 3)
    assert (proof.findings, proof.notes) == (says, ["first, sum"])
    assert proof.count == (3 if kind is FitsOnLater else 4)


def test_an_asset_that_begins_after_train_changes_no_fit_of_train(simulated: Market) -> None:
    end, (late, *_) = simulated.splits.train_end, simulated.bars
    bars = {**simulated.bars, late: simulated.bars[late].filter(pl.col("Datetime") >= end)}
    assert len(bars[late]) > CONTEXT
    pipeline = make_pipeline(simulated.splits)
    proof = leakage.prove_refit(pipeline, bars, pipeline.corpus(bars), 3)
    assert (proof.verdict, proof.findings) == (PASSED, [])


class Dealt(Pipeline):
    """Splits and draws as a test says."""

    own: Mapping[str, np.ndarray]
    drawn: Mapping[int, list[int]]

    def splits(self, corpus: Corpus) -> dict[str, np.ndarray]:
        return {**super().splits(corpus), **self.own}

    def sampler(self, corpus: Corpus) -> Any:
        honest = super().sampler(corpus)
        return SimpleNamespace(
            draw=lambda step: (
                np.array(self.drawn[step]) if step in self.drawn else honest.draw(step)
            )
        )


def chronology(corpus: Corpus, own: Mapping[str, Any], drawn: Mapping[int, list[int]]) -> Proof:
    pipeline: Any = pipeline_of(
        Dealt, train=TrainConfig(steps=3, micro_batch=4, num_micro_batches=2)
    )
    pipeline.own, pipeline.drawn = own, drawn
    return leakage.prove_chronology(pipeline, corpus)


def test_an_honest_chronology_is_counted_in_full(corpus: Corpus) -> None:
    proof, splits = chronology(corpus, {}, {}), pipeline_of().splits(corpus)
    sizes = [len(rows) for rows in splits.values()]
    assert (proof.findings, proof.notes) == ([], ["3 steps of the sampler"])
    assert proof.count == sum(sizes[:-1]) + sum(sizes) + sizes[0] + sum(sizes) + 3 * 2 * 8


def test_events_on_the_wrong_side_of_a_boundary_are_counted(corpus: Corpus) -> None:
    splits, times = pipeline_of().splits(corpus), corpus.target_timestamps
    end = np.datetime64(corpus.splits.train_end)
    valid = np.flatnonzero(corpus.valid_base & (np.arange(len(corpus)) % 2_400 >= 15))
    [at_end, *_] = [row for row in valid if times[row] == end]
    proof = chronology(corpus, {TRAIN: np.append(splits[TRAIN], at_end)}, {})
    assert proof.findings == [f"1 Train events have a target at or after {corpus.splits.train_end}"]
    first = splits[VALIDATION][times[splits[VALIDATION]].argmin()]
    proof = chronology(corpus, {TRAIN: np.append(splits[TRAIN], first)}, {})
    late = f"1 {TRAIN} events have a target at or after the first of {VALIDATION}"
    twice = "1 events of an asset and a target time are there more than once"
    assert proof.findings == [
        late,
        twice,
        f"1 Train events have a target at or after {corpus.splits.train_end}",
    ]


def test_events_that_are_lacking_are_counted(corpus: Corpus) -> None:
    splits, times = pipeline_of().splits(corpus), corpus.target_timestamps
    gone = splits["test-h2"][[3, 9]]
    proof = chronology(corpus, {"test-h2": np.setdiff1d(splits["test-h2"], gone)}, {})
    assert proof.findings == [f"test-h2 lacks 2 valid targets, the first at {times[gone[0]]}"]
    proof = chronology(corpus, {"test-h1": np.array([], int)}, {})
    assert proof.findings == [
        f"test-h1 lacks {len(splits['test-h1'])} valid targets, the first at "
        f"{times[splits['test-h1'][0]]}"
    ]


def test_windows_stay_in_their_asset_and_in_train(corpus: Corpus) -> None:
    start, times = corpus.asset_slices["XAUUSD"].start, corpus.target_timestamps
    end = np.datetime64(corpus.splits.train_end)
    [at_end, *_] = np.flatnonzero(times == end)
    assert chronology(corpus, {}, {1: [15, start + 15], 3: [at_end - 1]}).findings == []
    proof = chronology(corpus, {}, {1: [14, 15, start + 14, start + 15], 3: [start, start + 1, 2]})
    assert proof.findings == [
        f"step {step}: {count} windows begin before their asset" for step, count in ((1, 2), (3, 3))
    ]
    proof = chronology(corpus, {}, {2: [at_end - 1, at_end, at_end + 1], 3: [len(corpus) - 1]})
    outside = [
        f"step {step}: a window holds the target at {at}, after Train"
        for step, at in ((2, times[at_end]), (3, "NaT"))
    ]
    assert proof.findings == outside


def test_valid_targets_are_those_of_a_plain_loop(corpus: Corpus) -> None:
    """Moves that are there, not zero and not beyond the largest; clean rows, and next rows with
    prices.
    """
    ret, flags = corpus.columns["log_ret"].copy(), corpus.columns["flags"].copy()
    for at, value in (
        (500, 0.0),
        (510, MAX_LOG_MOVE),
        (520, -MAX_LOG_MOVE * 1.001),
        (530, np.nan),
        (540, np.inf),
    ):
        ret[at] = value
    for at, bit in ((600, "missing"), (620, next(name for name in MASK_BITS if name != "missing"))):
        flags[at] |= MASK_BITS[bit]
    spoiled = replace(corpus, columns={**corpus.columns, "log_ret": ret, "flags": flags})
    bounds = corpus.splits
    spans = {TRAIN: (datetime(1, 1, 1), bounds.train_end), VALIDATION: bounds.validation}
    spans |= dict(zip(bounds.test_names, bounds.tests, strict=True)) | {
        SEALED: (bounds.seal, datetime(9999, 1, 1))
    }
    for split, (begin, end) in spans.items():
        expected = []
        for rows in corpus.asset_slices.values():
            for row in range(rows.start + 39, rows.stop - 1):
                stamp = corpus.timestamps[row + 1].astype("datetime64[us]").item()
                moved = (
                    np.isfinite(ret[row + 1])
                    and ret[row + 1] != 0
                    and abs(ret[row + 1]) <= MAX_LOG_MOVE
                )
                clean = flags[row] == 0 and not flags[row + 1] & MASK_BITS["missing"]
                if moved and clean and begin <= stamp < end:
                    expected.append(row)
        assert leakage.valid_targets(spoiled, split, 40).tolist() == expected
        assert len(expected) > 250


class Swayed:
    """Answers evenly, but for something that only a company of others can have."""

    name = "swayed"

    def __init__(self, how: str) -> None:
        self.how, self.asked = how, list[list[int]]()

    def predict_proba(self, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        first, size, many = self.asked[0] if self.asked else [], len(rows), len(self.asked)
        self.asked.append(rows.tolist())
        probs = np.full((size, 16), 1 / 16)
        answer = np.nan if self.how == "nan" else 0.5
        wrong = {
            "order": many == 1,
            "half": many == 2,
            "other": many == 3,
            "alone": size == 1,
            "nan": size == 1,
        }
        if first and wrong.get(self.how):
            probs[0] = answer
        return probs


OF_NEIGHBOURS = {
    "": [],
    "order": ["1 of 192 events have other probabilities in another order"],
    "half": ["1 of 96 events have other probabilities with half of its neighbours"],
    "other": ["1 of 96 events have other probabilities with the other half"],
    "alone": ["12 of 12 events have other probabilities alone"],
    "nan": ["12 of 12 events have other probabilities alone"],
}


@pytest.mark.parametrize("how", OF_NEIGHBOURS)
def test_an_answer_does_not_depend_on_its_company(corpus: Corpus, how: str) -> None:
    predictor = Swayed(how)
    proof = leakage.prove_neighbours(pipeline_of(predictor=predictor), corpus, 2)
    assert (proof.findings, proof.count) == (OF_NEIGHBOURS[how], 192 + 96 + 96 + 12)
    together, order, half, other, *alone = predictor.asked
    assert together == sorted(set(together))
    assert order != together == sorted(order)
    assert [*half, *other] == together
    assert len(half) == 96
    assert len({row for [row] in alone}) == 12
    assert {row for [row] in alone} <= set(together)
    largest = {"": "0.0e+00", "nan": "0.0e+00"}.get(how, "4.4e-01")
    assert proof.notes == [f"largest difference of a probability {largest}, tolerance 1e-05"]


def test_few_events_are_all_asked_about(corpus: Corpus) -> None:
    few = {name: rows[:2] for name, rows in pipeline_of().splits(corpus).items()}
    predictor = Swayed("")
    pipeline: Any = pipeline_of(Dealt, predictor=predictor)
    pipeline.own, pipeline.drawn = few, {}
    proof = leakage.prove_neighbours(pipeline, corpus, 2)
    assert (proof.verdict, proof.count) == (PASSED, 8 + 4 + 4 + 8)
    assert sorted(row for [row] in predictor.asked[4:]) == predictor.asked[0]
