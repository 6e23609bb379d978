from __future__ import annotations

import json
import os
import shutil
import zipfile
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from strategies import frame_of, random_bars
from vaiom import __version__
from vaiom.corpus.append import append_bars
from vaiom.corpus.build import CorpusConfig, build_corpus, corpus_in_memory, propose_splits
from vaiom.corpus.manifest import FORMAT_VERSION
from vaiom.corpus.pack import pack, unpack
from vaiom.corpus.series import Series
from vaiom.corpus.split_quality import count_events, few_train_events, split_quality
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus, open_corpus
from vaiom.errors import ConfigError, DataError
from vaiom.features.fields import COLUMN_TYPES, CONT_FIELDS, DISC_FIELDS, EXTRA_FIELDS, MASK_BITS
from vaiom.files import FolderInUseError, canonical_json, sha256_of, write_json
from vaiom.market.folder import read_bars, write_symbol
from vaiom.market.timeframes import timeframe_of
from vaiom.model.config import ModelConfig

TRAIN_END = datetime(2023, 12, 1)
STORED_EXTRA = [name for name in EXTRA_FIELDS if name in COLUMN_TYPES]
CONFIG = CorpusConfig(splits=SplitConfig().shifted_to(TRAIN_END))
ROWS = {"EURUSD": 6000, "USDJPY": 5500, "XAUUSD": 40}


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bars")
    for seed, (symbol, rows) in enumerate(ROWS.items()):
        frame = random_bars(rows, seed)
        write_symbol(
            folder, symbol, frame.with_columns(pl.col("High") * 1.001, pl.col("Low") * 0.999)
        )
    return folder


@pytest.fixture(scope="module")
def built(bars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpora") / "corpus"
    build_corpus(bars, path, CONFIG)
    return path


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "corpus"))


def test_what_users_rely_on(built: Path) -> None:
    corpus = open_corpus(built)
    rows = sum(ROWS.values())
    assert corpus.cont.shape == (rows, 25)
    assert corpus.cont.dtype == np.float32
    assert corpus.extra.shape == (rows, len(EXTRA_FIELDS))
    assert corpus.extra.dtype == np.float32
    assert np.isfinite(corpus.extra).all()
    assert corpus.disc.shape == (rows, 15)
    assert corpus.meta.shape == (rows, 3)
    assert list(corpus.asset_slices) == sorted(ROWS)
    assert corpus.meta[corpus.asset_slices["XAUUSD"]].tolist()[0] == [3, 1, 0]
    assert [len(corpus.edges[name]) - 1 for name in ("return", "gap", "vol_regime")] == [16, 14, 5]
    assert (corpus.target_timestamps - corpus.timestamps)[0] == np.timedelta64(1, "h")
    for rows_of_asset in corpus.asset_slices.values():
        assert np.isnat(corpus.target_timestamps[rows_of_asset.stop - 1])
        assert not corpus.valid_base[rows_of_asset.stop - 1]
    sizes = corpus.tokenizer.vocabulary_sizes
    assert (corpus.disc < np.array(list(sizes.values()))).all()
    assert (corpus.disc >= 0).all()


def test_a_target_is_the_bucket_of_the_next_return_over_todays_scale(built: Path) -> None:
    corpus = open_corpus(built)
    rows = np.flatnonzero(corpus.valid_base)
    z = corpus.log_ret_next[rows] / corpus.sigma20[rows]
    edges, target = corpus.edges["return"], corpus.target_return[rows]
    assert (edges[target - 1] < z).all()
    assert (z <= edges[target]).all()
    assert not (corpus.log_ret_next[rows] == 0).any()


def test_endpoints_have_their_context_inside_one_asset_and_one_split(built: Path) -> None:
    corpus = open_corpus(built)
    for split in ("train", "validation", "test-h1"):
        for context in (1, 64, 512):
            rows = corpus.endpoints(split, context)
            starts = {
                symbol: rows_of_asset.start for symbol, rows_of_asset in corpus.asset_slices.items()
            }
            symbols = np.array(sorted(ROWS))[corpus.meta[rows, 0] - 1]
            assert all(
                row - context + 1 >= starts[symbol]
                for row, symbol in zip(rows, symbols, strict=True)
            )
            assert corpus.valid_base[rows].all()
    train = corpus.endpoints("train", 64)
    assert len(train)
    assert (corpus.target_timestamps[train] < np.datetime64(TRAIN_END)).all()
    assert len(corpus.endpoints("train", 10_000)) == 0


def test_the_sealed_interval_stays_shut(tmp_path: Path, bars: Path) -> None:
    early = SplitConfig().shifted_to(datetime(2023, 12, 1))
    sealed = SplitConfig(
        train_end=early.train_end,
        validation=(datetime(2024, 1, 1), datetime(2024, 2, 1)),
        tests=((datetime(2024, 2, 1), datetime(2024, 3, 1)),),
        seal=datetime(2024, 3, 1),
    )
    corpus = build_corpus(bars, tmp_path / "corpus", CorpusConfig(splits=sealed))
    with pytest.raises(ConfigError, match="--unseal"):
        corpus.endpoints("sealed")
    assert len(corpus.endpoints("sealed", unseal=True)) > 0
    with pytest.raises(ConfigError, match="test-h1"):
        corpus.endpoints("test-h9")


def test_less_than_64_bytes_a_row(built: Path) -> None:
    corpus = open_corpus(built)
    assert sum(column.itemsize for column in corpus.columns.values()) < 64


