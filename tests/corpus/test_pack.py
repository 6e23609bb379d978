"""A packed corpus arrives as it left, or not at all."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from corpus.corpora import CONFIG, manifest_of, require_same_data
from vaiom.corpus import pack as packing
from vaiom.corpus.build import build_corpus
from vaiom.corpus.pack import pack, unpack
from vaiom.corpus.store import Corpus
from vaiom.errors import DataError


@pytest.fixture
def packed(built: Path, tmp_path: Path) -> Path:
    pack(built, tmp_path / "corpus.zip")
    return tmp_path / "corpus.zip"


def repacked(packed: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """The same archive with other bytes in its files."""
    other = packed.with_name("other.zip")
    with zipfile.ZipFile(packed) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            target.writestr(name, change(name, source.read(name)))
    return other


def test_pack_and_unpack(corpus: Corpus, built: Path, packed: Path, tmp_path: Path) -> None:
    size = pack(built, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()
    whole = sum(file.stat().st_size for file in built.rglob("*") if file.is_file())
    assert size == packed.stat().st_size < whole
    require_same_data(unpack(packed, tmp_path / "there"), corpus)
    with pytest.raises(DataError, match="exists already"):
        unpack(packed, tmp_path / "there")
    with pytest.raises(DataError, match="no such file"):
        unpack(tmp_path / "nothing.zip", tmp_path / "here")
    with pytest.raises(DataError, match=r"a folder, not a file[\s\S]*corpus.zip"):
        pack(built, tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../evil.npy", "/tmp/evil.npy", "rows-0123456789abcdef/../../x.npy", "a.exe", "C:\\x"],
)
def test_a_packed_name_that_climbs_out_is_refused(packed: Path, tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(DataError, match="no corpus has"):
        unpack(packed, tmp_path / "target" / "corpus")
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("kind", ["longer array", "array of no corpus", "twice", "long manifest"])
def test_no_more_is_unpacked_than_the_manifest_declares(
    built: Path, packed: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However well it packs: bytes that do not repeat pass every bound on the ratio."""
    folder = manifest_of(built)["folder"]
    noise = np.random.default_rng(0).bytes(65 << 20 if kind == "long manifest" else 1 << 20)
    longer = {"longer array": f"{folder}/ret_z.npy", "long manifest": "manifest.json"}.get(kind)
    grown = repacked(packed, lambda name, data: data + noise if name == longer else data)
    with zipfile.ZipFile(grown, "a") as target:
        if kind == "array of no corpus":
            target.writestr(f"{folder}/another.npy", noise)
        if kind == "twice":
            with pytest.warns(UserWarning, match="Duplicate"):
                target.writestr("manifest.json", target.read("manifest.json"))
    written = []
    real = packing.shutil.copyfileobj
    monkeypatch.setattr(
        packing.shutil, "copyfileobj", lambda *files: written.append(1) or real(*files)
    )
    with pytest.raises(DataError, match=r"declares|no corpus has"):
        unpack(grown, tmp_path / "there")
    assert len(written) <= 1  # the manifest


def test_the_record_of_looks_survives_every_rebuild(copy: Path, bars: Path, tmp_path: Path) -> None:
    ledger = copy / "ledger.jsonl"
    ledger.write_text("a look")
    pack(copy, tmp_path / "corpus.zip")
    build_corpus(bars, copy, CONFIG, overwrite=True)
    assert ledger.read_text() == "a look"
    unpack(tmp_path / "corpus.zip", copy, overwrite=True)
    assert ledger.read_text() == "a look"
    unpack(tmp_path / "corpus.zip", tmp_path / "there")
    assert not (tmp_path / "there" / "ledger.jsonl").exists()


def test_a_packed_bomb_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b"\0" * (64 << 20))
    with pytest.raises(DataError, match="would unpack to more"):
        unpack(tmp_path / "bomb.zip", tmp_path / "corpus")


def test_a_damaged_pack_leaves_nothing_behind(packed: Path, tmp_path: Path) -> None:
    other = repacked(
        packed, lambda name, data: data[:-1] + b"?" if name.endswith("ret_z.npy") else data
    )
    data = packed.read_bytes()
    one_bit = data[:2000] + bytes([data[2000] ^ 1]) + data[2001:]
    for damaged in (data[: len(data) // 2], b"", b"not a zip", one_bit, other.read_bytes()):
        packed.write_bytes(damaged)
        with pytest.raises(DataError):
            unpack(packed, tmp_path / "target" / "corpus")
    assert not (tmp_path / "target" / "corpus").exists()
