"""Forecasts on record: lines that hold together, and evidence that chance alone does not make."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count, product
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vaiom.forecast.ledger
from distribution.test_distribution import distribution
from vaiom.errors import DataError
from vaiom.files import FolderInUseError, sha256_of
from vaiom.forecast.ledger import Commitment, ForecastLedger, Settlement, e_value, read_ledger

NOW = datetime(2025, 1, 6, 10)
SHARES = st.lists(st.floats(1e-6, 1), min_size=3, max_size=3).map(
    lambda raw: np.array(raw) / sum(raw)
)


@given(SHARES, SHARES, SHARES)
def test_a_model_that_knows_nothing_more_gains_nothing_on_average(
    truth: np.ndarray, first: np.ndarray, second: np.ndarray
) -> None:
    """Exactly: over all outcomes of two bars that follow the baseline the mean is 1 at most,
    whatever it says.
    """
    for apart in (timedelta(0), timedelta(hours=1)):  # of one stamp, or of two
        mean = 0.0
        for one, other in product(range(3), repeat=2):
            ours, theirs = (
                -np.log2([a[one], b[other]]) for a, b in ((first, second), (truth, truth))
            )
            mean += (
                truth[one]
                * truth[other]
                * e_value([NOW, NOW + apart], ours.tolist(), theirs.tolist())
            )
        assert mean <= 1 + 1e-9


@given(*[st.floats(0.01, 9)] * 4)
def test_assets_that_move_together_make_no_evidence_of_chance(
    gain: float, loss: float, low: float, high: float
) -> None:
    """Two outcomes, of which the model takes one better, so probable that it gains nothing: two
    assets share each.
    """
    ours, theirs = np.array([low, high + loss]), np.array([low + gain, high])
    gains = theirs + np.log2((1 - 1 / 64) * 2.0**-ours + 1 / 64 * 2.0**-theirs)
    if gains[0] <= 0 <= gains[1] or gains[0] <= gains[1]:
        return
    truth = np.array([-gains[1], gains[0]]) / (gains[0] - gains[1])
    mean = sum(
        truth[each] * e_value([NOW, NOW], [ours[each]] * 2, [theirs[each]] * 2) for each in range(2)
    )
    assert mean <= 1 + 1e-9


def test_what_is_tested_is_the_mixture_and_not_its_rare_misses() -> None:
    """A model that gains a little and, rarely, loses forty bits is worse, and its mixture with the
    baseline better.
    """
    stamps = [NOW + timedelta(hours=hour) for hour in range(4_000)]
    theirs, ours = np.full(4_000, 4.0), np.full(4_000, 3.95)
    ours[::400] = 39.8
    assert theirs.mean() < ours.mean()
    assert e_value(stamps, ours.tolist(), theirs.tolist()) > 20


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(0, 20), st.floats(0, 20)), min_size=1, max_size=9
    )
)
def test_the_e_value_is_the_mean_wealth_of_eight_gamblers(
    bars: list[tuple[int, float, float]],
) -> None:
    """By a plain loop: each stakes its share at every stamp on the mean gain of that stamp's
    assets, hedged.
    """
    gains: dict[int, list[float]] = {}
    for hour, ours, theirs in bars:
        mixture = 63 / 64 * 2.0**-ours + 1 / 64 * 2.0**-theirs
        gains.setdefault(hour, []).append(theirs + math.log2(mixture))
    wealths = []
    for halvings in range(8):
        wealth = 1.0
        for each in gains.values():
            wealth *= 1 + 0.9 * 0.5**halvings * sum(each) / len(each) / 6
        wealths.append(wealth)
    hours, ours, theirs = zip(*bars, strict=True)
    got = e_value([NOW + timedelta(hours=hour) for hour in hours], ours, theirs)
    assert got == pytest.approx(sum(wealths) / 8, rel=1e-9)


def test_a_better_model_gathers_evidence_and_a_worse_one_none() -> None:
    draw = np.random.default_rng(0)
    stamps = [NOW + timedelta(hours=hour) for hour in range(1_000)]
    better = draw.normal(3.1, 1.0, 1_000).clip(0.01)
    baseline = draw.normal(3.3, 1.0, 1_000).clip(0.01)
    assert e_value(stamps, better.tolist(), baseline.tolist()) > 100
    assert e_value(stamps, baseline.tolist(), better.tolist()) < 1
    assert e_value(stamps, [0.0] * 1_000, [9.0] * 1_000) == math.exp(
        690
    )  # a number that JSON can hold


def written(file: Path, number: int) -> ForecastLedger:
    ledger = ForecastLedger(file, "model", clock=lambda: NOW)
    for hour in range(number):
        bits = {"model_bits": 3.0, "frequency_bits": 3.25}
        at, then = (NOW + timedelta(hours=each) for each in (hour, hour + 1))
        ledger.settle(Settlement(symbol="EURUSD", as_of=at, target_time=then, **bits))
    return ledger


def test_lines_hold_together(tmp_path: Path) -> None:
    file = tmp_path / "new" / "ledger.jsonl"
    ledger = written(file, 3)
    assert ledger.head == sha256_of(file.read_bytes())
    assert {json.loads(line)["time"] for line in file.read_bytes().splitlines()} == {
        NOW.isoformat()
    }
    value = ledger.e_value
    written_again(ledger)  # a bar that is not scored
    assert (
        value
        == ledger.e_value
        == e_value([NOW + timedelta(hours=hour) for hour in (1, 2, 3)], [3.0] * 3, [3.25] * 3)
    )
    with pytest.raises(FolderInUseError):
        ForecastLedger(file, "model")
    ledger.close()
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    # A kill in the middle of a line: it is cut off, and the ledger goes on.
    file.write_bytes(whole + lines[0][:40])
    again = ForecastLedger(file, "model")
    assert (again.e_value, file.read_bytes()) == (value, whole)
    again.close()
    for changed in (
        whole.replace(b"3.25", b"3.26", 1),
        b"".join(lines[1:]),
        b"".join([lines[0], lines[2]]),
        whole + b"{}\n",
        lines[0] + b"\r" + lines[1] + lines[2],
        whole + b"[]\n",
        *(
            whole
            + json.dumps({**json.loads(lines[2]), "previous": ledger.head, **wrong}).encode()
            + b"\n"
            for wrong in (
                {"symbol": 3},
                {"model_bits": math.nan},
                {"frequency_bits": math.inf},
                {"time": math.nan},
                {"time": "yesterday"},
                {"model_bits": -0.5},
                {"frequency_bits": -0.5},
                {"as_of": "2025-01-06T10:00:00+00:00"},
            )
        ),
    ):
        file.write_bytes(changed)
        assert None in [entry for _, entry in read_ledger(file)]
        with pytest.raises(DataError, match="was changed"):
            ForecastLedger(file, "model")
        assert file.read_bytes() == changed


@pytest.mark.parametrize("wrong", [{"probs": [0.5, math.nan]}, {"sigma": math.inf}])
def test_a_forecast_has_finite_numbers(wrong: dict[str, Any], tmp_path: Path) -> None:
    """Also where its line continues the chain: nobody could read it again as JSON."""
    sound = {
        "symbol": "EURUSD",
        "as_of": NOW.isoformat(),
        "model": "model",
        "sigma": 0.01,
        "probs": [0.5, 0.5],
    }
    entry = {
        "time": NOW.isoformat(),
        "kind": "forecast",
        **sound,
        "missing_assets": [],
        "previous": sha256_of(b""),
    }
    for change, expected in (({}, False), (wrong, True)):
        (tmp_path / "ledger.jsonl").write_text(json.dumps({**entry, **change}) + "\n")
        assert (
            [entry for _, entry in read_ledger(tmp_path / "ledger.jsonl")] == [None]
        ) is expected


@pytest.mark.parametrize("reads", [True, False])
def test_a_reader_and_a_writer_are_in_each_others_way_at_no_line(
    reads: bool, tmp_path: Path
) -> None:
    """The service asks for the e-value in one thread and records in another."""
    ledger, hours = written(tmp_path / "ledger.jsonl", 3), count(3)

    def settle() -> None:
        hour = next(hours)
        at, then = (NOW + timedelta(hours=each) for each in (hour, hour + 1))
        bits = {"model_bits": 3.0, "frequency_bits": 3.0 + hour / 100}
        ledger.settle(Settlement(symbol="EURUSD", as_of=at, target_time=then, **bits))

    def read() -> None:
        assert ledger.e_value is not None

    here, other = (read, settle) if reads else (settle, read)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and not (reads and next(turns) > 9):
            other()
        return trace if frame.f_code.co_filename == vaiom.forecast.ledger.__file__ else None

    before, turns = sys.gettrace(), count()
    sys.settrace(trace)
    try:
        here()
    finally:
        sys.settrace(before)
    number = next(hours)
    assert number > 3
    gains = [0.25] * 3 + [hour / 100 for hour in range(3, number)]
    stamps = [NOW + timedelta(hours=hour + 1) for hour in range(number)]
    assert ledger.e_value == pytest.approx(
        e_value(stamps, [3.0] * number, [3.0 + gain for gain in gains]), rel=1e-12
    )


@pytest.mark.parametrize("text", [b"my only copy of something", b'{"name": "value"}', b"\0\0x"])
def test_a_file_that_is_no_ledger_is_left_as_it_is(text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    file.write_bytes(text)
    with pytest.raises(DataError, match="no ledger"):
        ForecastLedger(file, "model")
    assert file.read_bytes() == text


def test_a_line_of_which_a_power_cut_kept_the_end_is_cut_off(tmp_path: Path) -> None:
    """Blocks reach the disk in any order: what did not is zeros."""
    ledger = written(tmp_path / "ledger.jsonl", 2)
    ledger.close()
    whole = ledger.file.read_bytes()
    first = whole.index(b"\n") + 1
    ledger.file.write_bytes(whole[: first + 40] + bytes(60) + whole[first + 100 :])
    again = ForecastLedger(ledger.file, "model")
    assert ledger.file.read_bytes() == whole[:first]
    again.close()


def test_what_could_not_be_cut_off_is_before_the_next_line(tmp_path: Path) -> None:
    """A disk that takes half of a line, and then nothing at all, for a while."""
    ledger = written(tmp_path / "ledger.jsonl", 1)
    [(line, entry)] = read_ledger(ledger.file)
    assert isinstance(entry, Settlement)

    class Failing:
        fileno = ledger._stream.fileno

        def write(self, data: bytes) -> int:
            return stream.write(data[:50])

        def truncate(self, size: int) -> None:
            raise OSError(5, "disk I/O error")

    stream, ledger._stream = ledger._stream, Failing()  # type: ignore[assignment]
    with pytest.raises(OSError, match="space"):
        ledger.settle(entry)
    assert len(ledger.file.read_bytes()) == len(line) + 50
    with pytest.raises(OSError, match="I/O"):
        ledger.settle(entry)
    ledger._stream = stream
    ledger.settle(entry)
    ledger.close()
    assert None not in [each for _, each in read_ledger(ledger.file)]


def test_the_name_of_a_new_ledger_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []
    monkeypatch.setattr(
        "vaiom.files.os.fsync",
        lambda each: flushed.append(Path(f"/proc/self/fd/{each}").readlink()),
    )
    written(tmp_path / "ledger.jsonl", 0).close()
    assert {tmp_path, tmp_path / "ledger.jsonl"} <= {*flushed}


def test_a_line_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = written(tmp_path / "ledger.jsonl", 1)
    before, entry = ledger.file.read_bytes(), next(entry for _, entry in read_ledger(ledger.file))
    assert isinstance(entry, Settlement)
    assert not isinstance(entry, Commitment)
    monkeypatch.setattr(
        "vaiom.forecast.ledger.os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(OSError, match="full"):
        ledger.settle(entry)
    assert ledger.file.read_bytes() == before
    monkeypatch.undo()
    ledger.settle(entry)
    assert len([*read_ledger(ledger.file)]) == 2
    ledger.close()


def test_a_forecast_is_recorded_once_until_another_entry_follows(tmp_path: Path) -> None:
    dist = distribution(np.arange(1.0, 17))
    ledger = ForecastLedger(tmp_path / "ledger.jsonl", "model", clock=lambda: NOW)
    assert ledger.e_value is None
    for each in (
        dist,
        dist,
        replace(dist, symbol="USDJPY"),
        dist,
        replace(dist, missing_assets=("XAUUSD",)),
        dist,
    ):
        ledger.commit(each)
    ledger.close()
    entries = [entry for _, entry in read_ledger(ledger.file)]
    assert [
        (entry.symbol, entry.missing_assets) for entry in entries if isinstance(entry, Commitment)
    ] == [
        ("EURUSD", []),
        ("USDJPY", []),
        ("EURUSD", ["XAUUSD"]),
        ("EURUSD", []),
    ]
    assert entries[0] == Commitment(
        symbol="EURUSD",
        as_of=dist.as_of,
        model="model",
        sigma=dist.sigma,
        probs=dist.probs.tolist(),
        missing_assets=[],
    )


def test_forecasts_that_come_together_share_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All or none are written: what a full disk took a part of is no line."""
    dists = [
        replace(distribution(np.arange(1.0, 17)), symbol=symbol)
        for symbol in ("EURUSD", "USDJPY", "XAUUSD")
    ]
    ledger, flushed, real = written(tmp_path / "ledger.jsonl", 1), list[int](), os.fsync
    before = ledger.file.read_bytes()
    monkeypatch.setattr(
        "vaiom.forecast.ledger.os.fsync", lambda each: (flushed.append(each), real(each))
    )
    ledger.commit(*dists)
    whole = ledger.file.read_bytes()
    assert (len(flushed), ledger.head) == (1, sha256_of(whole))
    assert [entry and entry.symbol for _, entry in read_ledger(ledger.file)] == [
        "EURUSD",
        "EURUSD",
        "USDJPY",
        "XAUUSD",
    ]
    ledger.commit(*dists)  # they are the last ones already
    assert (len(flushed), ledger.file.read_bytes()) == (1, whole)
    ledger.close()
    second = len(whole[: whole.index(b"\n", len(before) + 1)]) + 9
    ledger.file.write_bytes(whole[:second])
    again = ForecastLedger(ledger.file, "model", clock=lambda: NOW)
    again.commit(*dists)
    assert ledger.file.read_bytes() == whole
    again.close()


def test_a_ledger_that_was_taken_away_is_missed(tmp_path: Path) -> None:
    """What is written to a file without a name is lost, and so is what another file in its place
    says.
    """
    ledger = written(tmp_path / "ledger.jsonl", 1)
    (tmp_path / "ledger.jsonl").rename(tmp_path / "elsewhere.jsonl")
    with pytest.raises(FileNotFoundError):
        written_again(ledger)
    (tmp_path / "ledger.jsonl").write_bytes(b"")
    with pytest.raises(OSError, match="another file"):
        written_again(ledger)
    (tmp_path / "elsewhere.jsonl").rename(tmp_path / "ledger.jsonl")
    written_again(ledger)
    assert ledger.head == sha256_of((tmp_path / "ledger.jsonl").read_bytes())
    ledger.close()


def written_again(ledger: ForecastLedger) -> None:
    later = NOW + timedelta(hours=9)
    ledger.settle(
        Settlement(
            symbol="EURUSD", as_of=later, target_time=later, model_bits=None, frequency_bits=None
        )
    )