def test_an_extra_field_per_stored_column_and_the_wait_from_the_stamps(built: Path) -> None:
    corpus = open_corpus(built)
    for index, name in enumerate(STORED_EXTRA):
        np.testing.assert_array_equal(
            corpus.extra[:, index], corpus.columns[name].astype(np.float32), err_msg=name
        )
    waits = corpus.extra[:, EXTRA_FIELDS.index("log_wait")]
    for rows in corpus.asset_slices.values():
        hours = np.diff(corpus.timestamps[rows]) / np.timedelta64(1, "h")
        np.testing.assert_allclose(waits[rows], [0, *np.log(hours)], rtol=1e-6)


def test_the_manifest_describes_the_corpus(built: Path, bars: Path) -> None:
    manifest = json.loads((built / "manifest.json").read_text())
    assert manifest["format_version"] == FORMAT_VERSION
    assert set(STORED_EXTRA) < set(manifest["arrays"])
    assert [entry["symbol"] for entry in manifest["inputs"]] == sorted(ROWS)
    for entry in manifest["inputs"]:
        assert entry["sha256"] == sha256_of((bars / entry["file"]).read_bytes())
    corpus = open_corpus(built)
    assert manifest["events"]["train"] == len(corpus.endpoints("train"))
    frames = read_bars(bars)
    assert manifest["series"] == {
        symbol: {
            "symbol": symbol,
            "class": "SPOT" if symbol == "XAUUSD" else "FX",
            "timeframe": "1h",
            "source": None,
            "rows": rows,
            "first": frames[symbol]["Datetime"][0].isoformat(),
            "last": frames[symbol]["Datetime"][-1].isoformat(),
        }
        for symbol, rows in ROWS.items()
    }
    assert list(corpus.series) == list(corpus.asset_slices) == list(manifest["series"])
    assert corpus.series["XAUUSD"] == Series(symbol="XAUUSD", asset_class="SPOT", timeframe="1h")
    assert manifest["rows"] == sum(ROWS.values())
    assert [entry["rows_taken"] for entry in manifest["inputs"]] == list(ROWS.values())
    assert manifest["edges"] == {name: edges[1:-1].tolist() for name, edges in corpus.edges.items()}
    assert manifest["vaiom_version"] == __version__
    assert manifest["like"] is None
    assert corpus.like is None
    assert manifest["tokenizer_sha256"] == sha256_of(
        canonical_json(json.loads((built / "tokenizer.json").read_text()))
    )


def test_building_twice_gives_the_same_bytes(built: Path, bars: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    build_corpus(bars, again, CONFIG)
    files = sorted(path.relative_to(built) for path in built.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    for file in files:
        assert (built / file).read_bytes() == (again / file).read_bytes(), file


def test_one_changed_byte_anywhere_is_noticed(copy: Path) -> None:
    rng = np.random.default_rng(3)
    for file in sorted(path for path in copy.rglob("*") if path.is_file()):
        original = file.read_bytes()
        for _ in range(3):
            damaged = bytearray(original)
            damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
            file.write_bytes(bytes(damaged))
            # White space in a JSON file is not content; everything else is.
            if file.suffix == ".json" and _same_json(bytes(damaged), original):
                continue
            with pytest.raises(DataError):
                open_corpus(copy)
        file.write_bytes(original[:-1])
        if file.suffix != ".json":
            with pytest.raises(DataError):
                open_corpus(copy)
        file.unlink()
        with pytest.raises(DataError):
            open_corpus(copy)
        file.write_bytes(original)
    open_corpus(copy)


def _same_json(a: bytes, b: bytes) -> bool:
    try:
        return json.loads(a) == json.loads(b)
    except ValueError:
        return False


def test_another_format_version_is_refused(copy: Path) -> None:
    file = copy / "manifest.json"
    manifest = json.loads(file.read_text()) | {"format_version": 99}
    file.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="another format version"):
        open_corpus(copy)


def test_not_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a corpus"):
        open_corpus(tmp_path)
    for other in ([], {"format": "vaiom-checkpoint"}):
        write_json(tmp_path / "manifest.json", other)
        with pytest.raises(DataError, match="not the manifest of a corpus"):
            open_corpus(tmp_path)


def rewritten(corpus: Path, **changes: Any) -> Path:
    """The corpus with another manifest, hashed again: damage that no checksum can see."""
    manifest = json.loads((corpus / "manifest.json").read_text()) | changes
    del manifest["manifest_sha256"]
    write_json(
        corpus / "manifest.json",
        {**manifest, "manifest_sha256": sha256_of(canonical_json(manifest))},
    )
    return corpus


def changed_entry(section: str, name: str, **changes: Any) -> Any:
    return lambda manifest: {
        section: {**manifest[section], name: {**manifest[section][name], **changes}}
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda manifest: {"folder": "../" + manifest["folder"]}, "folder"),
        (changed_entry("arrays", "ret_z", dtype="<f8"), "arrays"),
        (
            lambda manifest: {
                "arrays": {**manifest["arrays"], "more": manifest["arrays"]["ret_z"]}
            },
            "arrays",
        ),
        (changed_entry("arrays", "ret_z", sha256=3), "arrays.ret_z.sha256"),
        (lambda manifest: {"state_sha256": 3}, "state_sha256"),
        (lambda manifest: {"tokenizer_sha256": ["x"]}, "tokenizer_sha256"),
        (changed_entry("series", "XAUUSD", rows=0), "series.XAUUSD: a series has rows"),
        (changed_entry("series", "XAUUSD", rows=40.0), "series.XAUUSD.rows"),
        (changed_entry("series", "XAUUSD", rows=41), "rows: not the sum"),
        (lambda manifest: {"rows": float(manifest["rows"])}, "rows: expected"),
        (changed_entry("series", "XAUUSD", last=3), "series.XAUUSD.last"),
        (lambda manifest: {"events": dict(reversed(manifest["events"].items()))}, "events"),
        (lambda manifest: {"events": {**manifest["events"], "train": 1.5}}, "events"),
        (lambda manifest: {"inputs": [3]}, "inputs"),
        (changed_entry("series", "XAUUSD", timeframe=3), "timeframe"),
        (lambda manifest: {"inputs": None}, "inputs"),
        (lambda manifest: {"series": []}, "series"),
        (lambda manifest: {"more": 1}, "more"),
    ],
)
def test_a_manifest_that_describes_no_corpus_is_refused(
    copy: Path, change: Any, words: str
) -> None:
    rewritten(copy, **change(json.loads((copy / "manifest.json").read_text())))
    with pytest.raises(DataError, match=rf"does not describe a corpus[\s\S]*{words}"):
        open_corpus(copy)


