"""Open a corpus folder: memory-mapped columns, manifest, tokenizer, and the arrays derived from
them.

Enters: a path. Leaves: a `Corpus`, with every byte checked against the manifest's hashes; the same
rows under other splits. NumPy alone.
Paper: Methods, "Corpus Construction and Split Protocol" and "Supervision Scope" (valid_base).
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.codec import to_json
from vaiom.corpus.splits import TRAIN, SplitConfig
from vaiom.corpus.targets import (
    DEFAULT_CONTEXT,
    Target,
    TargetFit,
    fit_of_next_bar,
    fit_target,
    shifted,
)
from vaiom.corpus.tokenizer import Edges, Tokenizer, bucket_of, fit_on_train
from vaiom.distribution.shape import ReturnShape
from vaiom.errors import DataError
from vaiom.features import fields
from vaiom.features.calendar import log_waits
from vaiom.files import BAD_ARRAYS, canonical_json, read_json, sha256_file, sha256_of
from vaiom.market.timeframes import step_seconds

FORMAT = "vaiom-corpus"
FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"
TOKENIZER_NAME = "tokenizer.json"
STATE_NAME = "state.json"
LEDGER_NAME = "ledger.jsonl"
"""The record of looks at the test splits; it survives every rebuild of the folder."""
FEW_TRAIN_EVENTS = 1_000
"""With fewer, an asset is hardly learned and its share of exact zeros is unreliable."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Rows of all assets, one asset after another in sorted-symbol order; `_next` and `target_`
    belong to row t+1.
    """

    manifest: Mapping[str, Any]
    tokenizer: Tokenizer
    splits: SplitConfig
    columns: Mapping[str, npt.NDArray[Any]]
    asset_slices: Mapping[str, slice]
    path: Path | None = None
    target_fit: TargetFit | None = None
    """Of the target that its own properties speak of; None for the next bar."""

    def __len__(self) -> int:
        return len(self.columns["timestamp"])

    def __repr__(self) -> str:
        assets, timeframe = len(self.tokenizer.symbols), self.tokenizer.timeframe
        return (
            f"<Corpus of {assets} assets, {timeframe} bars, {len(self):,} rows, "
            f"{self.path or 'in memory'}>"
        )

    # Known at the row's own time.

    @property
    def edges(self) -> Mapping[str, Edges]:
        """Bucket edges with the infinities: return, gap, vol_regime."""
        return {**self.tokenizer.edges, "return": self._target.edges}

    @property
    def return_shape(self) -> ReturnShape:
        """Where returns lie inside the return buckets."""
        return self._target.shape

    @property
    def sigma20(self) -> npt.NDArray[np.float64]:
        """The scale through t, 0 where undefined."""
        return self.columns["sigma20"]

    @cached_property
    def timestamps(self) -> npt.NDArray[np.datetime64]:
        """Left edge of the row's bar on the stored clock."""
        return fields.timestamps_of(self.columns)

    @cached_property
    def cont(self) -> npt.NDArray[np.float32]:
        """(N, 25), unclipped."""
        return fields.continuous_inputs(self.columns)

    @cached_property
    def extra(self) -> npt.NDArray[np.float32]:
        """(N, extra fields), unclipped, 0 where undefined."""
        self.require_columns(fields.EXTRA_FIELDS)
        columns = [self._row_columns[name].astype(np.float32) for name in fields.EXTRA_FIELDS]
        return np.stack(columns, axis=1)

    @property
    def like(self) -> Tokenizer | None:
        """The tokenizer if its edges come from a model, not from this Train."""
        return self.tokenizer if self.manifest.get("like") else None

    def inputs(self, config: fields.InputConfig) -> npt.NDArray[np.float32]:
        """(N, F): the fields that a model reads, in its order."""
        self.require_columns(config.input_fields)
        return fields.inputs_of(config, self._row_columns, self.meta)

    @property
    def absent_columns(self) -> frozenset[str]:
        """Columns that this version stores and the corpus, which an earlier one built, lacks."""
        return frozenset(fields.COLUMN_TYPES) - frozenset(self.columns)

    def require_columns(self, input_fields: Iterable[str]) -> None:
        """Raise an error if the corpus was built before one of these fields was stored."""
        for name in input_fields:
            if name in self.absent_columns:
                raise DataError(
                    f"the corpus has no column {name}",
                    where=self.path,
                    expected=f"a corpus built since the field {name} exists",
                    fix="build the corpus again from its bars (`vaiom corpus build`)",
                )

    @cached_property
    def _row_columns(self) -> dict[str, npt.NDArray[Any]]:
        """The stored columns, and the waits derived from the stamps."""
        stamps, step = self.columns["timestamp"], step_seconds(self.tokenizer.timeframe)
        waits = [log_waits(stamps[rows], step) for rows in self.asset_slices.values()]
        return {**self.columns, "log_wait": np.concatenate(waits)}

    @cached_property
    def disc(self) -> npt.NDArray[np.int16]:
        """(N, 15)."""
        return fields.discrete_inputs(self.columns, self.meta)

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
        return fields.has_flag(self.columns["flags"], fields.ANY_MASK)

    # Targets belong to the rows after; those of the next bar are the paper's.

    @cached_property
    def _target(self) -> Target:
        ids = {symbol: self.tokenizer.asset_id(symbol) for symbol in self.asset_slices}
        return Target(
            fit=self.target_fit or fit_of_next_bar(self.tokenizer),
            columns=self.columns,
            asset_slices=self.asset_slices,
            asset_ids=ids,
            splits=self.splits,
        )

    def target(self, horizon: int | TargetFit | None = None) -> Target:
        """The target over a number of bars, fitted on Train, or with a fit that is given; without
        either the corpus's own, which is the next bar unless `with_target` chose another.
        """
        corpus = self if horizon is None else self.with_target(horizon)
        return corpus._target

    def with_target(self, horizon: int | TargetFit) -> Corpus:
        """The corpus whose own properties (`target_return`, `endpoints`, ...) are of this target,
        for readers that take a corpus, such as baselines.
        """
        if isinstance(horizon, int):
            fit = None if horizon == 1 else fit_target(self, horizon)
        else:
            fit = horizon
        return self if fit is self.target_fit else replace(self, target_fit=fit)

    @property
    def horizon(self) -> int:
        """How many bars a target spans."""
        return self._target.horizon

    @property
    def target_scale(self) -> npt.NDArray[np.float64]:
        """The unit of the edges of returns, known at t: `sigma20` for the next bar."""
        return self._target.scale

    @property
    def target_timestamps(self) -> npt.NDArray[np.datetime64]:
        """Left edge of the target's last bar; NaT where it is not known yet."""
        return self._target.target_timestamps

    @property
    def log_ret_next(self) -> npt.NDArray[np.float64]:
        """The log return that is predicted; NaN without prices, or where it is not known yet."""
        return self._target.log_ret_next

    @property
    def target_return(self) -> npt.NDArray[np.uint8]:
        """Bucket id of the return over `target_scale`, 0 where the target is bad."""
        return self._target.bucket

    @cached_property
    def target_gap(self) -> npt.NDArray[np.uint8]:
        """Bucket id of the next bar's gap, 0 where the gap is bad."""
        usable = ~fields.has_flag(self.columns["flags"], fields.BAD_GAP)
        return shifted(self.columns["gap_bucket"] * usable, 1, self.asset_slices, 0)

    @cached_property
    def target_vol_regime(self) -> npt.NDArray[np.uint8]:
        """Bucket id of the next row's volatility regime."""
        return shifted(self.columns["vol_regime"], 1, self.asset_slices, 0)

    @property
    def target_bad(self) -> npt.NDArray[np.bool_]:
        """The return is exactly zero, excessive, without prices, or not known yet."""
        return self._target.bad

    @property
    def valid_base(self) -> npt.NDArray[np.bool_]:
        """Rows that may be trained on or scored, before context is required."""
        return self._target.valid

    @property
    def split_codes(self) -> npt.NDArray[np.uint8]:
        """The split in which the target's bars lie."""
        return self._target.split_codes

    def endpoints(
        self, split: str, context: int = DEFAULT_CONTEXT, *, unseal: bool = False
    ) -> npt.NDArray[np.int64]:
        """Row numbers of a split's events with `context` rows of their asset, the row itself
        included.
        """
        return self._target.endpoints(split, context, unseal=unseal)

    def by_asset(self) -> Iterator[tuple[str, Corpus]]:
        """Each asset's rows as their own corpus, so that derived arrays are held for one asset at a
        time.
        """
        for symbol, rows in self.asset_slices.items():
            columns = {name: column[rows] for name, column in self.columns.items()}
            yield (
                symbol,
                replace(
                    self, columns=columns, asset_slices={symbol: slice(0, rows.stop - rows.start)}
                ),
            )

    @cached_property
    def sha256(self) -> str:
        """Hash of the data, the splits, the tokenizer and a longer target, not of how or when the
        folder was written.
        """
        names = ("arrays", "tokenizer_sha256", "splits", "assets")
        data = sha256_of(canonical_json({name: self.manifest[name] for name in names}))
        if self.target_fit is None:
            return data
        return sha256_of(canonical_json([data, to_json(self.target_fit)]))


