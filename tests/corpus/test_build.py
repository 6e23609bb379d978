"""A corpus made in small parts, in files, by tasks that travel, has the bytes of one made at once
in memory; bars that cannot be used are refused.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from corpus.corpora import CONFIG
from strategies import frame_of, random_bars
from vaiom.corpus.build import CorpusConfig, build_corpus, corpus_in_memory, propose_splits
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.corpus.writer import CorpusWriter
from vaiom.errors import ConfigError, DataError
from vaiom.features.cross import cross_columns
from vaiom.features.fields import COLUMN_TYPES, DISC_FIELDS, EXTRA_FIELDS
from vaiom.market.folder import read_bars, write_symbol
from vaiom.market.timeframes import timeframe_of

ROWS = 300
STAMPS = random_bars(ROWS)["Datetime"]
COVERED = CorpusConfig(timeframe="1h", splits=SplitConfig.covered_by(STAMPS[0], STAMPS[-1]))


class Posted:
    """A runner that sends tasks and what does them through bytes, in another order than they
    came.
    """

    def run(
        self, tasks: Any, perform: Any, finished: int = 0, report: Any = None
    ) -> dict[str, str]:
        self.paths = {task.label: [path.stem for path in task.paths] for task in tasks}
        if report:
            report(len(tasks))
        for task in reversed(tasks):
            there, do = pickle.loads(pickle.dumps((task, perform)))
            do(there, "cpu")
        return {}


def write_market(folder: Path, sizes: list[int], seed: int = 0) -> Path:
    for number, size in enumerate(sizes):
        frame = random_bars(ROWS, seed + number)
        part = frame.tail(size) if number % 2 else frame.head(size)
        write_symbol(folder, f"SIM{number}USD", part)
    return folder


@settings(max_examples=3)
@given(
    st.lists(st.sampled_from([1, 30, ROWS]), min_size=1, max_size=4),
    st.integers(0, 1000),
    st.sampled_from([None, Posted()]),
)
def test_a_folder_built_by_tasks_has_the_bits_of_a_corpus_in_memory(
    sizes: list[int], seed: int, runner: Posted | None
) -> None:
    with TemporaryDirectory() as name:
        bars = write_market(Path(name) / "bars", [ROWS, *sizes], seed)
        whole = corpus_in_memory(read_bars(bars), COVERED)
        out = Path(name) / "corpus"
        built = build_corpus(bars, out, COVERED, runner=runner, rows_per_task=ROWS)
        assert built.tokenizer.sha256 == whole.tokenizer.sha256
        assert built.asset_slices == whole.asset_slices
        for column in COLUMN_TYPES:
            assert built.columns[column].dtype == whole.columns[column].dtype
            assert built.columns[column].tobytes() == whole.columns[column].tobytes(), column
        files = {path.name for path in out.rglob("*") if path.is_file()}
        arrays = {f"{column}.npy" for column in COLUMN_TYPES}
        assert files == arrays | {"manifest.json", "tokenizer.json", "state.json"}


def test_tasks_have_about_equally_many_rows_and_are_named_by_their_last_asset(
    tmp_path: Path,
) -> None:
    bars = write_market(tmp_path / "bars", [ROWS, ROWS, 30, ROWS])
    runner = Posted()
    seen: list[tuple[int, ...]] = []
    build = partial(build_corpus, bars, tmp_path / "corpus", COVERED, runner=runner)
    build(rows_per_task=2 * ROWS, progress=lambda *each: seen.append(each))
    names = [f"SIM{number}USD" for number in range(4)]
    assert runner.paths == {names[1]: names[:2], names[3]: names[2:]}
    assert seen == [(2,)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(DataError, "bars are bad"), (RuntimeError, "Traceback: bars are bad")],
)
def test_what_fails_elsewhere_is_told_here_and_nothing_is_left(
    tmp_path: Path, error: type[Exception], reason: str
) -> None:
    class Failing(Posted):
        def run(self, *_: Any, **__: Any) -> dict[str, str]:
            return {"0": reason}

    bars = write_market(tmp_path / "bars", [ROWS])
    with pytest.raises(error, match="bars are bad"):
        build_corpus(bars, tmp_path / "out" / "corpus", COVERED, runner=Failing())
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(10))
    with pytest.raises(DataError, match="Train holds no usable event"):
        build_corpus(tmp_path / "bars", tmp_path / "out" / "corpus")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    bars = write_market(tmp_path / "bars", [ROWS])
    shorter = partial(write_symbol, bars, "SIM0USD", random_bars(ROWS - 1))
    with pytest.raises(DataError, match="changed while it was read"):
        build_corpus(bars, tmp_path / "corpus", COVERED, progress=lambda *_: shorter())


def test_building_twice_gives_the_same_bytes(built: Path, bars: Path, tmp_path: Path) -> None:
    build_corpus(bars, tmp_path / "again", CONFIG)
    files, again = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}
        for folder in (built, tmp_path / "again")
    )
    assert files == again


def test_rows_in_files_read_as_those_in_memory(tmp_path: Path) -> None:
    sizes = {"A": 5, "B": 7}
    writers = [CorpusWriter.create(sizes), CorpusWriter.create(sizes, tmp_path)]
    rng = np.random.default_rng(0)
    for start, size in ((5, 7), (0, 3), (3, 2)):
        columns = {"ret_z": rng.random(size).astype(np.float32), "ret_z_exact": rng.random(size)}
        for writer in writers:
            writer.write(start, columns)
    for rows in (slice(0, 12), slice(4, 9), slice(12, 12)):
        for name in ("ret_z", "ret_z_exact"):
            here, there = (writer.read(name, rows) for writer in writers)
            assert_array_equal(here, there)


def test_cross_fields_of_a_few_stamps_at_a_time_are_those_of_all_at_once() -> None:
    rng = np.random.default_rng(4)
    assets = {}
    for symbol in ("EURUSD", "GBPUSD", "USDJPY"):
        stamps = np.flatnonzero(rng.random(60) < 0.7).astype(np.uint32)
        values = rng.normal(size=(2, len(stamps))).astype(np.float32)
        flags = (rng.random(len(stamps)) < 0.1).astype(np.uint8)
        columns = {"timestamp": stamps, "flags": flags}
        assets[symbol] = columns | {"ret_z": values[0], "relative_log_vol": values[1]}
    writer = CorpusWriter.create({name: len(each["flags"]) for name, each in assets.items()})
    for symbol, rows in writer.slices.items():
        writer.write(rows.start, assets[symbol])
    writer.write_cross(rows_at_once=15)
    for symbol, expected in cross_columns(assets).items():
        for name, values in expected.items():
            assert_array_equal(writer.read(name, writer.slices[symbol]), values)


@pytest.mark.parametrize("step", ["15min", "4h", "1w"])
def test_the_timeframe_is_that_of_the_bars(step: str, tmp_path: Path) -> None:
    length = timeframe_of(step)
    frame = random_bars(900, start=datetime(2023, 12, 31) - 890 * length, step=length)
    write_symbol(tmp_path / "bars", "EURUSD", frame)
    built = build_corpus(tmp_path / "bars", tmp_path / "corpus")
    assert built.tokenizer.timeframe == step
    assert len(built.endpoints("train"))
    assert (built.extra[600:, EXTRA_FIELDS.index("next_slot_vol")] != 0).mean() > 0.5
    write_symbol(tmp_path / "odd", "EURUSD", random_bars(50, step=timedelta(minutes=7)))
    with pytest.raises(DataError, match=r"divide a day[\s\S]*'7min'[\s\S]*resample"):
        build_corpus(tmp_path / "odd", tmp_path / "corpus2")


def test_a_timeframe_is_stored_in_one_spelling_and_assumed_for_a_single_bar(
    corpus: Corpus,
) -> None:
    frames = {"EURUSD": random_bars(900, step=timedelta(hours=4), start=datetime(2023, 7, 5))}
    mixed = {"X": random_bars(1), **frames}  # the longest history decides
    for bars, spelling in ((frames, "240min"), (frames, ""), (mixed, "")):
        made = corpus_in_memory(bars, replace(CONFIG, timeframe=spelling))
        assert made.tokenizer.timeframe == "4h"
    assert len(corpus_in_memory({"EURUSD": random_bars(1)}, tokenizer=corpus.tokenizer)) == 1
    with pytest.raises(ConfigError):
        CorpusConfig(timeframe="7min")


def test_bars_of_another_timeframe_are_refused(bars: Path, tmp_path: Path) -> None:
    write_symbol(tmp_path / "minutes", "EURUSD", random_bars(500, step=timedelta(minutes=1)))
    with pytest.raises(DataError, match="data resample"):
        build_corpus(tmp_path / "minutes", tmp_path / "corpus", CorpusConfig(timeframe="1h"))
    assert not (tmp_path / "corpus").exists()
    with pytest.raises(DataError, match="name the right --timeframe") as caught:
        build_corpus(bars, tmp_path / "corpus", CorpusConfig(timeframe="15min"))
    assert "resample" not in str(caught.value.fix)


def test_classes_are_the_users_words_and_the_papers_keep_their_numbers() -> None:
    symbols = ("AAPL", "BTCUSDT", "EURUSD", "US500", "XAUUSD", "ZINC")
    bars = {symbol: random_bars(900, seed) for seed, symbol in enumerate(symbols)}
    built = corpus_in_memory(bars, replace(CONFIG, classes={"ZINC": "BASE METAL"}))
    assert built.tokenizer.classes == ("EQUITY", "CRYPTO", "FX", "INDEX", "SPOT", "BASE METAL")
    assert built.tokenizer.class_names == ("FX", "SPOT", "BASE METAL", "CRYPTO", "EQUITY", "INDEX")
    first_rows = [rows.start for rows in built.asset_slices.values()]
    assert built.meta[first_rows, 1].tolist() == [4, 3, 0, 5, 1, 2]
    assert built.tokenizer.vocabulary_sizes["asset_class_id"] == 6
    assert [built.tokenizer.class_id(new) for new in ("SOLUSDT", "USDJPY", "XAGUSD")] == [3, 0, 1]
    replace(CONFIG, classes={"ZINC": "B" * 32})
    for wrong in ("", "B" * 33, "a/b", " B"):
        with pytest.raises(ConfigError, match="asset class"):
            replace(CONFIG, classes={"ZINC": wrong})


def test_boundaries_that_leave_a_split_empty_are_refused_with_others_that_fit(
    tmp_path: Path,
) -> None:
    bars = tmp_path / "bars"
    for symbol, days in (("EURUSD", 0), ("GBPUSD", 40), ("USDJPY", 20)):
        start = datetime(2023, 1, 1) + timedelta(days=days)
        write_symbol(bars, symbol, random_bars(24 * 60 + 1, days, start))  # to the start of a day
    fitting = propose_splits(bars)
    assert fitting == SplitConfig.covered_by(datetime(2023, 1, 1), datetime(2023, 4, 11))
    early = SplitConfig().shifted_to(datetime(2022, 12, 1))
    build = partial(build_corpus, bars, tmp_path / "corpus", overwrite=True)
    for splits, name in ((SplitConfig(), "Validation"), (early, "Train")):
        with pytest.raises(DataError, match=f"no bar lies in {name}") as caught:
            build(CorpusConfig(splits=splits), covered=True)
        assert caught.value.got == "bars from 2023-01-01 00:00:00 to 2023-04-11 00:00:00"
        assert caught.value.fix == fitting.to_options()
    build(CorpusConfig(splits=fitting), covered=True)
    build()


def test_hidden_daily_bars_are_refused(bars: Path, tmp_path: Path) -> None:
    """A midnight row with the High and Low of its whole day would tell the day's fate in its first
    hour.
    """
    frame = read_bars(bars)["EURUSD"]
    midnight = pl.col("Datetime").dt.hour() == 0
    day = pl.col("Datetime").dt.date()
    high, low = pl.col("High").max().over(day), pl.col("Low").min().over(day)
    leaking = frame.with_columns(
        High=pl.when(midnight).then(high).otherwise("High"),
        Low=pl.when(midnight).then(low).otherwise("Low"),
    )
    write_symbol(tmp_path / "bars", "EURUSD", leaking)
    with pytest.raises(DataError, match="in their future") as caught:
        build_corpus(tmp_path / "bars", tmp_path / "corpus", CONFIG)
    nights = frame.filter(midnight)["Datetime"]
    stamp = str(caught.value.where).rsplit(", ")[-1]
    assert datetime.fromisoformat(stamp) in nights[:3]
    assert int(str(caught.value.got).split()[0]) > 0.9 * len(nights)
    emptied = [
        pl.when(midnight).then(None).otherwise(name).alias(name)
        for name in ("High", "Low", "Volume")
    ]
    write_symbol(tmp_path / "bars", "EURUSD", leaking.with_columns(emptied))
    corpus = build_corpus(tmp_path / "bars", tmp_path / "corpus", CONFIG)
    assert not corpus.columns["range_z"][corpus.disc[:, DISC_FIELDS.index("hour")] == 0].any()


def test_an_asset_of_one_row_and_one_of_missing_prices(bars: Path, tmp_path: Path) -> None:
    frames = {
        "EURUSD": read_bars(bars)["EURUSD"],
        "GBPUSD": random_bars(1),
        "NZDUSD": frame_of(np.full(100, np.nan), np.full(100, np.nan)),
    }
    for symbol, frame in frames.items():
        write_symbol(tmp_path / "bars", symbol, frame)
    corpus = build_corpus(tmp_path / "bars", tmp_path / "corpus", CONFIG)
    for symbol in ("GBPUSD", "NZDUSD"):
        assert not corpus.valid_base[corpus.asset_slices[symbol]].any()
    assert np.isfinite(corpus.cont).all()