def test_a_tokenizer_of_another_corpus_is_refused(copy: Path) -> None:
    open_corpus(rewritten(copy))
    series = json.loads((copy / "manifest.json").read_text())["series"]
    of_4h = {name: {**entry, "timeframe": "4h"} for name, entry in series.items()}
    for other in (of_4h, dict(reversed(series.items()))):
        with pytest.raises(DataError, match=r"not what was written[\s\S]*tokenizer.json"):
            open_corpus(rewritten(copy, series=other))


def test_without_verifying_arrays_must_still_have_their_type_and_length(copy: Path) -> None:
    file = copy / open_corpus(copy).manifest["folder"] / "ret_z.npy"
    values = np.load(file)
    np.save(file, values + 1)
    np.testing.assert_array_equal(open_corpus(copy, verify=False).columns["ret_z"], values + 1)
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


def test_a_model_reads_its_fields_in_its_order(built: Path) -> None:
    corpus = open_corpus(built)
    names = ("range_z", "ret_z", "log_wait", "hour_sin", "mask_any", "usd_factor")
    read = corpus.inputs(ModelConfig(input="cont", fields=names))
    for index, name in enumerate(names):
        source = (corpus.cont, CONT_FIELDS) if name in CONT_FIELDS else (corpus.extra, EXTRA_FIELDS)
        np.testing.assert_array_equal(
            read[:, index], source[0][:, source[1].index(name)], err_msg=name
        )
    np.testing.assert_array_equal(corpus.inputs(ModelConfig(input="cont")), corpus.cont)
    read = corpus.inputs(ModelConfig(input="disc", fields=("hour", "return_bucket")))
    np.testing.assert_array_equal(
        read, corpus.disc[:, [DISC_FIELDS.index(name) for name in ("hour", "return_bucket")]]
    )
    assert read.dtype == np.float32


@pytest.fixture
def older(copy: Path) -> Path:
    """The corpus as a version without the field `usd_factor` would have built it."""
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / manifest["folder"] / "usd_factor.npy").unlink()
    return rewritten(copy, arrays=without(manifest["arrays"], "usd_factor"))


def without(entries: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: entry for key, entry in entries.items() if key != name}


def test_a_corpus_older_than_a_field_serves_models_without_it(older: Path) -> None:
    corpus = open_corpus(older)
    assert corpus.absent_columns == {"usd_factor"}
    model = ModelConfig(input="cont", fields=("ret_z", "range_z", "cross_abs", "log_wait"))
    assert np.isfinite(corpus.inputs(model)).all()
    needs_it = replace(model, fields=(*model.fields, "usd_factor"))
    message = f"no column usd_factor\n +where: +{older}\n(.|\n)*try: +build the corpus again"
    for read in (lambda: corpus.inputs(needs_it), lambda: corpus.extra):
        with pytest.raises(DataError, match=message):
            read()


def test_a_model_trains_on_a_corpus_older_than_a_field_that_it_does_not_read(
    older: Path, tmp_path: Path
) -> None:
    from vaiom.experiments.registry import experiment
    from vaiom.training.loop import train

    def changed(*fields: str) -> Any:
        small = {"context": 16, "width": 16, "num_layers": 1, "num_heads": 2, "steps": 2}
        return experiment("demo").with_changes(**small, validate_every=2, fields=fields)

    corpus = open_corpus(older)
    done = train(corpus, changed("ret_z", "range_z"), tmp_path / "run", device="cpu")
    assert done.best_bits > 0
    with pytest.raises(DataError, match="no column usd_factor"):
        train(corpus, changed("ret_z", "usd_factor"), tmp_path / "other", device="cpu")


def test_a_corpus_must_have_the_papers_columns(copy: Path) -> None:
    arrays = json.loads((copy / "manifest.json").read_text())["arrays"]
    for wrong in (without(arrays, "gap_z"), {**arrays, "gap_y": arrays["gap_z"]}):
        with pytest.raises(DataError, match="arrays: not the columns"):
            open_corpus(rewritten(copy, arrays=wrong))


def test_an_older_corpus_keeps_its_columns_when_bars_are_appended(
    bars: Path, tmp_path: Path
) -> None:
    cut = TRAIN_END + timedelta(days=3)
    early = split_bars(bars, tmp_path / "early", cut, after=False)
    build_corpus(early, tmp_path / "corpus", CONFIG)
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    rewritten(tmp_path / "corpus", arrays=without(manifest["arrays"], "cross_abs"))
    grown, full = (
        append_bars(tmp_path / "corpus", bars),
        build_corpus(bars, tmp_path / "full", CONFIG),
    )
    assert set(full.columns) - set(grown.columns) == {"cross_abs"}
    for name, column in open_corpus(tmp_path / "corpus").columns.items():
        np.testing.assert_array_equal(column, full.columns[name], err_msg=name)


