"""A corpus made in small parts, in files, by tasks that travel, has the bytes of one made at once
in memory.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.full_bars import full_bars
from strategies import random_bars
from vaiom.corpus.build import CorpusConfig, build_corpus, corpus_in_memory
from vaiom.corpus.split_quality import count_events, split_quality
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.corpus.writer import CorpusWriter
from vaiom.errors import DataError
from vaiom.features.cross import cross_columns
from vaiom.features.fields import COLUMN_TYPES, CROSS_FIELDS, EXTRA_FIELDS
from vaiom.features.quantities import BarArrays
from vaiom.features.rows import BarFeatures, bars_of
from vaiom.market.folder import read_bars, write_symbol

ROWS = 300
STAMPS = random_bars(ROWS)["Datetime"]
CONFIG = CorpusConfig(timeframe="1h", splits=SplitConfig.covered_by(STAMPS[0], STAMPS[-1]))


class Posted:
    """A runner that sends tasks and what does them through bytes, in another order than
    they came.
    """

    def run(
        self, tasks: Any, perform: Any, finished: int = 0, report: Any = None
    ) -> dict[str, str]:
        self.labels = {
            task.id: (task.label, tuple(path.stem for path in task.paths)) for task in tasks
        }
        if report:
            report(len(tasks))
        for task in reversed(tasks):
            there, do = pickle.loads(pickle.dumps((task, perform)))
            do(there, "cpu")
        return {}


def write_market(folder: Path, sizes: list[int], seed: int) -> Path:
    for number, size in enumerate(sizes):
        frame = random_bars(ROWS, seed + number)
        write_symbol(
            folder, f"SIM{number}USD", frame.tail(size) if number % 2 else frame.head(size)
        )
    return folder


def require_same(ours: Corpus, theirs: Corpus) -> None:
    assert ours.tokenizer.sha256 == theirs.tokenizer.sha256
    assert ours.asset_slices == theirs.asset_slices
    for name in COLUMN_TYPES:
        assert ours.columns[name].dtype == theirs.columns[name].dtype
        assert ours.columns[name].tobytes() == theirs.columns[name].tobytes(), name


@settings(max_examples=3)
@given(
    st.lists(st.sampled_from([1, 30, ROWS]), min_size=1, max_size=4),
    st.integers(0, 1000),
    st.booleans(),
)
def test_a_folder_built_by_tasks_has_the_bits_of_a_corpus_in_memory(
    sizes: list[int], seed: int, posted: bool
) -> None:
    with TemporaryDirectory() as name:
        bars = write_market(Path(name) / "bars", [ROWS, *sizes], seed)
        whole = corpus_in_memory(read_bars(bars), CONFIG)
        runner = Posted() if posted else None
        built = build_corpus(bars, Path(name) / "corpus", CONFIG, runner=runner, rows_per_task=ROWS)
        require_same(built, whole)
        files = [path.name for path in (Path(name) / "corpus").rglob("*") if path.is_file()]
        assert sorted(files) == sorted(
            [
                "manifest.json",
                "tokenizer.json",
                "state.json",
                *(f"{column}.npy" for column in COLUMN_TYPES),
            ]
        )


def test_tasks_have_about_equally_many_rows_and_are_named_by_their_last_asset(
    tmp_path: Path,
) -> None:
    bars = write_market(tmp_path / "bars", [ROWS, ROWS, 30, ROWS], 0)
    runner = Posted()
    seen: list[tuple[int, ...]] = []
    build_corpus(
        bars,
        tmp_path / "corpus",
        CONFIG,
        runner=runner,
        rows_per_task=2 * ROWS,
        progress=lambda *each: seen.append(each),
    )
    names = [f"SIM{number}USD" for number in range(4)]
    assert runner.labels == {"0": (names[1], (*names[:2],)), "1": (names[3], (*names[2:],))}
    assert seen == [(2,)]


@cache
def tokenizer() -> Any:
    return corpus_in_memory(
        {"EURUSD": random_bars(ROWS), "XAUUSD": random_bars(ROWS, 1)}, CONFIG
    ).tokenizer


@settings(max_examples=12)
@given(full_bars(max_rows=80), st.booleans())
def test_one_live_bar_as_numbers_gives_the_bits_of_the_history(
    bars: pl.DataFrame, extra: bool
) -> None:
    maker = BarFeatures(
        ("ret_z", *EXTRA_FIELDS) if extra else ("ret_z", "log_wait"), tokenizer().edges, "1h"
    )
    every = bars_of(bars)
    whole, end = maker(every)
    state, last = None, None
    for row in range(len(bars)):
        bar = BarArrays._make(column[row] for column in every)
        with np.errstate(invalid="ignore", divide="ignore"):
            live, state = maker(bar, state, last)
        last = int(bar.seconds)
        assert live.keys() == whole.keys()
        for name, values in live.items():
            assert values.shape == (1,)
            np.testing.assert_array_equal(values, whole[name][[row]], err_msg=name)
    assert state is not None
    assert state.to_json() == end.to_json()


def test_only_what_a_models_fields_need_is_computed() -> None:
    for names, extra, cross in (
        (("ret_z",), False, False),
        (("ret_z", "log_wait"), False, False),
        (("cross_abs", "ret_z"), False, True),
        (("range_z", "usd_factor"), True, True),
    ):
        maker = BarFeatures(names, tokenizer().edges, "1h")
        assert (maker.needs_means, maker.reads_others, maker.step) == (extra, cross, 3600)
        assert maker.extra_fields == tuple(name for name in EXTRA_FIELDS if name in names)
        columns, state = maker(bars_of(random_bars(50)))
        assert (state.slots is not None) == extra == ("range_z" in columns)
        assert ("log_wait" in columns) == ("log_wait" in names)
        assert not set(CROSS_FIELDS) & set(columns)


def test_the_metadata_of_known_and_unknown_assets() -> None:
    known = {"EURUSD": [1, 0, 0], "XAUUSD": [2, 1, 0], "XAGUSD": [0, 1, 0], "GBPUSD": [0, 0, 0]}
    assert {symbol: tokenizer().meta(symbol).tolist() for symbol in known} == known


@pytest.mark.parametrize(
    "wrong",
    [
        datetime(1969, 12, 31, 23, 59, 59),
        datetime(2106, 2, 7, 6, 28, 16),
        datetime(2024, 1, 1, 0, 0, 0, 1),
    ],
)
def test_a_stamp_that_cannot_be_stored_is_named(wrong: datetime) -> None:
    kind = pl.DataFrame([*random_bars(2).iter_rows()], random_bars(2).schema, orient="row")
    for good in (datetime(1970, 1, 1), datetime(2106, 2, 7, 6, 28, 15)):
        assert len(bars_of(kind.with_columns(pl.lit(good).alias("Datetime"))).seconds) == 2
    spoiled = kind.with_columns(
        pl.Series("Datetime", [kind["Datetime"][0], wrong], kind["Datetime"].dtype)
    )
    with pytest.raises(DataError, match=rf"EURUSD, row 2[\s\S]*{wrong}"):
        bars_of(spoiled, "EURUSD")


def test_counts_by_asset_are_those_of_the_whole(tmp_path: Path) -> None:
    corpus = corpus_in_memory(write_market(tmp_path, [ROWS, 200, 30], 3), CONFIG)
    for context in (1, 64):
        for split, counts in count_events(corpus, context).items():
            rows = corpus.endpoints(split, context, unseal=True)
            for symbol, inside in corpus.asset_slices.items():
                assert counts[symbol] == ((rows >= inside.start) & (rows < inside.stop)).sum()
    assert sum(row.events for row in split_quality(corpus)) == corpus.valid_base.sum()


@pytest.mark.parametrize("error", [DataError, RuntimeError])
def test_what_fails_elsewhere_is_told_here_and_nothing_is_left(
    tmp_path: Path, error: type[Exception]
) -> None:
    class Failing:
        run: Callable[..., dict[str, str]] = lambda *_, **__: {
            "0": "bars are bad" if error is DataError else "Traceback: bars are bad"
        }

    with pytest.raises(error, match="bars are bad"):
        build_corpus(
            write_market(tmp_path / "bars", [ROWS], 0),
            tmp_path / "out" / "corpus",
            CONFIG,
            runner=Failing(),
        )
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    bars = write_market(tmp_path / "bars", [ROWS], 0)
    with pytest.raises(DataError, match="changed while it was read"):
        build_corpus(
            bars,
            tmp_path / "corpus",
            CONFIG,
            progress=lambda *_: write_symbol(bars, "SIM0USD", random_bars(ROWS - 1)),
        )


def test_rows_in_files_read_as_those_in_memory(tmp_path: Path) -> None:
    here, there = (
        CorpusWriter.create({"A": 5, "B": 7}),
        CorpusWriter.create({"A": 5, "B": 7}, tmp_path),
    )
    for start, size in ((5, 7), (0, 3), (3, 2)):
        values = np.random.default_rng(start).random((2, size)).astype(np.float32)
        for rows in (here, there):
            rows.write(start, {"ret_z": values[0], "ret_z_exact": values[1].astype(np.float64)})
    for part in (slice(0, 12), slice(4, 9), slice(12, 12)):
        for name in ("ret_z", "ret_z_exact"):
            np.testing.assert_array_equal(here.read(name, part), there.read(name, part))


def test_cross_fields_of_a_few_stamps_at_a_time_are_those_of_all_at_once() -> None:
    rng = np.random.default_rng(4)
    assets = {
        symbol: {
            "timestamp": np.flatnonzero(rng.random(60) < 0.7).astype(np.uint32),
        }
        for symbol in ("EURUSD", "GBPUSD", "USDJPY")
    }
    for columns in assets.values():
        size = len(columns["timestamp"])
        columns["flags"] = (rng.random(size) < 0.1).astype(np.uint8)
        columns["ret_z"] = rng.normal(size=size).astype(np.float32)
        columns["relative_log_vol"] = rng.normal(size=size).astype(np.float32)
    writer = CorpusWriter.create({name: len(each["flags"]) for name, each in assets.items()})
    for symbol, rows in writer.slices.items():
        writer.write(rows.start, assets[symbol])
    writer.write_cross(rows_at_once=15)
    for symbol, expected in cross_columns(assets).items():
        for name, values in expected.items():
            np.testing.assert_array_equal(writer.arrays[name][writer.slices[symbol]], values)