def open_corpus(path: str | Path, *, verify: bool = True) -> Corpus:
    """Open a corpus folder; `verify=False` skips the checksums of the arrays, not those of manifest
    and tokenizer.
    """
    path = Path(path)
    manifest = read_manifest(path)
    file = path / TOKENIZER_NAME
    stored = read_json(file)
    _require_as_written(file, stored, stored, manifest["tokenizer_sha256"])
    tokenizer = Tokenizer.from_json(stored, file)
    if [*tokenizer.symbols] != manifest["symbols"] or tokenizer.timeframe != manifest["timeframe"]:
        raise damaged(file)
    folder, columns = path / manifest["folder"], {}
    hashes = {STATE_NAME: manifest["state_sha256"]}
    hashes |= {f"{name}.npy": entry["sha256"] for name, entry in manifest["arrays"].items()}
    for file, recorded in ((folder / name, digest) for name, digest in hashes.items() if verify):
        if not file.is_file() or sha256_file(file) != recorded:
            raise damaged(file)
    for name, entry in manifest["arrays"].items():
        file = folder / f"{name}.npy"
        try:
            columns[name] = np.load(file, mmap_mode="r", allow_pickle=False)
        except BAD_ARRAYS as error:
            raise damaged(file) from error
        if columns[name].dtype != np.dtype(entry["dtype"]) or columns[name].shape != (
            manifest["rows"],
        ):
            raise damaged(file)
    return Corpus(
        manifest=manifest,
        tokenizer=tokenizer,
        splits=SplitConfig.from_json(manifest["splits"]),
        columns=columns,
        asset_slices=slices_of(
            {symbol: manifest["assets"][symbol]["rows"] for symbol in manifest["symbols"]}
        ),
        path=path,
    )