def test_zero_shares_are_of_the_events_of_train_and_the_zeros_among_their_targets(
    built: Path,
) -> None:
    for (_, asset), share in zip(
        open_corpus(built).by_asset(), open_corpus(built).tokenizer.zero_share, strict=True
    ):
        train = ~asset.mask_any & (asset.split_codes == 0)
        zero = train & (asset.log_ret_next == 0)
        assert share == pytest.approx(
            zero.sum() / max(1, (zero | (train & ~asset.target_bad)).sum())
        )


def test_assets_with_few_train_events_are_named(built: Path) -> None:
    corpus = open_corpus(built)
    train = {
        symbol: int((asset.valid_base & (asset.split_codes == 0)).sum())
        for symbol, asset in corpus.by_asset()
    }
    assert few_train_events(corpus) == train
    assert max(train.values()) < 1000
    longer = corpus.with_splits(SplitConfig().shifted_to(datetime(2024, 3, 1)))
    assert list(few_train_events(longer)) == ["XAUUSD"]
    assert count_events(corpus) == count_events(corpus, 512)
    np.testing.assert_array_equal(corpus.endpoints("train"), corpus.endpoints("train", 512))
    for context in (0, -1):
        with pytest.raises(ConfigError, match="at least one row"):
            corpus.endpoints("train", context)
    assert len(corpus.endpoints("train", 1)) == sum(train.values())


def test_other_splits_with_a_given_tokenizer(built: Path) -> None:
    corpus = open_corpus(built)
    later = SplitConfig().shifted_to(datetime(2024, 3, 1))
    refitted, kept = corpus.with_splits(later), corpus.with_splits(later, corpus.tokenizer)
    assert kept.tokenizer is corpus.tokenizer
    assert refitted.tokenizer.sha256 != kept.tokenizer.sha256
    np.testing.assert_array_equal(kept.target_return, corpus.target_return)
    assert len({corpus.sha256, kept.sha256, refitted.sha256}) == 3
    assert kept.manifest["splits"] == later.to_json()


def test_edges_of_another_tokenizer_are_taken_over(built: Path, bars: Path, tmp_path: Path) -> None:
    like = open_corpus(built).tokenizer
    config = CorpusConfig(like=like, splits=SplitConfig().shifted_to(datetime(2024, 3, 1)))
    made = build_corpus(bars, tmp_path / "like", config)
    assert made.tokenizer.has_buckets_of(like)
    assert made.tokenizer.zero_share != like.zero_share
    assert made.manifest["like"] == like.sha256
    assert made.like is made.tokenizer
    np.testing.assert_array_equal(made.target_return, open_corpus(built).target_return)
    assert made.with_splits(CONFIG.splits).tokenizer.has_buckets_of(like)
    assert corpus_in_memory(bars, CONFIG, tokenizer=like).tokenizer is like


# Appending


def split_bars(bars: Path, folder: Path, cut: datetime, after: bool) -> Path:
    for symbol, frame in read_bars(bars).items():
        part = frame.filter(pl.col("Datetime") >= cut if after else pl.col("Datetime") < cut)
        if len(part):
            write_symbol(folder, symbol, part)
    return folder


def assert_same_data(a: Corpus, b: Corpus) -> None:
    assert a.sha256 == b.sha256
    for name in a.columns:
        np.testing.assert_array_equal(a.columns[name], b.columns[name], err_msg=name)
    assert a.manifest["events"] == b.manifest["events"]
    assert a.manifest["state_sha256"] == b.manifest["state_sha256"]


@pytest.mark.parametrize("with_history", [True, False])
def test_appending_equals_a_full_build(
    built: Path, bars: Path, tmp_path: Path, with_history: bool
) -> None:
    corpus = tmp_path / "corpus"
    first, second = TRAIN_END + timedelta(days=3), TRAIN_END + timedelta(days=100)
    build_corpus(split_bars(bars, tmp_path / "early", first, after=False), corpus, CONFIG)
    middle = split_bars(bars, tmp_path / "middle", second, after=False)
    append_bars(
        corpus,
        split_bars(middle, tmp_path / "part", first, after=True) if not with_history else middle,
    )
    grown = append_bars(
        corpus, bars if with_history else split_bars(bars, tmp_path / "late", second, after=True)
    )
    assert_same_data(grown, open_corpus(built))
    assert_same_data(open_corpus(corpus), open_corpus(built))
    assert len(list(corpus.glob("rows-*"))) == 1


def test_assets_appended_one_after_another_end_as_a_full_build(
    built: Path, bars: Path, tmp_path: Path
) -> None:
    """The cross fields of the early asset's rows were made without the late one, and are
    made anew.
    """
    corpus, cut = tmp_path / "corpus", TRAIN_END + timedelta(days=3)
    build_corpus(split_bars(bars, tmp_path / "early", cut, after=False), corpus, CONFIG)
    late = split_bars(bars, tmp_path / "late", cut, after=True)
    for number, symbol in enumerate(("USDJPY", "EURUSD")):
        write_symbol(tmp_path / str(number), symbol, read_bars(late)[symbol])
        append_bars(corpus, tmp_path / str(number))
        lagging = open_corpus(corpus)
        if symbol == "USDJPY":
            assert not lagging.columns["cross_abs"][lagging.asset_slices[symbol]][-100:].any()
    assert_same_data(open_corpus(corpus), open_corpus(built))


