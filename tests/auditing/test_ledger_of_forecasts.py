"""The ledger of forecasts, line by line: what counts as on record, what is made again and scored,
and what is said.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vaiom.auditing.proof import Proof
from vaiom.auditing.service_ledger import prove_ledger
from vaiom.baselines.base import baseline
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import DataError
from vaiom.evaluation.predictor import ModelPredictor
from vaiom.evaluation.scores import event_bits
from vaiom.files import sha256_file, sha256_of
from vaiom.forecast.ledger import e_value
from vaiom.run import Run

Line = dict[str, Any]
TIMELY = "2020-01-01T00:00:00"


class Record:
    """Lines about rows of the finished corpus, as an honest service would write them."""

    def __init__(self, finished: Path) -> None:
        self.bars, self.run = finished / "bars", finished / "seed17"
        self.corpus: Corpus = open_corpus(finished / "corpus")
        self.model = ModelPredictor.load(Run(self.run).best, "cpu")
        self.start = self.corpus.asset_slices["XAUUSD"].start

    def place(self, row: int) -> dict[str, Any]:
        symbol = "XAUUSD" if row >= self.start else "EURUSD"
        return {
            "time": TIMELY,
            "symbol": symbol,
            "as_of": stamp(self.corpus.timestamps[row]).isoformat(),
        }

    def forecast(self, row: int, **changes: Any) -> Line:
        probs = self.model.predict_proba(self.corpus, np.array([row]))[0]
        own = {
            "sigma": float(self.corpus.sigma20[row]),
            "probs": probs.tolist(),
            "missing_assets": [],
        }
        return {
            **self.place(row),
            "kind": "forecast",
            "model": self.model.checkpoint.sha256,
            **own,
            **changes,
        }

    def bits(self, row: int) -> float:
        probs = self.model.predict_proba(self.corpus, np.array([row]))
        return float(event_bits(probs, self.corpus.target_return[[row]])[0])

    def settled(self, row: int, **changes: Any) -> Line:
        scored = self.corpus.valid_base[row] and self.corpus.target_return[row] > 0
        bits = {
            "model_bits": self.bits(row) if scored else None,
            "frequency_bits": 4.0 if scored else None,
        }
        end = {"target_time": stamp(self.corpus.target_timestamps[row]).isoformat()}
        return {**self.place(row), "kind": "settled", **end, **bits, **changes}

    def removed(self, row: int) -> Line:
        """All bars after the one before this."""
        place = self.place(row - 1)
        return {
            "time": TIMELY,
            "kind": "removed",
            "symbol": place["symbol"],
            "after": place["as_of"],
        }

    def proof(self, file: Path, lines: Sequence[Line]) -> Proof:
        written = b""
        for line in lines:
            written += json.dumps({"previous": sha256_of(written), **line}).encode() + b"\n"
        file.write_bytes(written)
        return prove_ledger(file, self.run, self.bars)


def stamp(value: np.datetime64) -> datetime:
    found: datetime = value.astype("datetime64[us]").item()
    return found


@pytest.fixture(scope="module")
def record(finished: Path) -> Record:
    return Record(finished)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def against(record: Record, rows: list[int]) -> list[str]:
    """What the forecasts of these rows are worth, by hand."""
    ours, stamps = (
        [record.bits(row) for row in rows],
        [stamp(record.corpus.target_timestamps[row]) for row in rows],
    )
    notes = []
    for name in ("frequency", "hour_of_week"):
        fitted = baseline(name).fit(record.corpus, record.corpus.endpoints("train", 16))
        probs = fitted.predict_proba(record.corpus, np.array(rows))
        theirs = event_bits(probs, record.corpus.target_return[rows]).tolist()
        mean, value = np.mean(np.subtract(theirs, ours)), e_value(stamps, ours, theirs)
        words = f"{mean:+.4f} bits a bar over {len(rows)} bars of {len({*stamps})} stamps"
        notes.append(f"against {name}: {words}, e = {value:.3g}")
    return notes


def made_again(count: int, rows: int, largest: float = 0.0) -> str:
    return f"{count} of {rows} forecasts made again, largest difference {largest:.1e}"


def valid_rows(record: Record, first: int, count: int) -> list[int]:
    valid = np.flatnonzero(record.corpus.valid_base & (record.corpus.target_return > 0))
    return [int(row) for row in valid[valid >= first][:count]]


def test_an_honest_ledger_is_made_again_and_scored(record: Record, file: Path) -> None:
    """Of two assets, some at the same stamps; the first rows lack history, and the last bar has not
    come.
    """
    first = valid_rows(record, 2_000, 6)
    both = [*first, *(row for row in valid_rows(record, record.start + 2_003, 4))]
    early, last = 14, len(record.corpus) - 1
    lines = [line for row in both for line in (record.forecast(row), record.settled(row))]
    lines = [
        record.forecast(early),
        record.settled(early),
        record.forecast(15),
        *lines,
        record.forecast(last),
    ]
    proof = record.proof(file, lines)
    assert proof.findings == []
    known = sorted(
        [*both, *([15] if record.corpus.valid_base[15] and record.corpus.target_return[15] else [])]
    )
    largest = proof.notes[0].rpartition(" ")[2]
    assert float(largest) < 1e-6
    expected = [made_again(len(both) + 2, len(both) + 3, float(largest)), *against(record, known)]
    assert proof.notes == [*expected, f"SHA-256 of the ledger: {sha256_file(file)}"]
    # Lines, settlements of a forecast before them, distributions, this model, bars, forecasts made
    # again, bits, ends.
    settled = len(both) + 1
    assert proof.count == len(lines) + len(lines) + 1 + 1 + (len(both) + 2) + 2 * settled


@pytest.mark.parametrize(
    ("times", "found"), [(0.5, False), (2.0, True), (-0.5, False), (-2.0, True)]
)
def test_forecasts_are_the_models_to_a_ten_thousandth(
    record: Record, file: Path, times: float, found: bool
) -> None:
    [row, other] = valid_rows(record, 2_000, 2)
    probs = np.array(record.forecast(row)["probs"])
    probs[3] += times * 1e-4
    probs[5] -= times * 1e-4
    where = f"EURUSD, {stamp(record.corpus.timestamps[row])}: the model forecasts otherwise"
    proof = record.proof(file, [record.forecast(row, probs=probs.tolist()), record.forecast(other)])
    assert proof.findings == [where] * found
    [note, *_] = proof.notes
    assert note.startswith("1 of 2 " if found else "2 of 2 ")
    assert float(note.rpartition(" ")[2]) == pytest.approx(
        0.0 if found else abs(times) * 1e-4, abs=1e-6
    )
    sigma = float(record.corpus.sigma20[row]) * (1 + times * 1e-4)
    proof = record.proof(file, [record.forecast(row, sigma=sigma), record.forecast(other)])
    assert proof.findings == [where] * found


@pytest.mark.parametrize(("times", "found"), [(0.5, False), (2.0, True)])
def test_a_distribution_has_sixteen_parts_that_add_up(
    record: Record, file: Path, times: float, found: bool
) -> None:
    [row] = valid_rows(record, 2_000, 1)
    good, probs = record.forecast(row + 1), np.array(record.forecast(row)["probs"])
    for sign in (1, -1):
        more = probs * (1 + sign * times * 1e-4)
        proof = record.proof(file, [good, record.forecast(row, probs=more.tolist())])
        assert proof.findings == ["line 2: no distribution over 16 buckets"] * found
    for wrong in ([1.0], [*probs, 0.0], [-0.1, 1.1, *[0.0] * 14]):
        proof = record.proof(file, [good, record.forecast(row, probs=list(wrong))])
        assert proof.findings == ["line 2: no distribution over 16 buckets"]
        assert proof.notes[0].startswith("1 of 1 ")


@pytest.mark.parametrize(("times", "found"), [(0.5, False), (2.0, True), (-2.0, True)])
def test_a_bar_is_settled_with_the_bits_that_it_gives(
    record: Record, file: Path, times: float, found: bool
) -> None:
    [row] = valid_rows(record, 2_000, 1)
    where = (
        f"EURUSD, {stamp(record.corpus.target_timestamps[row])}: settled with other bits than "
        f"the bar gives"
    )
    for bits, says in ((record.bits(row) + times * 1e-4, found), (None, True)):
        proof = record.proof(file, [record.forecast(row), record.settled(row, model_bits=bits)])
        assert proof.findings == [where] * says


def test_a_bar_is_settled_as_the_one_that_followed(record: Record, file: Path) -> None:
    """Another stamp would hide how late a forecast is."""
    [row] = valid_rows(record, 2_000, 1)
    end = stamp(record.corpus.target_timestamps[row])
    late = record.forecast(row, time=(end + timedelta(days=9)).isoformat())
    moved = record.settled(row, target_time=(end + timedelta(days=9)).isoformat())
    proof = record.proof(file, [late, moved])
    assert proof.findings == [
        f"EURUSD, {record.corpus.target_timestamps[row]}: settled as {end + timedelta(days=9)}"
    ]
    assert [note[0] for note in proof.notes if "clock" in note] == ["1"]


def test_a_bar_that_is_not_scored_has_no_bits(record: Record, file: Path) -> None:
    """A return of exactly zero is no event."""
    zero = next(row for row in range(2_000, 2_390) if record.corpus.log_ret_next[row] == 0)
    [row] = valid_rows(record, 2_100, 1)
    lines = [record.forecast(zero), record.settled(zero), record.forecast(row)]
    assert lines[1]["model_bits"] is None
    proof = record.proof(file, lines)
    assert proof.findings == []
    assert proof.notes[1:-1] == against(record, [row])
    where = (
        f"EURUSD, {stamp(record.corpus.target_timestamps[zero])}: settled with other bits "
        f"than the bar gives"
    )
    proof = record.proof(file, [lines[0], {**lines[1], "model_bits": 4.0}, lines[2]])
    assert proof.findings == [where]
    # Nothing to score: nothing is said of it.
    proof = record.proof(file, lines[:2])
    assert [note.split(" ")[0] for note in proof.notes] == ["1", "SHA-256"]


def test_what_comes_after_its_bar_is_no_forecast(record: Record, file: Path) -> None:
    """The last one before it counts, and a bar needs one."""
    one, two, three = valid_rows(record, 2_000, 3)
    wrong = [1 / 16] * 16
    first = record.forecast(one, probs=wrong)
    proof = record.proof(file, [first, record.forecast(one), record.settled(one), first])
    assert proof.findings == []
    assert proof.notes[0].startswith("1 of 1 ")
    proof = record.proof(
        file,
        [record.forecast(two), record.settled(one), record.settled(three), record.forecast(one)],
    )
    assert proof.findings == [
        f"line {number}: a bar without a forecast before it" for number in (2, 3)
    ]
    assert proof.notes[0].startswith("2 of 2 ")


def test_lines_that_were_not_written_here_are_numbered(record: Record, file: Path) -> None:
    one, two = valid_rows(record, 2_000, 2)
    foreign = {**record.forecast(one), "previous": "0" * 64}
    proof = record.proof(
        file, [record.forecast(one), foreign, {"kind": "note"}, record.forecast(two)]
    )
    assert proof.findings == [
        f"line {number} is none of those that were written here" for number in (2, 3)
    ]
    assert proof.notes[0].startswith("2 of 2 ")


def test_other_models_and_other_bars_are_counted(record: Record, file: Path) -> None:
    one, two, three = valid_rows(record, 2_000, 3)
    another = {"model": "0" * 64}
    proof = record.proof(
        file,
        [record.forecast(one), record.forecast(two, **another), record.forecast(three, **another)],
    )
    assert (proof.findings, proof.notes[0]) == ([], "2 forecasts of other models are not judged")
    assert proof.notes[1].startswith("1 of 1 ")
    own = record.model.checkpoint.sha256[:16]
    proof = record.proof(file, [record.forecast(one, **another)])
    assert proof.findings == [f"no forecast of this model, {own}"]
    assert proof.notes[:2] == ["1 forecasts of other models are not judged", made_again(0, 0)]
    elsewhere = record.forecast(two, as_of="2031-01-01T00:00:00")
    proof = record.proof(file, [record.forecast(one), elsewhere, {**elsewhere, "symbol": "GBPUSD"}])
    assert proof.findings == ["2 forecasts are of bars that the folder does not have"]
    assert proof.notes[0].startswith("1 of 1 ")


def test_forecasts_without_all_bars_are_not_made_again(
    record: Record, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that reads no other asset lacks none, whatever the ledger says."""
    one, two = valid_rows(record, 2_000, 2)
    lacking = record.forecast(one, probs=[1 / 16] * 16, missing_assets=["GBPUSD"])
    lines = [lacking, record.settled(one, model_bits=4.0), record.forecast(two)]
    where = f"EURUSD, {stamp(record.corpus.timestamps[one])}: the model forecasts otherwise"
    assert where in record.proof(file, lines).findings
    monkeypatch.setattr(
        "vaiom.auditing.service_ledger.CROSS_FIELDS", record.model.checkpoint.config.input_fields
    )
    proof = record.proof(file, lines)
    assert proof.findings == []
    assert proof.notes[0].startswith("1 of 2 ")
    assert proof.notes[1:-1] == against(record, [two])