def keep_ledger(old: Path, staged: Path) -> None:
    """Copy the record of test looks to the folder that replaces `old`."""
    if (old / LEDGER_NAME).is_file():
        shutil.copyfile(old / LEDGER_NAME, staged / LEDGER_NAME)


def slices_of(sizes: Mapping[str, int]) -> dict[str, slice]:
    """The slice of each asset's rows when assets of these sizes are concatenated."""
    slices, start = {}, 0
    for symbol, size in sizes.items():
        slices[symbol] = slice(start, start + size)
        start += size
    return slices


def count_events(corpus: Corpus, context: int = DEFAULT_CONTEXT) -> dict[str, dict[str, int]]:
    """Events with full context per split and asset; the sealed ones are counted, not shown."""
    counts: dict[str, dict[str, int]] = {name: {} for name in corpus.splits.names}
    for symbol, asset in corpus.by_asset():
        codes = asset.split_codes[context - 1 :][asset.valid_base[context - 1 :]]
        for code, name in enumerate(corpus.splits.names):
            counts[name][symbol] = int((codes == code).sum())
    return counts


@dataclass(frozen=True, kw_only=True)
class SplitQuality:
    """One asset in one split; shares are of its rows with a next bar there."""

    symbol: str
    split: str
    rows: int
    first: str
    last: str
    mask_share: dict[str, float]
    zero_share: float
    """Next returns that are exactly zero."""
    dropped_share: float
    """Targets dropped for any reason, exact zeros included."""
    events: int
    """Rows that may be trained on or scored, before context is required."""
    occupancy: list[float]
    """Share of the events in each return bucket, lowest first."""