def test_two_bars_around_a_weekend_have_no_timeframe_of_their_own(tmp_path: Path) -> None:
    """Neither those of a new asset, though it is the first, nor new bars alone; bars that are too
    close are refused.
    """
    days = pl.datetime_range(datetime(2020, 1, 1), datetime(2025, 5, 12), "1d", eager=True)
    days = days.filter(days.dt.weekday() <= 5).alias("Datetime")
    bars = {
        symbol: random_bars(len(days), seed).with_columns(days)
        for seed, symbol in enumerate(("CL", "GC"))
    }
    friday = len(days) - 2
    for symbol, frame in bars.items():
        write_symbol(tmp_path / "early", symbol, frame[:friday])
        write_symbol(tmp_path / "new", symbol, frame[friday:])
    assert days[friday:].diff()[1] == timedelta(days=3)
    corpus = build_corpus(tmp_path / "early", tmp_path / "corpus")
    assert len(append_bars(tmp_path / "corpus", tmp_path / "new")) == len(corpus) + 4
    write_symbol(tmp_path / "early", "AA", bars["CL"][friday:])
    assert build_corpus(tmp_path / "early", tmp_path / "three").tokenizer.timeframe == "1d"
    assert corpus_in_memory(read_bars(tmp_path / "early")).tokenizer.timeframe == "1d"
    write_symbol(tmp_path / "close", "CL", random_bars(3, start=datetime(2025, 6, 2)))
    with pytest.raises(DataError, match="another timeframe"):
        append_bars(tmp_path / "corpus", tmp_path / "close")


def test_appending_nothing_new_changes_nothing(copy: Path, bars: Path) -> None:
    before = (copy / "manifest.json").read_bytes()
    append_bars(copy, bars)
    assert (copy / "manifest.json").read_bytes() == before


