"""Open a corpus folder: memory-mapped columns, their manifest and tokenizer, and the arrays that users ask for.

Enters: a path. Leaves: a `Corpus`, after every byte was checked against the manifest. NumPy alone.
Paper: Methods, "Corpus Construction and Split Protocol" and "Supervision Scope" (valid_base).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.errors import ConfigError, DataError
from vaiom.events.buckets import Edges
from vaiom.events.calendar import step_seconds
from vaiom.events.inputs import (
    ANY_MASK,
    BAD_GAP,
    BAD_RETURN,
    continuous_inputs,
    discrete_inputs,
    extra_inputs,
    has_flag,
    timestamps_of,
)
from vaiom.events.manifest import FORMAT as FORMAT
from vaiom.events.manifest import FORMAT_VERSION as FORMAT_VERSION
from vaiom.events.manifest import MANIFEST_NAME as MANIFEST_NAME
from vaiom.events.manifest import damaged, read_manifest, value_sha256
from vaiom.events.splits import NO_TARGET_CODE, SEALED, SplitConfig
from vaiom.events.tokenizer import Tokenizer
from vaiom.files import BAD_ARRAYS, canonical_json, read_json, sha256_file, sha256_of

TOKENIZER_NAME = "tokenizer.json"
STATE_NAME = "state.json"
LEDGER_NAME = "ledger.jsonl"
"""Who looked at the test splits; it outlives every rebuild of the folder."""
DEFAULT_CONTEXT = 512


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Rows of all assets, one asset after another in sorted-symbol order; `_next` and `target_` belong to row t+1."""

    manifest: Mapping[str, Any]
    tokenizer: Tokenizer
    splits: SplitConfig
    columns: Mapping[str, npt.NDArray[Any]]
    asset_slices: Mapping[str, slice]
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.columns["timestamp"])

    def __repr__(self) -> str:
        assets, timeframe = len(self.tokenizer.symbols), self.tokenizer.timeframe
        return f"<Corpus of {assets} assets, {timeframe} bars, {len(self):,} rows, {self.path or 'in memory'}>"

    # What a row knows at its own time.

    @property
    def edges(self) -> Mapping[str, Edges]:
        """Bucket edges with the infinities: return, gap, vol_regime."""
        return self.tokenizer.edges

    @property
    def sigma20(self) -> npt.NDArray[np.float64]:
        """The scale through t that divides the next return; 0 where undefined."""
        return self.columns["sigma20"]

    @cached_property
    def timestamps(self) -> npt.NDArray[np.datetime64]:
        """Left edge of the row's bar on the stored clock."""
        return timestamps_of(self.columns)

    @cached_property
    def cont(self) -> npt.NDArray[np.float32]:
        """(N, 25), unclipped."""
        return continuous_inputs(self.columns)

    @cached_property
    def extra(self) -> npt.NDArray[np.float32]:
        """(N, extra fields), unclipped, 0 where undefined."""
        return extra_inputs(self.columns, self.asset_slices.values(), step_seconds(self.tokenizer.timeframe))

    @cached_property
    def disc(self) -> npt.NDArray[np.int16]:
        """(N, 15)."""
        return discrete_inputs(self.columns, self.meta)

    @cached_property
    def meta(self) -> npt.NDArray[np.int16]:
        """(N, 3): asset id, class id, timeframe id."""
        out = np.zeros((len(self), 3), np.int16)
        for symbol, rows in self.asset_slices.items():
            out[rows, 0] = self.tokenizer.asset_id(symbol)
            out[rows, 1] = self.tokenizer.class_id(symbol)
        return out

    @cached_property
    def mask_any(self) -> npt.NDArray[np.bool_]:
        return has_flag(self.columns["flags"], ANY_MASK)

    # What a row must predict: the own values of the row after it.

    @cached_property
    def target_timestamps(self) -> npt.NDArray[np.datetime64]:
        """Left edge of the next bar; NaT on an asset's last row."""
        return self._next(self.timestamps, np.datetime64("NaT"))

    @cached_property
    def log_ret_next(self) -> npt.NDArray[np.float64]:
        return self._next(self.columns["log_ret"], np.nan)

    @cached_property
    def target_return(self) -> npt.NDArray[np.uint8]:
        """Bucket id of the next return over `sigma20`, 0 where the target is bad."""
        return self._next(self._own_target("return_bucket", BAD_RETURN), 0)

    @cached_property
    def target_gap(self) -> npt.NDArray[np.uint8]:
        return self._next(self._own_target("gap_bucket", BAD_GAP), 0)

    @cached_property
    def target_vol_regime(self) -> npt.NDArray[np.uint8]:
        return self._next(self.columns["vol_regime"], 0)

    @cached_property
    def target_bad(self) -> npt.NDArray[np.bool_]:
        """The next return is non-finite, exactly zero, excessive, of a missing row, or not there yet."""
        return self._next(has_flag(self.columns["flags"], BAD_RETURN), True)

    @cached_property
    def valid_base(self) -> npt.NDArray[np.bool_]:
        return (self.target_return > 0) & ~self.mask_any & ~self.target_bad

    # Which events belong to which split.

    @cached_property
    def split_codes(self) -> npt.NDArray[np.uint8]:
        return self.splits.codes(self.target_timestamps)

    def endpoints(self, split: str, context: int = DEFAULT_CONTEXT, *, unseal: bool = False) -> npt.NDArray[np.int64]:
        """Row numbers of a split's events with `context` rows of their asset, the row itself included."""
        code = self.splits.code(split)
        if split == SEALED and not unseal:
            raise ConfigError(
                "the sealed interval is not opened by accident",
                where=f"targets at or after {self.splits.seal}",
                fix="pass --unseal sealed, once, when everything is decided",
            )
        if context < 1:
            raise ConfigError("context must be at least one row", got=context)
        usable = self.valid_base & (self.split_codes == code)
        for rows in self.asset_slices.values():
            usable[rows.start : min(rows.start + context - 1, rows.stop)] = False
        return np.flatnonzero(usable)

    @cached_property
    def sha256(self) -> str:
        """Names the data, the splits and the tokenizer, not how or when the folder was written."""
        parts = {name: self.manifest[name] for name in ("arrays", "tokenizer_sha256", "splits", "assets")}
        return sha256_of(canonical_json(parts))

    def _own_target(self, name: str, bad: np.uint8) -> npt.NDArray[np.uint8]:
        return np.where(has_flag(self.columns["flags"], bad), 0, self.columns[name]).astype(np.uint8)

    def _next(self, values: npt.NDArray[Any], at_end: Any) -> npt.NDArray[Any]:
        out = np.empty_like(values)
        out[:-1] = values[1:]
        for rows in self.asset_slices.values():
            out[rows.stop - 1] = at_end
        return out


