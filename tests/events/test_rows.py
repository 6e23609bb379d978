"""A corpus made in small parts, in files, by tasks that travel, has the bytes of one made at once in memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import random_bars
from vaiom.errors import DataError
from vaiom.events import build, fields
from vaiom.events import rows as rows_module
from vaiom.events.build import CorpusConfig, build_corpus, corpus_in_memory
from vaiom.events.corpus import Corpus, count_events, split_quality
from vaiom.events.fields import COLUMN_TYPES
from vaiom.events.rows import Rows
from vaiom.events.splits import SplitConfig
from vaiom.market.folder import read_bars, write_symbol

ROWS = 300
STAMPS = random_bars(ROWS)["Datetime"]
CONFIG = CorpusConfig(timeframe="1h", splits=SplitConfig.covered_by(STAMPS[0], STAMPS[-1]))


class Posted:
    """An engine that sends tasks and what does them through bytes, in another order than they came."""

    def run(self, tasks: Any, perform: Any, finished: int = 0, report: Any = None) -> dict[str, str]:
        self.num_tasks = len(tasks)
        for task in reversed(tasks):
            there, do = pickle.loads(pickle.dumps((task, perform)))
            do(there, "cpu")
        return {}


def write_market(folder: Path, sizes: list[int], seed: int) -> Path:
    for number, size in enumerate(sizes):
        frame = random_bars(ROWS, seed + number)
        write_symbol(folder, f"SIM{number}USD", frame.tail(size) if number % 2 else frame.head(size))
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
    st.sampled_from([(1 << 15, 1 << 20), (64, 100), (17, 300)]),
    st.booleans(),
)
def test_parts_of_any_size_give_the_bits_of_the_whole(
    sizes: list[int], seed: int, parts: tuple[int, int], posted: bool
) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        bars = write_market(Path(name) / "bars", [ROWS, *sizes], seed)
        whole = corpus_in_memory(read_bars(bars), CONFIG)
        patch.setattr(fields, "BLOCK_ROWS", parts[0])
        patch.setattr(rows_module, "CROSS_ROWS", parts[1])
        patch.setattr(build, "ROWS_PER_TASK", ROWS)
        built = build_corpus(bars, Path(name) / "corpus", CONFIG, engine=Posted() if posted else None)
        require_same(built, whole)
        files = [path.name for path in (Path(name) / "corpus").rglob("*") if path.is_file()]
        assert sorted(files) == sorted(
            ["manifest.json", "tokenizer.json", "state.json", *(f"{column}.npy" for column in COLUMN_TYPES)]
        )


def test_counts_by_asset_are_those_of_the_whole(tmp_path: Path) -> None:
    corpus = corpus_in_memory(write_market(tmp_path, [ROWS, 200, 30], 3), CONFIG)
    for context in (1, 64):
        for split, counts in count_events(corpus, context).items():
            rows = corpus.endpoints(split, context, unseal=True)
            for symbol, inside in corpus.asset_slices.items():
                assert counts[symbol] == ((rows >= inside.start) & (rows < inside.stop)).sum()
    assert sum(row.events for row in split_quality(corpus)) == corpus.valid_base.sum()


@pytest.mark.parametrize("error", [DataError, RuntimeError])
def test_what_fails_elsewhere_is_told_here_and_nothing_is_left(tmp_path: Path, error: type[Exception]) -> None:
    class Failing:
        run: Callable[..., dict[str, str]] = lambda *_, **__: {
            "0": "bars are bad" if error is DataError else "Traceback: bars are bad"
        }

    with pytest.raises(error, match="bars are bad"):
        build_corpus(write_market(tmp_path / "bars", [ROWS], 0), tmp_path / "out" / "corpus", CONFIG, engine=Failing())
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    bars = write_market(tmp_path / "bars", [ROWS], 0)
    with pytest.raises(DataError, match="changed while it was read"):
        build_corpus(
            bars, tmp_path / "corpus", CONFIG, progress=lambda *_: write_symbol(bars, "SIM0USD", random_bars(ROWS - 1))
        )


def test_rows_in_files_read_as_those_in_memory(tmp_path: Path) -> None:
    here, there = Rows.create({"A": 5, "B": 7}), Rows.create({"A": 5, "B": 7}, tmp_path)
    for start, size in ((5, 7), (0, 3), (3, 2)):
        values = np.random.default_rng(start).random((2, size)).astype(np.float32)
        for rows in (here, there):
            rows.write(start, {"ret_z": values[0], "ret_z_exact": values[1].astype(np.float64)})
    for part in (slice(0, 12), slice(4, 9), slice(12, 12)):
        for name in ("ret_z", "ret_z_exact"):
            np.testing.assert_array_equal(here.read([name], part)[name], there.read([name], part)[name])