def test_history_is_counted_in_each_asset(record: Record, file: Path, tmp_path: Path) -> None:
    """The first rows of a third asset cannot be made again."""
    shutil.copytree(record.bars, tmp_path / "bars")
    shutil.copy(record.bars / "EURUSD.parquet", tmp_path / "bars/ZARUSD.parquet")
    [row] = valid_rows(record, 2_000, 1)
    early = record.forecast(14, symbol="ZARUSD", probs=[1 / 16] * 16)
    record.proof(file, [record.forecast(row), early])
    proof = prove_ledger(file, record.run, tmp_path / "bars")
    assert proof.findings == []
    assert proof.notes[0].startswith("1 of 2 ")


def test_bars_that_were_removed_take_their_outcomes_with_them(record: Record, file: Path) -> None:
    """What had followed them is not judged, unless it comes out the same; the forecast before them
    is.
    """
    one, two, three = valid_rows(record, 2_000, 3)
    assert (two, three) == (one + 1, one + 2)
    wrong = [1 / 16] * 16
    before, after = record.forecast(one), record.forecast(two, probs=wrong)
    wrong_bar = record.settled(one, model_bits=1.0)
    lines = [before, wrong_bar, after, record.removed(two)]
    proof = record.proof(file, lines)
    unjudged = "1 forecasts followed bars that the service removed: they are not judged"
    assert proof.findings == []
    assert proof.notes[0].startswith("1 of 2 ")
    assert proof.notes[1:-1] == [unjudged, *against(record, [one])]
    # The bar comes again, and the forecast after it, before its own bar.
    again = [*lines, record.settled(one), record.forecast(two), record.settled(two)]
    proof = record.proof(file, again)
    assert proof.findings == []
    assert proof.notes[0].startswith("2 of 2 ")
    assert proof.notes[1:-1] == against(record, [one, two])
    # A forecast that is the model's is judged, whatever was removed; without a removal so is a
    # wrong one.
    proof = record.proof(
        file, [before, record.settled(one), record.forecast(two), record.removed(two)]
    )
    assert (proof.findings, proof.notes[1:-1]) == ([], against(record, [one, two]))
    where = f"EURUSD, {stamp(record.corpus.timestamps[two])}: the model forecasts otherwise"
    assert record.proof(file, [before, record.settled(one), after]).findings == [where]
    assert record.proof(file, [*lines, record.settled(one), after]).findings == [where]
    other = record.removed(record.start + 2_001)
    settled = (
        f"EURUSD, {stamp(record.corpus.target_timestamps[one])}: settled with other bits "
        f"than the bar gives"
    )
    assert record.proof(file, [before, wrong_bar, after, other]).findings == [where, settled]
    # Withdrawn forecasts of bars that never came again are not missed.
    gone = record.forecast(two, as_of="2031-01-01T00:00:00")
    removed = {**record.removed(three), "after": "2030-01-01T00:00:00"}
    proof = record.proof(file, [before, gone, removed])
    assert proof.findings == []
    assert proof.notes[1] == unjudged


