"""A market of three assets, parts of it, and changes of stored corpora."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
from numpy.testing import assert_array_equal

from vaiom.corpus.build import CorpusConfig
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.store import Corpus
from vaiom.files import canonical_json, sha256_of, write_json
from vaiom.market.folder import read_bars, write_symbol

TRAIN_END = datetime(2023, 12, 1)
CONFIG = CorpusConfig(splits=SplitConfig().shifted_to(TRAIN_END))
LATER = SplitConfig().shifted_to(datetime(2024, 3, 1))
ROWS = {"EURUSD": 6000, "USDJPY": 5500, "XAUUSD": 40}


def bars_before(bars: Path, cut: datetime, folder: Path) -> Path:
    return _write_part(bars, pl.col("Datetime") < cut, folder)


def bars_from(bars: Path, cut: datetime, folder: Path) -> Path:
    return _write_part(bars, pl.col("Datetime") >= cut, folder)


def _write_part(bars: Path, chosen: pl.Expr, folder: Path) -> Path:
    for symbol, frame in read_bars(bars).items():
        part = frame.filter(chosen)
        if len(part):
            write_symbol(folder, symbol, part)
    return folder


def manifest_of(corpus: Path) -> dict[str, Any]:
    return dict(json.loads((corpus / "manifest.json").read_text()))


def rewritten(corpus: Path, **changes: Any) -> Path:
    """The corpus with another manifest, hashed again: damage that no checksum can see."""
    manifest = manifest_of(corpus) | changes
    del manifest["manifest_sha256"]
    sha256 = sha256_of(canonical_json(manifest))
    write_json(corpus / "manifest.json", manifest | {"manifest_sha256": sha256})
    return corpus


def entry_changed(section: str, name: str, **changes: Any) -> Callable[[dict[str, Any]], Any]:
    """Makes the changes of a manifest that change one entry of a section."""
    return lambda manifest: {section: manifest[section] | {name: manifest[section][name] | changes}}


def without_column(corpus: Path, name: str) -> Path:
    """The corpus as a version without the field would have built it."""
    arrays = manifest_of(corpus)["arrays"]
    del arrays[name]
    return rewritten(corpus, arrays=arrays)


def require_same_data(ours: Corpus, theirs: Corpus) -> None:
    assert ours.sha256 == theirs.sha256
    for name in ours.columns:
        assert_array_equal(ours.columns[name], theirs.columns[name], name)
    for name in ("events", "state_sha256"):
        assert ours.manifest[name] == theirs.manifest[name]
