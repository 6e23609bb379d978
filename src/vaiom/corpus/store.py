"""Open a corpus folder: memory-mapped columns, manifest, tokenizer, and the arrays derived from
them.

Enters: a path. Leaves: a `Corpus`, with every byte checked against the manifest's hashes; the same
rows under other splits or with another target. NumPy alone.
Paper: Methods, "Corpus Construction and Split Protocol" and "Supervision Scope" (valid_base).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vaiom.codec import to_json
from vaiom.corpus.manifest import (
    STATE_NAME,
    TOKENIZER_NAME,
    damaged,
    read_manifest,
    require_as_written,
)
from vaiom.corpus.series import Series
from vaiom.corpus.splits import SplitConfig
from vaiom.corpus.targets import (
    DEFAULT_CONTEXT,
    Target,
    TargetFit,
    fit_of_next_bar,
    fit_target,
    shifted,
)
from vaiom.corpus.tokenizer import Edges, Tokenizer, fit_on_train
from vaiom.distribution.shape import ReturnShape
from vaiom.errors import DataError
from vaiom.features import fields
from vaiom.features.calendar import log_waits
from vaiom.features.events import is_readable
from vaiom.features.inputs import InputConfig, continuous_inputs, discrete_inputs, inputs_of
from vaiom.features.typing import (
    AnyArray,
    Bools,
    Codes,
    Columns,
    Floats,
    Ints,
    Shorts,
    Singles,
    Stamps,
)
from vaiom.files import BAD_ARRAYS, canonical_json, read_json, sha256_file, sha256_of
from vaiom.market.timeframes import step_seconds


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Rows of all assets, one asset after another in the order of their symbols.

    Arrays have one value per row and are made when they are first read. Those named after a target
    belong to the bars after the row, all others are known when the row's bar closes.
    """

    manifest: Mapping[str, Any]
    tokenizer: Tokenizer
    splits: SplitConfig
    columns: Columns
    asset_slices: Mapping[str, slice]
    """The rows of each series, by its name."""
    path: Path | None = None
    target_fit: TargetFit | None = None
    """Of the target that its own properties speak of; None for the next bar."""

    def __len__(self) -> int:
        return len(self.columns["timestamp"])

    def __repr__(self) -> str:
        assets = f"{len(self.tokenizer.symbols)} assets, {self.tokenizer.timeframe} bars"
        return f"<Corpus of {assets}, {len(self):,} rows, {self.path or 'in memory'}>"

    @property
    def series(self) -> dict[str, Series]:
        """Its histories of bars by name, in the order of their rows."""
        return self.tokenizer.series

    @property
    def edges(self) -> Mapping[str, Edges]:
        """Bucket edges with the infinities: return, gap, vol_regime."""
        return {**self.tokenizer.edges, "return": self._target.edges}

    @property
    def return_shape(self) -> ReturnShape:
        """Where returns lie inside the return buckets."""
        return self._target.shape

    @property
    def like(self) -> Tokenizer | None:
        """The tokenizer if its edges come from a model, not from this Train."""
        return self.tokenizer if self.manifest.get("like") else None

    # Known when the row's bar closes.

    @property
    def sigma20(self) -> Floats:
        """The scale through t, 0 where undefined."""
        return self.columns["sigma20"]

    @cached_property
    def timestamps(self) -> Stamps:
        """Left edge of the row's bar on the stored clock."""
        return fields.timestamps_of(self.columns)

    @cached_property
    def mask_any(self) -> Bools:
        """Rows with any data-quality mask."""
        return ~is_readable(self.columns["flags"])

    @cached_property
    def meta(self) -> Shorts:
        """(N, 3): asset id, class id, timeframe id."""
        out = np.empty((len(self), 3), np.int16)
        for symbol, rows in self.asset_slices.items():
            out[rows] = self.tokenizer.meta(symbol)
        return out

    @cached_property
    def cont(self) -> Singles:
        """(N, 25) the paper's continuous inputs, unclipped."""
        return continuous_inputs(self.columns)

    @cached_property
    def disc(self) -> Shorts:
        """(N, 15) the paper's discrete inputs."""
        return discrete_inputs(self.columns, self.meta)

    @cached_property
    def extra(self) -> Singles:
        """(N, extra fields), unclipped, 0 where undefined."""
        self.require_columns(fields.EXTRA_FIELDS)
        columns = [self._row_columns[name].astype(np.float32) for name in fields.EXTRA_FIELDS]
        return np.stack(columns, axis=1)

    def inputs(self, config: InputConfig) -> Singles:
        """(N, F): the fields that a model reads, in its order."""
        self.require_columns(config.input_fields)
        return inputs_of(config, self._row_columns, self.meta)

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
    def _row_columns(self) -> dict[str, AnyArray]:
        """The stored columns, and the waits derived from the stamps."""
        stamps = self.columns["timestamp"]
        step = step_seconds(self.tokenizer.timeframe)
        waits = [log_waits(stamps[rows], step) for rows in self.asset_slices.values()]
        return {**self.columns, "log_wait": np.concatenate(waits)}

    # Targets belong to the rows after; those of the next bar are the paper's.

    @cached_property
    def _target(self) -> Target:
        return Target(
            fit=self.target_fit or fit_of_next_bar(self.tokenizer),
            columns=self.columns,
            asset_slices=self.asset_slices,
            asset_ids={symbol: self.tokenizer.asset_id(symbol) for symbol in self.asset_slices},
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
        """How many bars the target spans."""
        return self._target.horizon

    @property
    def target_scale(self) -> Floats:
        """The unit of the edges of returns, known at t: `sigma20` for the next bar."""
        return self._target.scale

    @property
    def target_timestamps(self) -> Stamps:
        """Left edge of the target's last bar; NaT where it is not known yet."""
        return self._target.target_timestamps

    @property
    def log_ret_next(self) -> Floats:
        """The log return that is predicted; NaN without prices, or where it is not known yet."""
        return self._target.log_ret_next

    @property
    def target_return(self) -> Codes:
        """Bucket id of the return over `target_scale`, 0 where the target is bad."""
        return self._target.bucket

    @cached_property
    def target_gap(self) -> Codes:
        """Bucket id of the next bar's gap, 0 where the gap is bad."""
        usable = ~fields.has_flag(self.columns["flags"], fields.BAD_GAP)
        return shifted(self.columns["gap_bucket"] * usable, 1, self.asset_slices, 0)

    @cached_property
    def target_vol_regime(self) -> Codes:
        """Bucket id of the next row's volatility regime."""
        return shifted(self.columns["vol_regime"], 1, self.asset_slices, 0)

    @property
    def target_bad(self) -> Bools:
        """The return is exactly zero, excessive, without prices, or not known yet."""
        return self._target.bad

    @property
    def valid_base(self) -> Bools:
        """Rows that may be trained on or scored, before context is required."""
        return self._target.valid

    @property
    def split_codes(self) -> Codes:
        """The split in which the target's bars lie."""
        return self._target.split_codes

    def endpoints(
        self, split: str, context: int = DEFAULT_CONTEXT, *, unseal: bool = False
    ) -> Ints:
        """Row numbers of a split's events with `context` rows of their asset, the row itself
        included.
        """
        return self._target.endpoints(split, context, unseal=unseal)

    # The same rows otherwise.

    def by_asset(self) -> Iterator[tuple[str, Corpus]]:
        """Each asset's rows as their own corpus, so that derived arrays are held for one asset at a
        time.
        """
        for symbol, rows in self.asset_slices.items():
            columns = {name: column[rows] for name, column in self.columns.items()}
            whole = {symbol: slice(0, rows.stop - rows.start)}
            yield symbol, replace(self, columns=columns, asset_slices=whole)

    def with_splits(self, splits: SplitConfig, tokenizer: Tokenizer | None = None) -> Corpus:
        """The corpus in memory under other splits; what Train fits is refitted unless a tokenizer
        is given.

        Return buckets equal those of a build to the bit; gap and volatility-regime buckets come
        from stored 32-bit values, so a value within rounding of an edge may fall on its other side.
        """
        values = {symbol: self._bucketed_values(rows) for symbol, rows in self.asset_slices.items()}
        if tokenizer is None:
            tokenizer = fit_on_train(values.__getitem__, splits.train_end, self.series, self.like)
        columns = dict(self.columns)
        arrays = dict(self.manifest["arrays"])
        for name, (edges, value) in fields.BUCKETED.items():
            of_all = np.concatenate([own[value] for own in values.values()])
            column = fields.bucket_of(tokenizer.edges[edges], of_all)
            columns[name] = column
            arrays[name] = {"dtype": column.dtype.str, "sha256": sha256_of(column.tobytes())}
        manifest = {
            **self.manifest,
            "arrays": arrays,
            "splits": splits.to_json(),
            "tokenizer_sha256": tokenizer.sha256,
        }
        return replace(
            self,
            manifest=manifest,
            tokenizer=tokenizer,
            splits=splits,
            columns=columns,
            path=None,
        )

    def _bucketed_values(self, rows: slice) -> dict[str, AnyArray]:
        """The columns of an asset, with the values that have buckets as they were before they were
        stored: NaN where undefined, returns over their scale in double precision.
        """
        values = {name: np.asarray(column[rows]) for name, column in self.columns.items()}
        sigma20_prev = np.concatenate([[math.nan], values["sigma20"][:-1]])
        with np.errstate(divide="ignore", invalid="ignore"):
            values["ret_z"] = values["log_ret"] / sigma20_prev
        for bucket, (_, value) in fields.BUCKETED.items():
            # Undefined values are stored as 0; unlike real zeros they have no bucket.
            undefined = values[bucket] == fields.INVALID
            values[value] = np.where(undefined, math.nan, values[value])
        return values

    @cached_property
    def sha256(self) -> str:
        """Hash of the data, the splits, the tokenizer and a longer target, not of how or when the
        folder was written.
        """
        names = ("class", "rows", "first", "last")
        parts = {name: self.manifest[name] for name in ("arrays", "tokenizer_sha256", "splits")}
        parts["assets"] = {
            name: {key: series[key] for key in names}
            for name, series in self.manifest["series"].items()
        }
        data = sha256_of(canonical_json(parts))
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
    require_as_written(file, stored, stored, manifest["tokenizer_sha256"])
    tokenizer = Tokenizer.from_json(stored, file)
    described = {
        name: {key: entry[key] for key in ("symbol", "class", "timeframe", "source")}
        for name, entry in manifest["series"].items()
    }
    if to_json(tokenizer.series) != described or list(tokenizer.series) != list(described):
        raise damaged(file)
    folder = path / manifest["folder"]
    if verify:
        _require_intact(folder, manifest)
    columns = {
        name: _map_column(folder / f"{name}.npy", entry["dtype"], manifest["rows"])
        for name, entry in manifest["arrays"].items()
    }
    return Corpus(
        manifest=manifest,
        tokenizer=tokenizer,
        splits=SplitConfig.from_json(manifest["splits"]),
        columns=columns,
        asset_slices=slices_of({name: each["rows"] for name, each in manifest["series"].items()}),
        path=path,
    )


def _require_intact(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise an error for the first file that differs from what the manifest recorded."""
    recorded = {f"{name}.npy": entry["sha256"] for name, entry in manifest["arrays"].items()}
    recorded[STATE_NAME] = manifest["state_sha256"]
    for name, sha256 in recorded.items():
        file = folder / name
        if not file.is_file() or sha256_file(file) != sha256:
            raise damaged(file)


def _map_column(file: Path, dtype: str, rows: int) -> AnyArray:
    try:
        column: AnyArray = np.load(file, mmap_mode="r", allow_pickle=False)
    except BAD_ARRAYS as error:
        raise damaged(file) from error
    if column.dtype != np.dtype(dtype) or column.shape != (rows,):
        raise damaged(file)
    return column


def slices_of(sizes: Mapping[str, int]) -> dict[str, slice]:
    """The slice of each asset's rows when assets of these sizes are concatenated."""
    slices = {}
    start = 0
    for symbol, size in sizes.items():
        slices[symbol] = slice(start, start + size)
        start += size
    return slices
