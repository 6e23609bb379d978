"""Put finished rows into a corpus folder, so that a kill at any moment leaves a valid corpus.

Rows lie in a folder named after their hash. The manifest that names it is written last; until then
the old manifest and the old rows are the corpus.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vaiom import files
from vaiom.corpus.manifest import (
    STATE_NAME,
    InputFile,
    Manifest,
    StoredColumn,
    StoredSeries,
    write_manifest,
)
from vaiom.corpus.split_quality import count_events
from vaiom.corpus.store import Corpus
from vaiom.corpus.writer import CorpusWriter
from vaiom.features.asset_state import AssetState
from vaiom.features.fields import timestamps_of


def write_generation(
    path: Path,
    writer: CorpusWriter,
    built: Corpus,
    states: Mapping[str, AssetState],
    sources: Sequence[InputFile],
) -> None:
    """Finish the writer's rows and move them into a corpus folder, then write its manifest.

    Parameters
    ----------
    path : the corpus folder, which holds the tokenizer already
    built : its tokenizer and splits
    states : the state of each series after its last row
    sources : all files of bars that the rows were made of
    """
    assert writer.folder
    writer.write_cross()
    json_states = {symbol: state.to_json() for symbol, state in states.items()}
    files.write_json(writer.folder / STATE_NAME, json_states)
    digest = writer.sha256()
    for file in writer.folder.iterdir():
        if file.stem not in writer.stored and file.name != STATE_NAME:
            file.unlink()
    folder = path / f"rows-{digest[:16]}"
    # Left by a killed append: its bytes cannot be trusted.
    shutil.rmtree(folder, ignore_errors=True)
    writer.folder.rename(folder)
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in writer.stored}
    built = replace(built, columns=columns, asset_slices=writer.slices)
    counts = count_events(built)
    arrays = {
        name: StoredColumn(
            dtype=writer.types[name], sha256=files.sha256_file(folder / f"{name}.npy")
        )
        for name in writer.stored
    }
    manifest = Manifest(
        series={symbol: _described(built, symbol) for symbol in writer.slices},
        rows=len(built),
        splits=built.splits,
        events={name: sum(by_symbol.values()) for name, by_symbol in counts.items()},
        edges=built.tokenizer.to_json()["inner_edges"],
        tokenizer_sha256=built.tokenizer.sha256,
        like=built.manifest.get("like"),
        inputs=list(sources),
        folder=folder.name,
        arrays=arrays,
        state_sha256=files.sha256_file(folder / STATE_NAME),
    )
    write_manifest(path, manifest)


def _described(corpus: Corpus, symbol: str) -> StoredSeries:
    """A series and its rows, as the manifest tells of them."""
    rows = corpus.asset_slices[symbol]
    ends = {"timestamp": corpus.columns["timestamp"][[rows.start, rows.stop - 1]]}
    first, last = timestamps_of(ends).astype(str).tolist()
    series = vars(corpus.series[symbol])
    return StoredSeries(**series, rows=rows.stop - rows.start, first=first, last=last)
