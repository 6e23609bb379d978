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

from strategies import random_bars
from vaiom.auditing import chronology, leakage
from vaiom.auditing.cuts import DAMAGES, calendar_moments, damage_after, rare_moments
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
from verification.leaks.leaky import CONTEXT, changed, daily_among_hours, make_pipeline
from verification.leaks.markets import Market

HOUR = np.timedelta64(1, "h")


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


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_drawn_by_the_seed(how: str) -> None:
    """Prices and volumes in another order with a tenth of noise; the clock up to a thousand hours
    later; nothing.
    """
    bars = {"EURUSD": random_bars(40, 1), "XAUUSD": random_bars(30, 2)}
    cut = bars["EURUSD"]["Datetime"].to_numpy()[12]
    damaged = damage_after(bars, cut, how, np.random.default_rng(5))
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
        elif how == "mirrored":
            last, columns = frame["Close"][12], ["Open", "Low", "High", "Close"]
            mirrored = np.exp(9 * np.log(last) - 8 * np.log(tail.select(columns).to_numpy()))
            numbers = np.column_stack([mirrored, 8 * tail["Volume"].to_numpy()])
            stamps = tail["Datetime"]
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
    assert told == [(how, str(cut)) for cut in cuts for how in DAMAGES]
    assert len(pipeline.asked) == 20
    assert proof.notes[0] == "5 cuts, 4 kinds of damage"
    assert len(proof.notes) == 1


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
    rare = rare_moments(bars)
    moments = rare | calendar_moments(bars)
    short_cuts = list(dict.fromkeys((kind, cut) for kind, cut, _ in told))
    assert [kind for kind, _ in short_cuts] == [
        kind for kind, places in moments.items() for _ in places[:2]
    ]
    damages = {cut: {how for *own, how in told if (*own,) == cut} for cut in short_cuts}
    assert all("mirrored" in own for own in damages.values())
    assert all(own == {"mirrored"} for (kind, _), own in damages.items() if kind not in rare)
    assert {how for _, _, how in told} == set(DAMAGES)
    assert proof.notes[0] == "0 cuts, 4 kinds of damage"
    assert proof.notes[1].startswith(f"{len(short_cuts)} short cuts: hours of the week and of each")
    asked = iter(pipeline.asked)
    for kind, cut in short_cuts:
        moment = np.datetime64(cut)
        assert moment in moments[kind]
        known = {
            symbol: int((frame["Datetime"].to_numpy() <= moment).sum())
            for symbol, frame in bars.items()
        }
        old = next(asked)
        before = 64 + (CONTEXT if kind in rare else 0)
        assert list(old) == [symbol for symbol in bars if known[symbol]]
        for symbol, frame in old.items():
            assert frame.equals(bars[symbol][max(0, known[symbol] - before) : known[symbol] + 48])
        for _ in range(2 if kind in rare else 1):
            new = next(asked)
            assert list(new) == list(old)
            for symbol, frame in old.items():
                kept = int((frame["Datetime"].to_numpy() <= moment).sum())
                assert new[symbol][:kept].equals(frame[:kept])
                assert len(new[symbol]) in (kept, len(frame))
    assert next(asked, None) is None


def test_calendar_moments_are_hours_of_weeks_of_a_month_and_days_of_the_year() -> None:
    bars = {"AAA": frame_at(list(range(800)))}  # from Monday, 29 January 2024
    found = calendar_moments(bars)
    assert found["Friday 13:00 in week 1 of a month"].astype(str).tolist() == [
        "2024-02-02T13:00:00.000000",
        "2024-03-01T13:00:00.000000",
    ]
    assert len(found["on 02-29"]) == 24
    # The last bar has none after it.
    assert len(found["on 03-02"]) == 800 - 33 * 24 - 1
    assert len(found) == 34 + len({key for key in found if "week" in key})
    january_and_february = 3 + 29
    assert len({key for key in found if "week" in key}) == 24 * january_and_february


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
    found = rare_moments(bars)

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