def split_quality(corpus: Corpus) -> list[SplitQuality]:
    """What masks and target rules keep and drop, per asset and split, ordered by symbol and time.

    Exact-zero next returns are dropped by their outcome, so their share is printed wherever bits
    per event are.
    """
    table = []
    for symbol, asset in corpus.by_asset():
        for code, split in enumerate(corpus.splits.names):
            rows = np.flatnonzero(asset.split_codes == code)
            if not len(rows):
                continue
            flags, valid = asset.columns["flags"][rows], asset.valid_base[rows]
            buckets = np.bincount(
                asset.target_return[rows][valid], minlength=fields.NUM_RETURN_BUCKETS + 1
            )[1:]
            quality = SplitQuality(
                symbol=symbol,
                split=split,
                rows=len(rows),
                first=str(asset.timestamps[rows[0]]),
                last=str(asset.timestamps[rows[-1]]),
                mask_share={
                    name: float(fields.has_flag(flags, bit).mean())
                    for name, bit in fields.MASK_BITS.items()
                },
                zero_share=float((asset.log_ret_next[rows] == 0).mean()),
                dropped_share=float(asset.target_bad[rows].mean()),
                events=int(valid.sum()),
                occupancy=(buckets / max(1, valid.sum())).tolist(),
            )
            table.append(quality)
    return table


