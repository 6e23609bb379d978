"""An append gives the bytes of a full build, or is refused with a reason."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from corpus.corpora import (
    CONFIG,
    ROWS,
    TRAIN_END,
    bars_before,
    bars_from,
    manifest_of,
    require_same_data,
    rewritten,
)
from strategies import random_bars
from vaiom.corpus.append import append_bars
from vaiom.corpus.build import build_corpus, corpus_in_memory
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import DataError
from vaiom.files import FolderInUseError, sha256_of, write_json
from vaiom.market.folder import read_bars, write_symbol

CUT = TRAIN_END + timedelta(days=3)
STALE = "rows-0123456789abcdef"


@pytest.fixture
def early(bars: Path, tmp_path: Path) -> Path:
    """A corpus that lacks its later bars."""
    build_corpus(bars_before(bars, CUT, tmp_path / "early"), tmp_path / "corpus", CONFIG)
    return tmp_path / "corpus"


@pytest.mark.parametrize("with_history", [True, False])
def test_appending_twice_equals_a_full_build(
    corpus: Corpus, early: Path, bars: Path, tmp_path: Path, with_history: bool
) -> None:
    second = TRAIN_END + timedelta(days=100)
    middle = bars_before(bars, second, tmp_path / "middle")
    if with_history:
        parts = [middle, bars]
    else:
        parts = [
            bars_from(middle, CUT, tmp_path / "one"),
            bars_from(bars, second, tmp_path / "two"),
        ]
    for part in parts:
        grown = append_bars(early, part)
    require_same_data(grown, corpus)
    require_same_data(open_corpus(early), corpus)
    assert len(list(early.glob("rows-*"))) == 1


def test_assets_appended_one_after_another_end_as_a_full_build(
    corpus: Corpus, early: Path, bars: Path, tmp_path: Path
) -> None:
    """The cross fields of the early asset's rows are made anew when the late one comes."""
    late = read_bars(bars_from(bars, CUT, tmp_path / "late"))
    for symbol in ("USDJPY", "EURUSD"):
        write_symbol(tmp_path / symbol, symbol, late[symbol])
    alone = append_bars(early, tmp_path / "USDJPY")
    assert not alone.columns["cross_abs"][alone.asset_slices["USDJPY"]][-100:].any()
    require_same_data(append_bars(early, tmp_path / "EURUSD"), corpus)


def test_two_bars_around_a_weekend_have_no_timeframe_of_their_own(tmp_path: Path) -> None:
    """Neither those of a new asset, though it is the first, nor new bars alone; bars that are too
    close are refused.
    """
    days = pl.datetime_range(datetime(2020, 1, 1), datetime(2025, 5, 12), "1d", eager=True)
    days = days.filter(days.dt.weekday() <= 5).alias("Datetime")
    friday = len(days) - 2
    frames = {
        symbol: random_bars(len(days), seed).with_columns(days)
        for seed, symbol in enumerate(("CL", "GC"))
    }
    for symbol, frame in frames.items():
        write_symbol(tmp_path / "early", symbol, frame[:friday])
        write_symbol(tmp_path / "new", symbol, frame[friday:])
    corpus = build_corpus(tmp_path / "early", tmp_path / "corpus")
    assert len(append_bars(tmp_path / "corpus", tmp_path / "new")) == len(corpus) + 4
    write_symbol(tmp_path / "early", "AA", frames["CL"][friday:])
    assert build_corpus(tmp_path / "early", tmp_path / "three").tokenizer.timeframe == "1d"
    assert corpus_in_memory(read_bars(tmp_path / "early")).tokenizer.timeframe == "1d"
    write_symbol(tmp_path / "close", "CL", random_bars(3, start=datetime(2025, 6, 2)))
    with pytest.raises(DataError, match="another timeframe"):
        append_bars(tmp_path / "corpus", tmp_path / "close")


def test_appending_nothing_new_changes_nothing(copy: Path, bars: Path, tmp_path: Path) -> None:
    before = (copy / "manifest.json").read_bytes()
    write_symbol(tmp_path / "end", "USDJPY", read_bars(bars)["USDJPY"].tail(3))
    (copy / STALE).mkdir()  # as a killed append leaves one
    for known in (bars, tmp_path / "end"):
        append_bars(copy, known)
        assert (copy / "manifest.json").read_bytes() == before
    assert not (copy / STALE).exists()