class Lately(Pipeline):
    """Builds another corpus from bars that were damaged, and notes which windows are asked for."""

    after: Corpus
    shown: list[list[int]]

    def corpus(self, bars: Bars, tokenizer: Tokenizer | None = None) -> Corpus:
        return self.after

    def windows(self, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
        self.shown.append(rows.tolist())
        return super().windows(corpus, rows)


def compared(before: Corpus, after: Corpus, **words: Any) -> tuple[Proof, Any, np.datetime64]:
    """The proof at one cut of each kind of damage, the pipeline, and the cut."""
    pipeline: Any = pipeline_of(Lately, **words)
    pipeline.after, pipeline.shown = after, []
    frame = random_bars(40, 1)
    config = AuditConfig(cuts=1, rare_cuts=0, seed=6)
    proof = leakage.prove_future(pipeline, {"EURUSD": frame}, before, config)
    ends = [rows[len(rows) // 2 - 1] for rows in pipeline.shown]
    return proof, pipeline, before.timestamps[max(ends)]


def with_values(corpus: Corpus, name: str, values: np.ndarray) -> Corpus:
    if name in corpus.columns:
        return replace(corpus, columns={**corpus.columns, name: values})
    return changed(corpus, **{name: values})


def test_everything_that_was_known_at_a_cut_is_compared(corpus: Corpus) -> None:
    """Changes before it are named with their first row or target, changes after it are not."""
    _, _, cut = compared(corpus, corpus)
    asset = corpus.asset_slices["XAUUSD"]
    last = asset.start + int((corpus.timestamps[asset] <= cut).sum()) - 1
    for name in (*leakage.KNOWN, *leakage.TARGETS):
        honest = getattr(corpus, name)
        is_target = name in leakage.TARGETS
        first_unknown = last if is_target else last + 1
        times = corpus.target_timestamps if is_target else corpus.timestamps
        for rows, found in (
            ([asset.start + 97, asset.start + 150], True),
            ([first_unknown - 1], True),
            ([first_unknown, asset.stop - 1], False),
        ):
            values = np.array(honest)
            values[rows] = 1 - values[rows] if values.dtype == bool else values[rows] + 1
            proof, _, _ = compared(corpus, with_values(corpus, name, values))
            told = [each for each in proof.findings if each.startswith("XAUUSD")]
            shown = f"target: {name.removeprefix('target_')}" if is_target else name
            says = f": {shown} at {times[rows[0]]} changed"
            assert any(each.endswith(says) for each in told) == found, (name, rows)
            assert bool(told) == found, (name, rows)


def test_values_are_the_same_where_both_are_not_numbers(corpus: Corpus) -> None:
    row = corpus.asset_slices["XAUUSD"].start + 97
    missing = corpus.sigma20.copy()
    missing[row] = np.nan
    without = with_values(corpus, "sigma20", missing)
    says = f"sigma20 at {corpus.timestamps[row]} changed"
    for before, after, found in (
        (without, without, False),
        (corpus, without, True),
        (without, corpus, True),
    ):
        proof, _, _ = compared(before, after)
        assert any(says in each for each in proof.findings) == found


def test_windows_and_forecasts_next_to_a_cut_and_before_it_are_compared(corpus: Corpus) -> None:
    class Peeking:
        name = "peeking"

        def predict_proba(self, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
            return corpus.log_ret_next[rows][:, None]

    honest, pipeline, cut = compared(corpus, corpus)
    assert honest.findings == []
    for rows in pipeline.shown:
        for asset in corpus.asset_slices.values():
            own = [row for row in rows if asset.start <= row < asset.stop]
            last = asset.start + int((corpus.timestamps[asset] <= cut).sum()) - 1
            assert own == sorted(set(own))
            assert own[-8:] == list(range(last - 7, last + 1))
            assert asset.start + 15 <= own[0] < last - 7
    later = corpus.timestamps > cut
    log_ret = np.where(later, 9.0, corpus.columns["log_ret"])
    after = replace(corpus, columns={**corpus.columns, "log_ret": log_ret})
    proof, _, _ = compared(corpus, after, predictor=Peeking())
    told = [each for each in proof.findings if "probabilities of the row at" in each]
    assert len(told) == len(DAMAGES)


def test_rows_that_are_gone_are_counted_and_the_others_compared(
    finished: Path, corpus: Corpus
) -> None:
    bars = {"XAUUSD": pl.read_parquet(finished / "bars/XAUUSD.parquet")}
    after = make_pipeline(corpus.splits).corpus(bars, corpus.tokenizer)
    proof, pipeline, _ = compared(corpus, after)
    assert re.search(r"EURUSD, .*: 0 rows up to the cut instead of \d+", proof.findings[0])
    start = corpus.asset_slices["XAUUSD"].start
    for old, new in zip(pipeline.shown[::2], pipeline.shown[1::2], strict=True):
        assert old == [start + row for row in new]


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


def chronology_of(corpus: Corpus, own: Mapping[str, Any], drawn: Mapping[int, list[int]]) -> Proof:
    pipeline: Any = pipeline_of(
        Dealt, train=TrainConfig(steps=3, micro_batch=4, num_micro_batches=2)
    )
    pipeline.own, pipeline.drawn = own, drawn
    return chronology.prove_chronology(pipeline, corpus)


def test_an_honest_chronology_is_counted_in_full(corpus: Corpus) -> None:
    proof, splits = chronology_of(corpus, {}, {}), pipeline_of().splits(corpus)
    sizes = [len(rows) for rows in splits.values()]
    assert (proof.findings, proof.notes) == ([], ["3 steps of the sampler"])
    assert proof.count == sum(sizes[:-1]) + sum(sizes) + sizes[0] + sum(sizes) + 3 * 2 * 8


def test_events_on_the_wrong_side_of_a_boundary_are_counted(corpus: Corpus) -> None:
    splits, times = pipeline_of().splits(corpus), corpus.target_timestamps
    end = np.datetime64(corpus.splits.train_end)
    valid = np.flatnonzero(corpus.valid_base & (np.arange(len(corpus)) % 2_400 >= 15))
    [at_end, *_] = [row for row in valid if times[row] == end]
    proof = chronology_of(corpus, {TRAIN: np.append(splits[TRAIN], at_end)}, {})
    assert proof.findings == [f"1 Train events have a target at or after {corpus.splits.train_end}"]
    first = splits[VALIDATION][times[splits[VALIDATION]].argmin()]
    proof = chronology_of(corpus, {TRAIN: np.append(splits[TRAIN], first)}, {})
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
    proof = chronology_of(corpus, {"test-h2": np.setdiff1d(splits["test-h2"], gone)}, {})
    assert proof.findings == [f"test-h2 lacks 2 valid targets, the first at {times[gone[0]]}"]
    proof = chronology_of(corpus, {"test-h1": np.array([], int)}, {})
    assert proof.findings == [
        f"test-h1 lacks {len(splits['test-h1'])} valid targets, the first at "
        f"{times[splits['test-h1'][0]]}"
    ]


def test_windows_stay_in_their_asset_and_in_train(corpus: Corpus) -> None:
    start, times = corpus.asset_slices["XAUUSD"].start, corpus.target_timestamps
    end = np.datetime64(corpus.splits.train_end)
    [at_end, *_] = np.flatnonzero(times == end)
    assert chronology_of(corpus, {}, {1: [15, start + 15], 3: [at_end - 1]}).findings == []
    proof = chronology_of(
        corpus, {}, {1: [14, 15, start + 14, start + 15], 3: [start, start + 1, 2]}
    )
    assert proof.findings == [
        f"step {step}: {count} windows begin before their asset" for step, count in ((1, 2), (3, 3))
    ]
    proof = chronology_of(corpus, {}, {2: [at_end - 1, at_end, at_end + 1], 3: [len(corpus) - 1]})
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
        assert chronology.valid_targets(spoiled, split, 40).tolist() == expected
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
    proof = chronology.prove_neighbours(pipeline_of(predictor=predictor), corpus, 2)
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
    proof = chronology.prove_neighbours(pipeline, corpus, 2)
    assert (proof.verdict, proof.count) == (PASSED, 8 + 4 + 4 + 8)
    assert sorted(row for [row] in predictor.asked[4:]) == predictor.asked[0]
