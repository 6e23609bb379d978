"""Looks at a test split are counted in the corpus and disturb nothing there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from simulated_market import TinyRuns

from vaiom.baselines.stored_losses import load_losses
from vaiom.corpus.append import append_bars
from vaiom.corpus.pack import pack, unpack
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import ConfigError, DataError
from vaiom.evaluation.access_ledger import (
    LEDGER_NAME,
    is_recorded,
    ledger_heads,
    model_accesses,
    read_ledger,
    record_access,
)
from vaiom.evaluation.predictor import score_baselines
from vaiom.market.folder import read_bars, write_symbol


@pytest.fixture
def corpus(tiny: TinyRuns, tmp_path: Path) -> Corpus:
    shutil.copytree(tiny.corpus, tmp_path / "corpus", ignore=shutil.ignore_patterns(LEDGER_NAME))
    return open_corpus(tmp_path / "corpus")


def look(corpus: Corpus, split: str) -> None:
    record_access(corpus, split, run="main", checkpoint_sha256="ab" * 32, num_events=7)


def test_looks_are_counted_by_split(corpus: Corpus) -> None:
    assert len(model_accesses(corpus, "test-h1")) == 0
    for split in ("test-h1", "test-h2", "test-h1"):
        look(corpus, split)
    assert (
        len(model_accesses(corpus, "test-h1")),
        len(model_accesses(corpus, "test-h2")),
        len(model_accesses(corpus, "sealed")),
    ) == (2, 1, 0)
    first = read_ledger(corpus)[0]
    assert (first.run, first.num_events, first.checkpoint_sha256) == ("main", 7, "ab" * 32)
    assert first.corpus_sha256 == corpus.sha256
    assert datetime.now(UTC) - datetime.fromisoformat(first.when) < timedelta(minutes=5)
    assert [split for split in corpus.splits.names if is_recorded(corpus, split)] == [
        "test-h1",
        "test-h2",
        "sealed",
    ]


def test_baselines_are_recorded_and_not_counted(corpus: Corpus, tmp_path: Path) -> None:
    def quietly(name: str) -> AbstractContextManager[Callable[..., None]]:
        return nullcontext(lambda *_: None)

    for split, unseal in (("validation", None), ("test-h1", None), ("sealed", "sealed")):
        score_baselines(
            corpus, ["frequency", "markov"], tmp_path, split, 16, quietly, unseal=unseal
        )
    assert [(each.run, each.split) for each in read_ledger(corpus)] == [
        (name, split) for split in ("test-h1", "sealed") for name in ("frequency", "markov")
    ]
    assert len(model_accesses(corpus, "test-h1")) == len(model_accesses(corpus, "sealed")) == 0
    with pytest.raises(ConfigError, match="not opened by accident"):
        score_baselines(corpus, ["frequency"], tmp_path, "sealed", 16, quietly)
    with pytest.raises(ConfigError, match="must name the split"):
        score_baselines(corpus, ["frequency"], tmp_path, "test-h1", 16, quietly, unseal="sealed")
    assert set(load_losses(tmp_path, corpus, "sealed", 16)) == {"frequency", "markov"}
    with pytest.raises(ConfigError, match="buffer is never scored") as caught:
        score_baselines(corpus, ["frequency"], tmp_path, "buffer", 16, quietly)
    assert caught.value.expected == "train, validation, test-h1, test-h2, sealed"
    before = read_ledger(corpus)
    with pytest.raises(ConfigError, match="unknown"):
        score_baselines(corpus, ["nobody"], tmp_path, "test-h1", 16, quietly)
    with pytest.raises(
        DataError
    ):  # losses of another context: refused before anything is fitted or looked at
        score_baselines(corpus, ["markov"], tmp_path, "test-h1", 32, quietly)
    assert read_ledger(corpus) == before


def test_a_corpus_without_a_folder_and_one_that_cannot_be_written_count_no_looks(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="only a corpus folder keeps a ledger"):
        look(replace(corpus, path=None), "test-h1")
    assert (
        record_access(corpus, "validation", run="main", checkpoint_sha256="ab", num_events=7)
        is None
    )
    assert record_access(corpus, "test-h1", run="main", checkpoint_sha256="ab", num_events=7) == 1
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    look(corpus, "test-h1")
    assert len(synced) == 1

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match="ledger cannot be written") as caught:
        look(corpus, "test-h1")
    assert caught.value.got == "No space left on device"


def test_the_corpus_opens_packs_and_grows_as_before(
    corpus: Corpus, tiny: TinyRuns, tmp_path: Path
) -> None:
    assert corpus.path is not None
    pack(corpus.path, tmp_path / "before.zip")
    look(corpus, "test-h1")
    assert open_corpus(corpus.path).sha256 == corpus.sha256
    pack(corpus.path, tmp_path / "after.zip")
    assert (tmp_path / "before.zip").read_bytes() == (tmp_path / "after.zip").read_bytes()
    assert (
        len(model_accesses(unpack(tmp_path / "after.zip", tmp_path / "elsewhere"), "test-h1")) == 0
    )
    bars = read_bars(tiny.bars)["EURUSD"].tail(30)
    later = bars.with_columns(bars["Datetime"].dt.offset_by("7d"))
    write_symbol(tmp_path / "later", "EURUSD", later)
    grown = append_bars(corpus.path, tmp_path / "later")
    assert len(grown) == len(corpus) + 30
    assert len(model_accesses(grown, "test-h1")) == 1


def test_each_line_names_all_before_it_and_older_lines_are_the_first_link(corpus: Corpus) -> None:
    assert corpus.path is not None
    file = corpus.path / LEDGER_NAME
    look(corpus, "test-h1")
    old = json.loads(file.read_text())
    assert old.pop("previous") == hashlib.sha256(b"").hexdigest()
    file.write_text(json.dumps(old) + "\n")
    for split in ("test-h2", "test-h1"):
        before = hashlib.sha256(file.read_bytes()).hexdigest()
        look(corpus, split)
        assert read_ledger(corpus)[-1].previous == before
        assert ledger_heads(corpus)[-2:] == [before, hashlib.sha256(file.read_bytes()).hexdigest()]
    assert [each.previous is None for each in read_ledger(corpus)] == [True, False, False]


def test_a_damaged_ledger_is_neither_read_nor_added_to(corpus: Corpus) -> None:
    assert corpus.path is not None
    look(corpus, "test-h1")
    file = corpus.path / LEDGER_NAME
    file.write_bytes(file.read_bytes() + b'{"when": 3}\n')
    before = file.read_bytes()
    for act in (lambda: len(model_accesses(corpus, "test-h1")), lambda: look(corpus, "test-h1")):
        with pytest.raises(DataError, match="line 2"):
            act()
    assert file.read_bytes() == before


def test_a_rebuilt_or_unpacked_corpus_keeps_its_ledger(tiny: TinyRuns, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    shutil.copytree(tiny.corpus, folder, ignore=shutil.ignore_patterns(LEDGER_NAME))
    record_access(open_corpus(folder), "test-h1", run="r", checkpoint_sha256="c", num_events=1)
    pack(folder, tmp_path / "corpus.zip")
    assert (
        len(model_accesses(unpack(tmp_path / "corpus.zip", folder, overwrite=True), "test-h1")) == 1
    )
    assert (
        len(model_accesses(unpack(tmp_path / "corpus.zip", tmp_path / "elsewhere"), "test-h1")) == 0
    )