def test_late_forecasts_are_counted_by_the_services_clock(record: Record, file: Path) -> None:
    """Time zones reach that far: fifteen hours after the bar."""
    one, two, three = valid_rows(record, 2_000, 3)
    last = len(record.corpus) - 1
    end = [
        stamp(record.corpus.target_timestamps[row]) + timedelta(hours=15)
        for row in (one, two, three)
    ]
    times = [end[0], end[1] + timedelta(seconds=1), end[2] + timedelta(days=9)]
    lines = [
        record.forecast(row, time=time.isoformat())
        for row, time in zip((one, two, three), times, strict=True)
    ] + [record.forecast(last, time="2099-01-01T00:00:00")]
    proof = record.proof(file, lines)
    said = "{} forecasts were recorded after their bar by the service's own clock"
    assert [note for note in proof.notes if "clock" in note] == [said.format(2)]
    gone = record.forecast(two, as_of="2031-01-01T00:00:00", time="2099-01-01T00:00:00")
    settled = record.settled(two, as_of="2031-01-01T00:00:00", target_time="2031-01-01T01:00:00")
    proof = record.proof(file, [lines[0], gone, settled])
    assert not any("clock" in note for note in proof.notes)


def test_a_ledger_that_is_not_there_is_refused(record: Record, file: Path) -> None:
    with pytest.raises(DataError, match="no such ledger"):
        prove_ledger(file, record.run, record.bars)


def test_a_checkpoint_is_as_good_as_its_run(record: Record, file: Path) -> None:
    lines = [record.forecast(row) for row in valid_rows(record, 2_000, 2)]
    of_run = record.proof(file, lines)
    of_file = prove_ledger(file, Run(record.run).best, record.bars)
    assert (of_run.findings, of_run.notes, of_run.count) == (
        of_file.findings,
        of_file.notes,
        of_file.count,
    )