def few_train_events(corpus: Corpus) -> dict[str, int]:
    """Assets with few Train events, and how many they have before context is required."""
    return {
        symbol: count
        for symbol, count in count_events(corpus, 1)[TRAIN].items()
        if count < FEW_TRAIN_EVENTS
    }


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a corpus folder, or an error that says why it cannot be trusted."""
    file = path / MANIFEST_NAME
    if not file.is_file():
        raise DataError(
            "not a corpus",
            where=path,
            expected=f"a folder with {MANIFEST_NAME}",
            fix="vaiom corpus build",
        )
    manifest = read_json(file)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(
            "not the manifest of a corpus", where=file, expected=f'"format": "{FORMAT}"'
        )
    if (version := manifest.get("format_version")) != FORMAT_VERSION:
        problem, fix = (
            "a corpus of another format version",
            "build it again with this version of vaiom",
        )
        raise DataError(problem, where=file, expected=FORMAT_VERSION, got=version, fix=fix)
    described = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    _require_as_written(file, manifest, described, manifest.get("manifest_sha256"))
    try:
        _require_shape(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem, fix = "the manifest does not describe a corpus", "build the corpus again"
        raise DataError(problem, where=file, got=str(error), fix=fix) from error
    return manifest


def _require_as_written(file: Path, value: Any, hashed: Any, recorded: Any) -> None:
    """A file must hold its JSON value exactly as we write it, and its hashed part must have the
    recorded hash.
    """
    # Other spellings of the same values, such as a 17th digit that changes no float, count as a
    # changed file.
    same = file.read_bytes() == json.dumps(value, indent=2).encode() + b"\n"
    try:
        if not same or sha256_of(canonical_json(hashed)) != recorded:
            raise damaged(file)
    except ValueError as error:  # NaN and the infinities, which we never write
        raise damaged(file) from error


def damaged(file: Path) -> DataError:
    problem = "the corpus is damaged: a file is " + (
        "not what was written" if file.is_file() else "missing"
    )
    expected, fix = "the SHA-256 recorded in the manifest", "build or unpack the corpus again"
    return DataError(problem, where=file, expected=expected, fix=fix)


def _require_shape(manifest: dict[str, Any]) -> None:
    """A manifest with a right hash may be hand-made: names must stay inside the folder and counts
    must agree.
    """
    arrays, assets = manifest["arrays"].values(), manifest["assets"].values()
    hashes = [
        *(entry["sha256"] for entry in arrays),
        manifest["tokenizer_sha256"],
        manifest["state_sha256"],
    ]
    types = {name: entry["dtype"] for name, entry in manifest["arrays"].items()}
    sizes, counts = [asset["rows"] for asset in assets], manifest["events"]
    sound = {
        "folder": re.fullmatch(r"rows-[0-9a-f]{16}", manifest["folder"]) is not None,
        "arrays": set(fields.REQUIRED_COLUMNS) <= set(types)
        and types.items() <= fields.COLUMN_TYPES.items(),
        "hashes": all(isinstance(each, str) for each in hashes),
        "rows of an asset": all(type(size) is int and size > 0 for size in sizes),
        "rows": type(manifest["rows"]) is int and sum(sizes) == manifest["rows"],
        "symbols": manifest["symbols"] == list(manifest["assets"]),
        "assets": all(isinstance(asset["last"], str) for asset in assets),
        "events": list(counts) == list(SplitConfig.from_json(manifest["splits"]).names)
        and all(type(count) is int for count in counts.values()),
        "inputs": all(isinstance(each, dict) for each in manifest["inputs"]),
        "timeframe": isinstance(manifest["timeframe"], str),
    }
    for part, holds in sound.items():
        if not holds:
            raise ValueError(f"its {part} make no sense")


def under_splits(corpus: Corpus, splits: SplitConfig, tokenizer: Tokenizer | None = None) -> Corpus:
    """The corpus in memory under other splits; what Train fits is refitted unless a tokenizer is
    given.

    Return buckets equal those of a build to the bit; gap and volatility-regime buckets come from
    stored 32-bit values, so a value within rounding of an edge may fall on its other side.
    """
    rows = {}
    for symbol, inside in corpus.asset_slices.items():
        values = {name: np.asarray(column[inside]) for name, column in corpus.columns.items()}
        sigma20_prev = np.concatenate([[math.nan], values["sigma20"][:-1]])
        with np.errstate(divide="ignore", invalid="ignore"):
            values["ret_z"] = values["log_ret"] / sigma20_prev
        for bucket, (_, value) in fields.BUCKETED.items():
            # Undefined values are stored as 0; unlike real zeros they have no bucket.
            values[value] = np.where(values[bucket] == fields.INVALID, math.nan, values[value])
        rows[symbol] = values
    old = corpus.tokenizer
    classes = dict(zip(old.symbols, old.classes, strict=True))
    tokenizer = tokenizer or fit_on_train(
        rows.__getitem__, splits.train_end, old.timeframe, classes, corpus.like
    )
    columns, arrays = dict(corpus.columns), dict(corpus.manifest["arrays"])
    for name, (of, value) in fields.BUCKETED.items():
        column = bucket_of(
            tokenizer.edges[of], np.concatenate([asset[value] for asset in rows.values()])
        )
        columns[name], arrays[name] = (
            column,
            {"dtype": column.dtype.str, "sha256": sha256_of(column.tobytes())},
        )
    changed = {"arrays": arrays, "splits": splits.to_json(), "tokenizer_sha256": tokenizer.sha256}
    manifest = {**corpus.manifest, **changed}
    return replace(
        corpus, manifest=manifest, tokenizer=tokenizer, splits=splits, columns=columns, path=None
    )
