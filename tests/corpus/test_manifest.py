"""A corpus is opened only as it was written, by this version or by one that knew fewer fields."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from corpus.corpora import (
    CONFIG,
    ROWS,
    TRAIN_END,
    bars_before,
    entry_changed,
    manifest_of,
    rewritten,
    without_column,
)
from vaiom import __version__
from vaiom.corpus.append import append_bars
from vaiom.corpus.build import build_corpus
from vaiom.corpus.manifest import FORMAT_VERSION
from vaiom.corpus.series import Series
from vaiom.corpus.store import open_corpus
from vaiom.errors import DataError
from vaiom.experiments.registry import experiment
from vaiom.files import canonical_json, sha256_of, write_json
from vaiom.market.folder import read_bars
from vaiom.model.config import ModelConfig
from vaiom.training.loop import train


def test_the_manifest_describes_the_corpus(built: Path, bars: Path) -> None:
    manifest = manifest_of(built)
    assert (manifest["format_version"], manifest["vaiom_version"]) == (FORMAT_VERSION, __version__)
    for entry, (symbol, rows) in zip(manifest["inputs"], ROWS.items(), strict=True):
        assert (entry["symbol"], entry["rows_taken"]) == (symbol, rows)
        assert entry["sha256"] == sha256_of((bars / entry["file"]).read_bytes())
    corpus = open_corpus(built)
    assert manifest["events"]["train"] == len(corpus.endpoints("train"))
    for symbol, frame in read_bars(bars).items():
        first, last = (frame["Datetime"][row].isoformat() for row in (0, -1))
        assert manifest["series"][symbol] == {
            "symbol": symbol,
            "class": "SPOT" if symbol == "XAUUSD" else "FX",
            "timeframe": "1h",
            "source": None,
            "rows": ROWS[symbol],
            "first": first,
            "last": last,
        }
    assert list(corpus.series) == list(corpus.asset_slices) == list(manifest["series"])
    gold = Series(symbol="XAUUSD", asset_class="SPOT", timeframe="1h")
    assert corpus.series["XAUUSD"] == gold
    assert manifest["rows"] == sum(ROWS.values())
    assert manifest["edges"] == {name: edges[1:-1].tolist() for name, edges in corpus.edges.items()}
    assert manifest["like"] is corpus.like is None
    tokenizer = json.loads((built / "tokenizer.json").read_text())
    assert manifest["tokenizer_sha256"] == sha256_of(canonical_json(tokenizer))


def test_one_changed_byte_anywhere_is_noticed(copy: Path) -> None:
    rng = np.random.default_rng(3)
    for file in sorted(path for path in copy.rglob("*") if path.is_file()):
        original = file.read_bytes()
        damaged = [b"", original[:-5]]
        for _ in range(3):
            one_bit = bytearray(original)
            one_bit[int(rng.integers(len(original)))] ^= 1 << int(rng.integers(8))
            damaged.append(bytes(one_bit))
        for data in damaged:
            file.write_bytes(data)
            with pytest.raises(DataError):
                open_corpus(copy)
        file.unlink()
        with pytest.raises(DataError):
            open_corpus(copy)
        file.write_bytes(original)
    open_corpus(copy)


def test_what_is_no_corpus_of_this_format(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="another format version"):
        open_corpus(rewritten(copy, format_version=99))
    with pytest.raises(DataError, match="not a corpus"):
        open_corpus(tmp_path)
    for other in ([], {"format": "vaiom-checkpoint"}):
        write_json(tmp_path / "manifest.json", other)
        with pytest.raises(DataError, match="not the manifest of a corpus"):
            open_corpus(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda manifest: {"folder": "../" + manifest["folder"]}, "folder"),
        (entry_changed("arrays", "ret_z", dtype="<f8"), "arrays"),
        (lambda manifest: {"arrays": {}}, "arrays: not the columns"),
        (
            lambda manifest: {"arrays": manifest["arrays"] | {"x": manifest["arrays"]["ret_z"]}},
            "arrays: not the columns",
        ),
        (entry_changed("arrays", "ret_z", sha256=3), "arrays.ret_z.sha256"),
        (lambda manifest: {"state_sha256": 3}, "state_sha256"),
        (lambda manifest: {"tokenizer_sha256": ["x"]}, "tokenizer_sha256"),
        (entry_changed("series", "XAUUSD", rows=0), "series.XAUUSD: a series has rows"),
        (entry_changed("series", "XAUUSD", rows=40.0), "series.XAUUSD.rows"),
        (entry_changed("series", "XAUUSD", rows=41), "rows: not the sum"),
        (lambda manifest: {"rows": float(manifest["rows"])}, "rows: expected"),
        (entry_changed("series", "XAUUSD", last=3), "series.XAUUSD.last"),
        (entry_changed("series", "XAUUSD", timeframe=3), "timeframe"),
        (lambda manifest: {"events": dict(reversed(manifest["events"].items()))}, "events"),
        (lambda manifest: {"events": manifest["events"] | {"train": 1.5}}, "events"),
        (lambda manifest: {"inputs": [3]}, "inputs"),
        (lambda manifest: {"inputs": None}, "inputs"),
        (lambda manifest: {"series": []}, "series"),
        (lambda manifest: {"more": 1}, "more"),
    ],
)
def test_a_manifest_that_describes_no_corpus_is_refused(
    copy: Path, change: Any, words: str
) -> None:
    rewritten(copy, **change(manifest_of(copy)))
    with pytest.raises(DataError, match=rf"does not describe a corpus[\s\S]*{words}"):
        open_corpus(copy)


def test_a_tokenizer_of_another_corpus_is_refused(copy: Path) -> None:
    open_corpus(rewritten(copy))
    series = manifest_of(copy)["series"]
    of_4h = {name: entry | {"timeframe": "4h"} for name, entry in series.items()}
    for other in (of_4h, dict(reversed(series.items()))):
        with pytest.raises(DataError, match=r"not what was written[\s\S]*tokenizer.json"):
            open_corpus(rewritten(copy, series=other))


def test_without_verifying_arrays_must_still_have_their_type_and_length(copy: Path) -> None:
    file = copy / manifest_of(copy)["folder"] / "ret_z.npy"
    values = np.load(file)
    np.save(file, values + 1)
    assert_array_equal(open_corpus(copy, verify=False).columns["ret_z"], values + 1)
    for wrong in (values.astype(np.float64), values[1:], values[:, None]):
        np.save(file, wrong)
        with pytest.raises(DataError, match=r"not what was written[\s\S]*ret_z"):
            open_corpus(copy, verify=False)
    file.write_bytes(b"nothing")
    with pytest.raises(DataError, match="not what was written"):
        open_corpus(copy, verify=False)
    file.unlink()
    with pytest.raises(DataError, match="is missing"):
        open_corpus(copy, verify=False)


def test_a_corpus_older_than_a_field_serves_models_without_it(copy: Path, tmp_path: Path) -> None:
    corpus = open_corpus(without_column(copy, "usd_factor"))
    assert corpus.absent_columns == {"usd_factor"}
    model = ModelConfig(input="cont", fields=("ret_z", "range_z", "cross_abs", "log_wait"))
    assert np.isfinite(corpus.inputs(model)).all()
    needs_it = replace(model, fields=(*model.fields, "usd_factor"))
    small = {"context": 16, "width": 16, "num_layers": 1, "num_heads": 2, "steps": 2}
    demo = experiment("demo").with_changes(**small, validate_every=2)
    trained = train(corpus, demo.with_changes(fields=model.fields), tmp_path / "run", device="cpu")
    assert trained.best_bits > 0
    message = rf"no column usd_factor\n +where: +{copy}\n[\s\S]*try: +build the corpus again"
    for read in (
        lambda: corpus.inputs(needs_it),
        lambda: corpus.extra,
        lambda: train(corpus, demo.with_changes(fields=needs_it.fields), tmp_path / "no"),
    ):
        with pytest.raises(DataError, match=message):
            read()


def test_an_older_corpus_keeps_its_columns_when_bars_are_appended(
    built: Path, bars: Path, tmp_path: Path
) -> None:
    early = bars_before(bars, TRAIN_END + timedelta(days=3), tmp_path / "early")
    build_corpus(early, tmp_path / "corpus", CONFIG)
    without_column(tmp_path / "corpus", "cross_abs")
    append_bars(tmp_path / "corpus", bars)
    grown = open_corpus(tmp_path / "corpus")
    full = open_corpus(built)
    assert set(full.columns) - set(grown.columns) == {"cross_abs"}
    for name, column in grown.columns.items():
        assert_array_equal(column, full.columns[name], name)