def open_corpus(path: str | Path, *, verify: bool = True) -> Corpus:
    """Open a corpus folder; `verify=False` skips the checksums of the arrays, not those of what describes them."""
    path = Path(path)
    manifest = read_manifest(path)
    tokenizer_value = read_json(path / TOKENIZER_NAME)
    if value_sha256(path / TOKENIZER_NAME, tokenizer_value) != manifest["tokenizer_sha256"]:
        raise damaged(path / TOKENIZER_NAME)
    tokenizer = Tokenizer.from_json(tokenizer_value, path / TOKENIZER_NAME)
    if [*tokenizer.symbols] != manifest["symbols"] or tokenizer.timeframe != manifest["timeframe"]:
        raise damaged(path / TOKENIZER_NAME)
    folder = path / manifest["folder"]
    if verify:
        _verify(folder / STATE_NAME, manifest["state_sha256"])
    columns = {}
    for name, entry in manifest["arrays"].items():
        file = folder / f"{name}.npy"
        if verify:
            _verify(file, entry["sha256"])
        columns[name] = _map_array(file, entry["dtype"], manifest["rows"])
    return Corpus(
        manifest=manifest,
        tokenizer=tokenizer,
        splits=SplitConfig.from_json(manifest["splits"]),
        columns=columns,
        asset_slices=slices_of({symbol: manifest["assets"][symbol]["rows"] for symbol in manifest["symbols"]}),
        path=path,
    )


def keep_ledger(old: Path, staged: Path) -> None:
    """Carry the record of test looks over to the folder that replaces `old`."""
    if (old / LEDGER_NAME).is_file():
        shutil.copyfile(old / LEDGER_NAME, staged / LEDGER_NAME)


def slices_of(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Where each asset's rows lie when assets of these sizes follow each other."""
    slices, start = {}, 0
    for symbol, size in sizes.items():
        slices[symbol] = slice(start, start + size)
        start += size
    return slices


def count_events(corpus: Corpus, context: int = DEFAULT_CONTEXT) -> dict[str, dict[str, int]]:
    """Events with full context per split and asset; the sealed ones are counted, not shown."""
    usable = corpus.valid_base & (corpus.split_codes != NO_TARGET_CODE)
    counts: dict[str, dict[str, int]] = {name: {} for name in corpus.splits.names}
    for symbol, rows in corpus.asset_slices.items():
        inside = slice(min(rows.start + context - 1, rows.stop), rows.stop)
        codes = corpus.split_codes[inside][usable[inside]]
        for code, name in enumerate(corpus.splits.names):
            counts[name][symbol] = int((codes == code).sum())
    return counts


def _verify(file: Path, recorded: str) -> None:
    if not file.is_file():
        raise DataError("a file of the corpus is missing", where=file, fix="build or unpack the corpus again")
    if sha256_file(file) != recorded:
        raise damaged(file)


def _map_array(file: Path, dtype: str, rows: int) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except BAD_ARRAYS as error:
        raise damaged(file) from error
    if array.dtype != np.dtype(dtype) or array.shape != (rows,):
        raise damaged(file)
    return array