def test_appending_refuses_what_would_change_the_fit(bars: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    early = split_bars(bars, tmp_path / "early", TRAIN_END - timedelta(days=3), after=False)
    build_corpus(early, corpus, CONFIG)
    with pytest.raises(DataError, match="before the end of Train"):
        append_bars(corpus, bars)


def test_appending_refuses_a_rewritten_history(copy: Path, bars: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rewritten"
    frame = read_bars(bars)["EURUSD"]
    row = len(frame) - 500
    frame = frame.with_row_index().with_columns(
        Close=pl.when(pl.col("index") == row).then(pl.col("Close") * 1.001).otherwise("Close")
    )
    write_symbol(folder, "EURUSD", frame.drop("index"))
    with pytest.raises(DataError, match="differ from the history") as refused:
        append_bars(copy, folder)
    assert f"EURUSD.parquet, {frame['Datetime'][row]}\n" in str(refused.value)


def test_appending_refuses_an_unknown_asset(copy: Path, tmp_path: Path) -> None:
    write_symbol(tmp_path / "new", "GBPUSD", random_bars(100, start=datetime(2025, 1, 1)))
    with pytest.raises(DataError, match="GBPUSD"):
        append_bars(copy, tmp_path / "new")


def test_appended_bars_are_sources_and_what_a_killed_append_left_is_removed(
    bars: Path, tmp_path: Path
) -> None:
    """From the very end of Train on; progress counts the files."""
    corpus, seen = tmp_path / "corpus", []
    build_corpus(split_bars(bars, tmp_path / "early", TRAIN_END, after=False), corpus, CONFIG)
    late = split_bars(bars, tmp_path / "late", TRAIN_END, after=True)
    (corpus / "rows-0123456789abcdef").mkdir()
    grown = append_bars(corpus, late, progress=lambda *each: seen.append(each))
    assert [path.name for path in corpus.glob("rows-*")] == [grown.manifest["folder"]]
    frames = read_bars(late)
    assert [(entry["symbol"], entry["rows_taken"]) for entry in grown.manifest["inputs"][3:]] == [
        (symbol, len(frame)) for symbol, frame in frames.items()
    ]
    assert (
        sum(entry["rows_taken"] for entry in grown.manifest["inputs"])
        == len(grown)
        == sum(ROWS.values())
    )
    assert len(seen) >= len(frames)
    # Also where nothing is new.
    (corpus / "rows-0123456789abcdef").mkdir()
    append_bars(corpus, late)
    assert len(list(corpus.glob("rows-*"))) == 1


def test_a_history_that_begins_earlier_or_lacks_a_bar_is_another_one(
    copy: Path, bars: Path, tmp_path: Path
) -> None:
    frame = read_bars(bars)["USDJPY"]
    earlier = frame[:1].with_columns(pl.col("Datetime") - timedelta(hours=1))
    lacking = [
        (pl.concat([frame[:row], frame[row + 1 :]]), frame["Datetime"][row])
        for row in (1, 5_000, len(frame) - 2)
    ]
    for number, (wrong, where) in enumerate(
        [(pl.concat([earlier, frame]), earlier["Datetime"][0]), *lacking]
    ):
        write_symbol(tmp_path / str(number), "USDJPY", wrong)
        with pytest.raises(
            DataError, match=rf"differ from the history[\s\S]*USDJPY.parquet, {where}"
        ):
            append_bars(copy, tmp_path / str(number))
    row = 5_000
    spoiled = frame.with_columns(
        Close=pl.when(pl.int_range(pl.len()) == row).then(9.0).otherwise("Close")
    )
    write_symbol(tmp_path / "spoiled", "USDJPY", spoiled)
    with pytest.raises(DataError, match=f"USDJPY.parquet, {frame['Datetime'][row]}"):
        append_bars(copy, tmp_path / "spoiled")
    write_symbol(tmp_path / "end", "USDJPY", frame.tail(3))
    assert append_bars(copy, tmp_path / "end").sha256 == open_corpus(copy).sha256


@pytest.mark.parametrize("kind", ["order", "timeframe", "no slots", "no table"])
def test_states_of_another_corpus_are_refused(copy: Path, bars: Path, kind: str) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    file = copy / manifest["folder"] / "state.json"
    states = json.loads(file.read_text())
    if kind == "order":
        states = dict(reversed(states.items()))
    elif kind == "timeframe":
        slots = states["XAUUSD"]["slots"]
        states["XAUUSD"]["slots"] = {
            name: [row[::2] for row in table] for name, table in slots.items()
        }
    elif kind == "no slots":
        states["XAUUSD"] |= {"slots": None, "means": {}}
    else:
        states = list(states.values())
    write_json(file, states)
    rewritten(copy, state_sha256=sha256_of(file.read_bytes()))
    open_corpus(copy)
    with pytest.raises(DataError, match=r"not what was written[\s\S]*state.json"):
        append_bars(copy, bars)


def test_one_process_writes_a_corpus_at_a_time(bars: Path, tmp_path: Path) -> None:
    """Whoever builds or appends while another does is refused at once and told who that is."""
    corpus, cut, refused = tmp_path / "corpus", TRAIN_END + timedelta(days=3), []
    early, late = (
        split_bars(bars, tmp_path / str(after), cut, after=after) for after in (False, True)
    )

    def meanwhile(*_: object) -> None:
        for write in (
            lambda: build_corpus(bars, corpus, CONFIG),
            lambda: append_bars(corpus, late),
        ):
            with pytest.raises(FolderInUseError, match=f"process {os.getpid()} on"):
                write()
            refused.append(write)

    build_corpus(early, corpus, CONFIG, progress=meanwhile)
    append_bars(corpus, late, progress=meanwhile)
    assert len(refused) > 4
    build_corpus(bars, tmp_path / "whole", CONFIG)
    assert_same_data(open_corpus(corpus), open_corpus(tmp_path / "whole"))


# Moving


def test_pack_and_unpack(built: Path, tmp_path: Path) -> None:
    size = pack(built, tmp_path / "corpus.zip")
    assert size == (tmp_path / "corpus.zip").stat().st_size
    assert_same_data(unpack(tmp_path / "corpus.zip", tmp_path / "there"), open_corpus(built))
    with pytest.raises(DataError, match="exists already"):
        unpack(tmp_path / "corpus.zip", tmp_path / "there")


@pytest.mark.parametrize(
    "name", ["../evil.npy", "/tmp/evil.npy", "rows-0123456789abcdef/../../x.npy", "a.exe", "C:\\x"]
)
def test_a_packed_name_that_climbs_out_is_refused(built: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "corpus.zip"
    pack(built, file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(DataError, match="no corpus has"):
        unpack(file, tmp_path / "target" / "corpus")
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("kind", ["longer array", "array of no corpus", "twice", "long manifest"])
def test_no_more_is_unpacked_than_the_manifest_declares(
    built: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However well it packs: bytes that do not repeat pass every bound on the ratio."""
    file, grown, folder = (
        tmp_path / "corpus.zip",
        tmp_path / "grown.zip",
        open_corpus(built).manifest["folder"],
    )
    pack(built, file)
    noise = np.random.default_rng(0).bytes(1 << 20)
    monkeypatch.setattr("vaiom.corpus.pack._MOST_TEXT", 1 << 20)
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(grown, "w") as target:
        for info in source.infolist():
            more = {"longer array": f"{folder}/ret_z.npy", "long manifest": "manifest.json"}.get(
                kind
            )
            target.writestr(
                info.filename, source.read(info) + (noise if info.filename == more else b"")
            )
        if kind == "array of no corpus":
            target.writestr(f"{folder}/another.npy", noise)
        if kind == "twice":
            with pytest.warns(UserWarning, match="Duplicate"):
                target.writestr("manifest.json", source.read("manifest.json"))
    written = []
    real = shutil.copyfileobj
    monkeypatch.setattr(
        "vaiom.corpus.pack.shutil.copyfileobj", lambda *values: written.append(1) or real(*values)
    )
    with pytest.raises(DataError, match=r"declares|no corpus has"):
        unpack(grown, tmp_path / "there")
    assert len(written) <= 1  # the manifest


def test_the_record_of_looks_survives_every_rebuild(copy: Path, bars: Path, tmp_path: Path) -> None:
    (copy / "ledger.jsonl").write_text("a look")
    pack(copy, tmp_path / "corpus.zip")
    build_corpus(bars, copy, CONFIG, overwrite=True)
    assert (copy / "ledger.jsonl").read_text() == "a look"
    unpack(tmp_path / "corpus.zip", copy, overwrite=True)
    assert (copy / "ledger.jsonl").read_text() == "a look"
    unpack(tmp_path / "corpus.zip", tmp_path / "there")
    assert not (tmp_path / "there" / "ledger.jsonl").exists()


def test_a_packed_file_that_is_not_what_its_manifest_says_is_refused(
    built: Path, tmp_path: Path
) -> None:
    file, other, folder = (
        tmp_path / "corpus.zip",
        tmp_path / "other.zip",
        open_corpus(built).manifest["folder"],
    )
    pack(built, file)
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(other, "w") as target:
        for info in source.infolist():
            data = bytearray(source.read(info))
            if info.filename == f"{folder}/ret_z.npy":
                data[-1] ^= 1
            target.writestr(info.filename, bytes(data))
    with pytest.raises(DataError, match="not what was written"):
        unpack(other, tmp_path / "there")
    assert not (tmp_path / "there").exists()
    with pytest.raises(DataError, match="no such file"):
        unpack(tmp_path / "nothing.zip", tmp_path / "there")
    with pytest.raises(DataError, match=r"a folder, not a file[\s\S]*corpus.zip"):
        pack(built, tmp_path)


def test_packing_twice_gives_the_same_bytes_smaller_than_the_corpus(
    built: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        pack(built, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert (tmp_path / "one").stat().st_size < sum(
        file.stat().st_size for file in built.rglob("*") if file.is_file()
    )


def test_a_packed_bomb_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bomb.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b"\0" * (64 << 20))
    with pytest.raises(DataError, match="would unpack to more"):
        unpack(file, tmp_path / "corpus")


def test_a_damaged_pack_leaves_nothing_behind(built: Path, tmp_path: Path) -> None:
    file = tmp_path / "corpus.zip"
    pack(built, file)
    data = file.read_bytes()
    for damaged in (
        data[: len(data) // 2],
        b"",
        b"not a zip",
        data[:2000] + bytes([data[2000] ^ 1]) + data[2001:],
    ):
        file.write_bytes(damaged)
        with pytest.raises(DataError):
            unpack(file, tmp_path / "target" / "corpus")
    assert not (tmp_path / "target" / "corpus").exists()


# Bad bars


@pytest.mark.parametrize("step", ["15min", "4h", "1w"])
def test_the_timeframe_is_that_of_the_bars(step: str, tmp_path: Path) -> None:
    length = timeframe_of(step)
    write_symbol(
        tmp_path / "bars",
        "EURUSD",
        random_bars(900, start=datetime(2023, 12, 31) - 890 * length, step=length),
    )
    built = build_corpus(tmp_path / "bars", tmp_path / "corpus")
    assert built.tokenizer.timeframe == step
    assert len(built.endpoints("train"))
    assert (built.extra[600:, EXTRA_FIELDS.index("next_slot_vol")] != 0).mean() > 0.5
    write_symbol(tmp_path / "odd", "EURUSD", random_bars(50, step=timedelta(minutes=7)))
    with pytest.raises(DataError, match=r"divide a day[\s\S]*'7min'[\s\S]*resample"):
        build_corpus(tmp_path / "odd", tmp_path / "corpus2")


def test_classes_are_the_users_words_and_the_papers_keep_their_numbers(tmp_path: Path) -> None:
    for number, symbol in enumerate(("AAPL", "BTCUSDT", "EURUSD", "US500", "XAUUSD", "ZINC")):
        write_symbol(tmp_path / "bars", symbol, random_bars(900, seed=number))
    config = replace(CONFIG, classes={"ZINC": "BASE METAL"})
    built = build_corpus(tmp_path / "bars", tmp_path / "corpus", config)
    assert built.tokenizer.classes == ("EQUITY", "CRYPTO", "FX", "INDEX", "SPOT", "BASE METAL")
    assert built.tokenizer.class_names == ("FX", "SPOT", "BASE METAL", "CRYPTO", "EQUITY", "INDEX")
    assert [int(built.meta[rows.start, 1]) for rows in built.asset_slices.values()] == [
        4,
        3,
        0,
        5,
        1,
        2,
    ]
    assert built.tokenizer.vocabulary_sizes["asset_class_id"] == 6
    assert [built.tokenizer.class_id(new) for new in ("SOLUSDT", "USDJPY", "XAGUSD")] == [3, 0, 1]
    replace(CONFIG, classes={"ZINC": "B" * 32})
    for wrong in ("", "B" * 33, "a/b", " B"):
        with pytest.raises(ConfigError, match="asset class"):
            replace(CONFIG, classes={"ZINC": wrong})


def test_two_classes_are_counted_where_a_corpus_has_fewer(built: Path) -> None:
    tokenizer = open_corpus(built).tokenizer
    assert tokenizer.vocabulary_sizes["asset_class_id"] == 2
    assert tokenizer.class_id("BTCUSDT") == 0


def test_bars_of_another_timeframe_are_refused(bars: Path, tmp_path: Path) -> None:
    write_symbol(tmp_path / "minutes", "EURUSD", random_bars(500, step=timedelta(minutes=1)))
    with pytest.raises(DataError, match="data resample"):
        build_corpus(tmp_path / "minutes", tmp_path / "corpus", CorpusConfig(timeframe="1h"))
    assert not (tmp_path / "corpus").exists()
    with pytest.raises(DataError, match="name the right --timeframe") as caught:
        build_corpus(bars, tmp_path / "corpus", CorpusConfig(timeframe="15min"))
    assert "resample" not in str(caught.value.fix)
    with pytest.raises(ConfigError):
        CorpusConfig(timeframe="7min")


def test_a_timeframe_is_stored_in_one_spelling_and_assumed_for_a_single_bar(
    built: Path, tmp_path: Path
) -> None:
    frames = {"EURUSD": random_bars(900, step=timedelta(hours=4), start=datetime(2023, 7, 5))}
    config = replace(CONFIG, timeframe="240min")
    assert corpus_in_memory(frames, config).tokenizer.timeframe == "4h"
    assert corpus_in_memory(frames, CONFIG).tokenizer.timeframe == "4h"
    # Of the first asset by name, whatever the order.
    mixed = {"X": random_bars(1), **frames}
    assert corpus_in_memory(mixed, CONFIG).tokenizer.timeframe == "4h"
    one = corpus_in_memory({"EURUSD": random_bars(1)}, tokenizer=open_corpus(built).tokenizer)
    assert len(one) == 1


def test_boundaries_that_leave_a_split_empty_are_refused_with_others_that_fit(
    tmp_path: Path,
) -> None:
    for symbol, days in (("EURUSD", 0), ("GBPUSD", 40), ("USDJPY", 20)):
        start = datetime(2023, 1, 1) + timedelta(days=days)
        write_symbol(
            tmp_path / "bars", symbol, random_bars(24 * 60 + 1, days, start)
        )  # its last bar begins a day
    fitting = propose_splits(tmp_path / "bars")
    assert fitting == SplitConfig.covered_by(datetime(2023, 1, 1), datetime(2023, 4, 11))
    early = SplitConfig().shifted_to(datetime(2022, 12, 1))
    for splits, name in ((SplitConfig(), "Validation"), (early, "Train")):
        with pytest.raises(DataError, match=f"no bar lies in {name}") as caught:
            build_corpus(
                tmp_path / "bars", tmp_path / "corpus", CorpusConfig(splits=splits), covered=True
            )
        assert caught.value.got == "bars from 2023-01-01 00:00:00 to 2023-04-11 00:00:00"
        assert caught.value.fix == fitting.to_options()
    build_corpus(tmp_path / "bars", tmp_path / "corpus", CorpusConfig(splits=fitting), covered=True)
    build_corpus(tmp_path / "bars", tmp_path / "corpus2")


def test_hidden_daily_bars_are_refused(bars: Path, tmp_path: Path) -> None:
    """A midnight row with the High and Low of its whole day would tell the day's fate in its first
    hour.
    """
    frame = read_bars(bars)["EURUSD"]
    midnight = pl.col("Datetime").dt.hour() == 0
    of_day = {"High": pl.col("High").max(), "Low": pl.col("Low").min()}
    day = pl.col("Datetime").dt.date()
    leaking = frame.with_columns(
        pl.when(midnight).then(expr.over(day)).otherwise(name).alias(name)
        for name, expr in of_day.items()
    )
    write_symbol(tmp_path / "bars", "EURUSD", leaking)
    with pytest.raises(DataError, match="in their future") as caught:
        build_corpus(tmp_path / "bars", tmp_path / "corpus", CONFIG)
    nights = frame.filter(midnight)["Datetime"]
    stamp = datetime.fromisoformat(str(caught.value.where).rsplit(", ")[-1])
    assert stamp in nights[:3]
    assert int(str(caught.value.got).split()[0]) > 0.9 * len(nights)
    emptied = leaking.with_columns(
        pl.when(midnight).then(None).otherwise(name).alias(name)
        for name in ("High", "Low", "Volume")
    )
    write_symbol(tmp_path / "bars", "EURUSD", emptied)
    corpus = build_corpus(tmp_path / "bars", tmp_path / "corpus", CONFIG)
    assert not corpus.columns["range_z"][corpus.disc[:, DISC_FIELDS.index("hour")] == 0].any()


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    write_symbol(tmp_path / "bars", "EURUSD", random_bars(10))
    with pytest.raises(DataError, match="Train holds no usable event"):
        build_corpus(tmp_path / "bars", tmp_path / "out" / "corpus")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_asset_of_one_row_and_one_of_missing_prices(bars: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bars"
    write_symbol(folder, "EURUSD", read_bars(bars)["EURUSD"])
    write_symbol(folder, "GBPUSD", random_bars(1))
    write_symbol(folder, "NZDUSD", frame_of(np.full(100, np.nan), np.full(100, np.nan)))
    corpus = build_corpus(folder, tmp_path / "corpus", CONFIG)
    for symbol in ("GBPUSD", "NZDUSD"):
        assert not corpus.valid_base[corpus.asset_slices[symbol]].any()
    assert np.isfinite(corpus.cont).all()


def test_quality_counts_add_up(built: Path) -> None:
    corpus = open_corpus(built)
    table = split_quality(corpus)
    assert sum(row.rows for row in table) == len(corpus) - len(ROWS)
    assert sum(row.events for row in table) == corpus.valid_base.sum()
    assert [row.symbol for row in table] == sorted(row.symbol for row in table)
    assets = dict(corpus.by_asset())
    for row in table:
        asset = assets[row.symbol]
        rows = np.flatnonzero(asset.split_codes == corpus.splits.code(row.split))
        assert (row.rows, row.first, row.last) == (
            len(rows),
            *map(str, asset.timestamps[rows[[0, -1]]]),
        )
        assert row.zero_share == pytest.approx((asset.log_ret_next[rows] == 0).mean())
        assert row.dropped_share == pytest.approx(asset.target_bad[rows].mean())
        events = rows[asset.valid_base[rows]]
        assert row.events == len(events)
        for bucket, share in enumerate(row.occupancy, start=1):
            assert share == pytest.approx(
                (asset.target_return[events] == bucket).sum() / max(1, len(events))
            )
        for name, bit in MASK_BITS.items():
            assert row.mask_share[name] == pytest.approx(
                ((asset.columns["flags"][rows] & bit) > 0).mean()
            )
        assert len(row.occupancy) == 16
        assert row.dropped_share >= row.zero_share
        assert row.events == 0 or sum(row.occupancy) == pytest.approx(1)
