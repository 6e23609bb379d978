"""The protocol moved to a year: in order, with enough behind it and nothing of what comes after."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reproduction.walk_forward import (
    MAX_YEARS,
    TEST,
    TREE_EVENTS,
    TREES,
    score_year,
    splits_of,
    years_of,
)
from strategies import random_bars
from training.tiny_runs import TINY
from vaiom.baselines import lightgbm
from vaiom.corpus.build import CorpusConfig, build_corpus
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.files import read_json
from vaiom.market.folder import read_bars, write_symbol
from vaiom.training.loop import train

CONTEXT = 16
HORIZON = datetime(2026, 1, 1)


def daily(folder: Path, last: datetime, **starts: datetime) -> Corpus:
    """A corpus of daily bars of some assets from their starts to a day."""
    for seed, (symbol, start) in enumerate(starts.items()):
        bars = random_bars((HORIZON - start).days, seed, start, timedelta(days=1))
        write_symbol(folder / "bars", symbol, bars.filter(bars["Datetime"] <= last))
    return build_corpus(folder / "bars", folder / "corpus", CorpusConfig(timeframe="1d"))


def stamped(*stamps: np.ndarray) -> Any:
    """All that years depend on: when the bars of some assets are, and the corpus's own
    boundaries.
    """
    ends = np.cumsum([len(each) for each in stamps])
    slices = {
        number: slice(end - len(each), end)
        for number, (end, each) in enumerate(zip(ends, stamps, strict=True))
    }
    return SimpleNamespace(
        timestamps=np.concatenate(stamps), asset_slices=slices, splits=SplitConfig()
    )


def test_years_of_corpora_with_different_starts() -> None:
    def years(last: str, *starts: str) -> list[int]:
        days = [
            np.arange(start, np.datetime64(last) + 1, dtype="datetime64[D]") for start in starts
        ]
        return years_of(stamped(*(each.astype("datetime64[us]") for each in days)))

    start = "2012-01-01"
    late = "2015-03-01"
    assert years("2025-06-01", start, start) == list(range(2016, 2025))
    # One old asset does not make old years, one young asset does not take them away.
    assert years("2025-06-01", start, late, late)[0] == 2020
    assert years("2025-06-01", start, start, late)[0] == 2016
    # The year must be whole, and before the corpus's own tests.
    assert years("2024-12-30", start)[-1] == 2023
    assert years("2025-12-31", "2000-01-01")[0] == 2025 - MAX_YEARS
    assert years("2024-12-31", "2021-01-01") == []


def test_years_of_the_real_bars(shared_data: Path) -> None:
    bars = read_bars(shared_data / "bars_1h").values()
    assert years_of(stamped(*(each["Datetime"].to_numpy() for each in bars))) == list(
        range(2016, 2025)
    )


def test_a_year_is_scored_beside_trees_where_they_have_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        lightgbm, "HOLDOUT_TOLERANCE_BITS", 1.0
    )  # they learn little from so few events
    monkeypatch.setattr(lightgbm, "TreeConfig", partial(lightgbm.TreeConfig, rounds=3))
    corpus = daily(tmp_path, datetime(2023, 1, 1), AAA=datetime(2014, 1, 1)).with_splits(
        splits_of(2022)
    )
    train(corpus, TINY.with_changes(steps=4), tmp_path / "run", device="cpu")
    without = score_year(corpus, tmp_path / "run", "cpu")
    assert list(without.bits) == ["model", "frequency", "markov"]
    beside = score_year(corpus, tmp_path / "run", "cpu", tmp_path / "trees")
    assert list(beside.bits) == ["model", "frequency", "markov", TREES]
    np.testing.assert_array_equal(beside.bits["model"], without.bits["model"])
    # Kept, and fitted on this year's Train alone.
    [key] = (read_json(file) for file in (tmp_path / "trees").rglob("key.json"))
    assert (key["corpus_sha256"], key["context"]) == (corpus.sha256, CONTEXT)
    assert key["config"]["max_events"] == TREE_EVENTS == 300_000


def test_nothing_after_the_year_enters(tmp_path: Path) -> None:
    year = 2022
    starts = {"AAA": datetime(2016, 1, 1), "BBB": datetime(2016, 6, 1)}
    whole = daily(tmp_path / "whole", datetime(2025, 12, 31), **starts).with_splits(splits_of(year))
    cut = daily(tmp_path / "cut", datetime(2022, 12, 31), **starts).with_splits(splits_of(year))
    assert whole.tokenizer.sha256 == cut.tokenizer.sha256
    end = np.datetime64(datetime(year + 1, 1, 1))
    for split in ("train", "validation", TEST):
        rows = whole.endpoints(split, CONTEXT)
        same = cut.endpoints(split, CONTEXT)
        assert len(rows) > 0
        assert (whole.target_timestamps[rows] < end).all()
        for name in (
            "timestamps",
            "target_timestamps",
            "target_return",
            "target_gap",
            "cont",
            "disc",
        ):
            ours = getattr(whole, name)[rows]
            theirs = getattr(cut, name)[same]
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{split} {name}")


@pytest.mark.parametrize("year", [2016, 2024])
def test_the_default_year_is_the_papers_protocol(year: int) -> None:
    paper = SplitConfig().shifted_to(datetime(year - 1, 1, 1))
    ours = splits_of(year)
    assert (ours.train_end, ours.validation, ours.seal) == (
        paper.train_end,
        paper.validation,
        paper.tests[-1][1],
    )