def test_appended_bars_are_sources_and_what_a_killed_append_left_is_removed(
    early: Path, bars: Path, tmp_path: Path
) -> None:
    seen: list[tuple[int, int, str]] = []
    late = bars_from(bars, CUT, tmp_path / "late")
    (early / STALE).mkdir()
    grown = append_bars(early, late, progress=lambda *each: seen.append(each))
    assert [path.name for path in early.glob("rows-*")] == [grown.manifest["folder"]]
    taken = [(entry["symbol"], entry["rows_taken"]) for entry in grown.manifest["inputs"]]
    frames = read_bars(late)
    assert taken[len(ROWS) :] == [(symbol, len(frame)) for symbol, frame in frames.items()]
    assert sum(rows for _, rows in taken) == len(grown) == sum(ROWS.values())
    assert len(seen) >= len(frames)


def test_bars_of_train_or_of_an_unknown_asset_are_refused(
    copy: Path, bars: Path, tmp_path: Path
) -> None:
    old = bars_before(bars, TRAIN_END - timedelta(days=3), tmp_path / "old")
    build_corpus(old, tmp_path / "short", CONFIG)
    with pytest.raises(DataError, match="before the end of Train"):
        append_bars(tmp_path / "short", bars)
    write_symbol(tmp_path / "new", "GBPUSD", random_bars(100, start=datetime(2025, 1, 1)))
    with pytest.raises(DataError, match="GBPUSD"):
        append_bars(copy, tmp_path / "new")


@pytest.mark.parametrize("kind", ["earlier", "lacks 1", "lacks 5000", "lacks 5498", "close"])
def test_another_history_is_refused_where_it_begins_to_differ(
    copy: Path, bars: Path, tmp_path: Path, kind: str
) -> None:
    frame = read_bars(bars)["USDJPY"]
    row = pl.int_range(pl.len())
    if kind == "earlier":
        first = frame[:1].with_columns(pl.col("Datetime") - timedelta(hours=1))
        other = pl.concat([first, frame])
        where = first["Datetime"][0]
    elif kind == "close":
        where = frame["Datetime"][5000]
        spoiled = pl.when(row == 5000).then(pl.col("Close") * 1.001).otherwise("Close")
        other = frame.with_columns(Close=spoiled)
    else:
        lost = int(kind.split()[1])
        where = frame["Datetime"][lost]
        other = frame.filter(row != lost)
    write_symbol(tmp_path / "other", "USDJPY", other)
    message = rf"differ from the history[\s\S]*USDJPY.parquet, {where}"
    with pytest.raises(DataError, match=message):
        append_bars(copy, tmp_path / "other")


@pytest.mark.parametrize("kind", ["order", "timeframe", "no slots", "no table"])
def test_states_of_another_corpus_are_refused(copy: Path, bars: Path, kind: str) -> None:
    file = copy / manifest_of(copy)["folder"] / "state.json"
    states = json.loads(file.read_text())
    gold = states["XAUUSD"]
    if kind == "order":
        states = dict(reversed(states.items()))
    elif kind == "timeframe":
        for name, table in gold["slots"].items():
            gold["slots"][name] = [row[::2] for row in table]
    elif kind == "no slots":
        gold |= {"slots": None, "means": {}}
    else:
        states = list(states.values())
    write_json(file, states)
    rewritten(copy, state_sha256=sha256_of(file.read_bytes()))
    open_corpus(copy)
    with pytest.raises(DataError, match=r"not what was written[\s\S]*state.json"):
        append_bars(copy, bars)


def test_one_process_writes_a_corpus_at_a_time(
    corpus: Corpus, early: Path, bars: Path, tmp_path: Path
) -> None:
    """Whoever builds or appends while another does is refused at once and told who that is."""
    late = bars_from(bars, CUT, tmp_path / "late")
    refused = []

    def meanwhile(*_: object) -> None:
        with pytest.raises(FolderInUseError, match=f"process {os.getpid()} on"):
            build_corpus(bars, early, CONFIG, overwrite=True)
        with pytest.raises(FolderInUseError, match=f"process {os.getpid()} on"):
            append_bars(early, late)
        refused.append(True)

    build_corpus(tmp_path / "early", early, CONFIG, overwrite=True, progress=meanwhile)
    append_bars(early, late, progress=meanwhile)
    assert len(refused) > 2
    require_same_data(open_corpus(early), corpus)
