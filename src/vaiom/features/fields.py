"""Every input field, defined once: its formula, how it is stored, how a model reads it.

A new input is one line of `FIELDS`: builds, appends, live bars, models and tests follow. Extra
fields are ours. Paper: Methods, "Continuous dynamic features", "Data-quality masks", "Input
Representations"; Appendix B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vaiom.features.calendar import (
    MAX_YEARS_SINCE_2000,
    PERIODIC_FIELDS,
    calendar_channels,
    calendar_fields,
)
from vaiom.features.recursions import (
    MAX_LOG_MOVE,
    SCALE_FLOOR,
    SHORT_SPAN,
    Bools,
    Floats,
    Series,
    floored_root,
    where,
)
from vaiom.market.symbols import dollar_sign

INVALID = 0
"""The index of a missing or invalid bucket; valid ids start at 1."""
UNKNOWN_ASSET = 0
MIN_PROBABILITY = 1e-12
NUM_RETURN_BUCKETS = 16
MIN_CLEAN_RETURNS = SHORT_SPAN
CLASSES = ("FX", "SPOT")
"""The paper's asset classes, ids by position; users may add their own."""
EXTRA_LIMIT = 1000.0
"""Extra fields are clipped here: far beyond what a model reads, well inside float16."""
OTHERS_LIMIT = 10.0
"""Moves of other assets are clipped to this many sigmas, so that one bad print does not reach every
asset.
"""
BLOCK_ROWS = 1 << 15
"""Rows processed together: their columns fit a processor's cache."""

Columns = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Field:
    """One input field; without a formula it follows from the stamps, the masks or the fitted edges
    of a stored row.
    """

    name: str
    kind: str
    """Its schema: cont and disc are the paper's, extra is ours."""
    doc: str
    stored: str | None = None
    """The type of its column in a corpus."""
    formula: Callable[[Series], Floats] | None = None
    """From the asset's own bars, known when the row's bar closes; NaN where undefined."""
    others: Callable[[Floats, Floats, Any], tuple[Floats, Any]] | None = None
    """The value and weight with which each other asset, unmasked at the same stamp, enters a
    weighted mean.

    Arguments: ret_z and relative_log_vol (assets, stamps), and (assets, 1) the direction of the
    dollar: 1 if the quote rises with it, -1 if it falls, 0 if there is no dollar in it.
    """
    signed: bool = False
    """Whether it changes its sign, and nothing else, when all prices are inverted."""
    column: str = ""
    """The name of its column, if different."""
    indices: int = 0
    """Number of indices of a discrete field, index 0 included; 0 if it depends on the corpus."""


def log_root(mean_square: Floats) -> Floats:
    """ln of a volatility."""
    return np.log(floored_root(mean_square))


def _extra(
    name: str, doc: str, formula: Callable[[Series], Floats] | None = None, **more: Any
) -> Field:
    return Field(name, "extra", doc, "<f2", formula, **more)


MASKS: dict[str, Callable[[Series], Bools]] = {
    "missing": lambda s: s.missing,
    "stale": lambda s: s.log_ret == 0,
    "bad_data": lambda s: (abs(s.log_ret) > MAX_LOG_MOVE) | (abs(s.log_gap) > MAX_LOG_MOVE),
    "insufficient_history": lambda s: s.num_clean_prev < MIN_CLEAN_RETURNS,
    # The past-only scale divides ret_z; an undefined one counts as zero.
    "scale_zero": lambda s: ~(s.sigma20_prev > SCALE_FLOOR),
}
"""Data-quality masks, True = bad."""

FIELDS = (
    # The paper's continuous schema.
    Field(
        "ret_z",
        "cont",
        "return / sigma20_prev",
        "<f4",
        lambda s: s.log_ret / s.sigma20_prev,
        signed=True,
    ),
    Field(
        "gap_z",
        "cont",
        "gap / its scale",
        "<f4",
        lambda s: s.log_gap / s.sigma_gap20_prev,
        signed=True,
    ),
    Field(
        "relative_log_vol",
        "cont",
        "ln(sigma20/sigma120)",
        "<f4",
        lambda s: np.log(s.sigma20) - np.log(s.sigma120),
    ),
    Field("sigma_through_t", "cont", "sigma20", "<f8", lambda s: s.sigma20, column="sigma20"),
    Field("years_since_2000_norm", "cont", "the year's place among the 64 that have one"),
    *(
        Field(f"{name}_{wave}", "cont", f"{wave} of the {name}, once around")
        for name, _, _ in PERIODIC_FIELDS
        for wave in ("sin", "cos")
    ),
    *(Field(f"mask_{name}", "cont", "1 where the row has this mask") for name in MASKS),
    Field("mask_any", "cont", "1 where the row has any mask"),
    # The paper's discrete schema.
    Field(
        "return_bucket",
        "disc",
        "bucket of ret_z, 0 under a mask",
        "|u1",
        indices=NUM_RETURN_BUCKETS + 1,
    ),
    Field("gap_bucket", "disc", "bucket of gap_z, 0 under a mask", "|u1"),
    Field("vol_regime", "disc", "bucket of relative_log_vol, 0 under a mask", "|u1"),
    Field("asset_id", "disc", "1..n in the order of the symbols, 0 unknown"),
    Field("asset_class_id", "disc", "FX 0, SPOT 1, then the user's classes"),
    Field("timeframe_id", "disc", "0: a corpus has one", indices=1),
    Field("years_since_2000", "disc", "0 to 63", indices=MAX_YEARS_SINCE_2000 + 1),
    Field("month_of_year", "disc", "1 to 12", indices=13),
    *(
        Field(name, "disc", f"from {first}", indices=steps + first)
        for name, steps, first in PERIODIC_FIELDS[1:]
    ),
    Field("mask_any", "disc", "1 where the row has any mask", indices=2),
    # Of the asset's own bars, not the paper's.
    _extra("range_z", "ln(High/Low) / sigma20_prev", lambda s: s.log_range / s.sigma20_prev),
    _extra(
        "close_location",
        "where in its range the bar closed: -1 at the Low, 1 at the High",
        lambda s: s.close_location,
        signed=True,
    ),
    _extra(
        "range_vol20",
        "ln of the range volatility over 20 bars, less ln sigma20",
        lambda s: log_root(s.means["range20"]) - s.log_sigma20,
    ),
    _extra(
        "range_vol480",
        "ln of the range volatility over 480 bars, less ln sigma20",
        lambda s: log_root(s.means["range480"]) - s.log_sigma20,
    ),
    _extra(
        "long_vol",
        "ln sigma20, less ln of the volatility over 2,400 bars",
        lambda s: s.log_sigma20 - log_root(s.means["ret2400"]),
    ),
    _extra(
        "activity",
        "ln of the bar's volume over its mean of the 120 bars before",
        lambda s: np.log(s.activity),
    ),
    _extra(
        "slot_activity",
        "the same, less what past weeks had in this slot of the week",
        lambda s: np.log(s.activity / s.own_slot_prev["volume"]),
    ),
    _extra(
        "slot_surprise",
        "the bar's return over what past weeks predict for this slot",
        lambda s: s.clean_ret / floored_root(s.own_slot_prev["ret"] * s.means_prev["ret120"]),
        signed=True,
    ),
    _extra(
        "next_slot_vol",
        "ln of the volatility that past weeks predict for the coming slot, less ln sigma20; from "
        "returns",
        lambda s: log_root(s.next_slot["ret"] * s.means["ret120"]) - s.log_sigma20,
    ),
    _extra(
        "next_slot_range",
        "the same from ranges",
        lambda s: log_root(s.next_slot["range"] * s.means["range120"]) - s.log_sigma20,
    ),
    # Of the same closed bar in the other assets.
    _extra(
        "cross_abs",
        "mean \\|`ret_z`\\| of the other assets at the same stamp",
        others=lambda ret_z, vol, dollar: (np.abs(ret_z), 1),
    ),
    _extra(
        "usd_factor",
        "mean `ret_z` of the other assets with the dollar in them, signed so that a stronger "
        "dollar is positive",
        others=lambda ret_z, vol, dollar: (dollar * ret_z, abs(dollar)),
        signed=True,
    ),
    _extra(
        "cross_vol",
        "mean `relative_log_vol` of the other assets",
        others=lambda ret_z, vol, dollar: (vol, 1),
    ),
    # Of the stamps alone.
    Field(
        "log_wait",
        "extra",
        "ln of the bars' time since the row before; 0 when they are one bar apart",
    ),
)


CONT_FIELDS = tuple(field.name for field in FIELDS if field.kind == "cont")
DISC_FIELDS = tuple(field.name for field in FIELDS if field.kind == "disc")
EXTRA_FIELDS = tuple(field.name for field in FIELDS if field.kind == "extra")
META_FIELDS = ("asset_id", "asset_class_id", "timeframe_id")
SIGNED_FIELDS = tuple(field.name for field in FIELDS if field.signed)
_PAPER = {
    field.column or field.name: field.formula
    for field in FIELDS
    if field.kind == "cont" and field.formula
}
_OWN = {field.name: field.formula for field in FIELDS if field.kind == "extra" and field.formula}
_CROSS = {field.name: field.others for field in FIELDS if field.others}
OWN_FIELDS, CROSS_FIELDS = tuple(_OWN), tuple(_CROSS)
CROSS_SOURCES = ("flags", "ret_z", "relative_log_vol")
"""Columns of an asset that other assets read."""

COLUMN_TYPES = {
    "timestamp": "<u4",  # seconds of the stored clock since 1970
    **{
        field.column or field.name: field.stored
        for field in FIELDS
        if field.kind == "cont" and field.stored
    },
    "log_ret": "<f8",
    "flags": "|u1",
    **{field.name: field.stored for field in FIELDS if field.kind != "cont" and field.stored},
}
"""The stored columns of a corpus."""
REQUIRED_COLUMNS = tuple(name for name in COLUMN_TYPES if name not in EXTRA_FIELDS)
"""Columns that every corpus has; a corpus built before an extra field existed lacks its column."""
ROW_TYPES = {**COLUMN_TYPES, "log_wait": "<f4"}
"""With the wait stored: a window may begin anywhere, so that its first wait does not follow from
its stamps.
"""
BUCKETED = {"return_bucket": ("return", "ret_z"), "gap_bucket": ("gap", "gap_z")}
BUCKETED |= {"vol_regime": ("vol_regime", "relative_log_vol")}
"""Bucket columns: whose edges, and of which value."""

# Bits of the stored flags: the five masks in their order, then whether the row's own return and gap
# may serve as the target of the row before it.
MASK_BITS = {name: np.uint8(1 << bit) for bit, name in enumerate(MASKS)}
ANY_MASK = np.uint8((1 << len(MASKS)) - 1)
BAD_RETURN, BAD_GAP = np.uint8(1 << 5), np.uint8(1 << 6)

_FIRST_MASK = CONT_FIELDS.index(f"mask_{next(iter(MASKS))}")
# Row f holds the six mask channels of a row whose flags are f.
_MASK_CHANNELS = np.stack(
    [(np.arange(256, dtype=np.uint8) & bit) != 0 for bit in (*MASK_BITS.values(), ANY_MASK)], axis=1
).astype(np.float32)


def vocabulary_sizes(
    num_assets: int, num_classes: int, num_gap_buckets: int, num_vol_regimes: int
) -> dict[str, int]:
    """Number of indices of each discrete field, index 0 included, in the order of `DISC_FIELDS`."""
    sizes = {"gap_bucket": num_gap_buckets + 1, "vol_regime": num_vol_regimes + 1}
    sizes |= {"asset_id": num_assets + 1, "asset_class_id": num_classes}
    return {
        field.name: field.indices or sizes[field.name] for field in FIELDS if field.kind == "disc"
    }


# From bars to columns.


def columns_of(series: Series) -> dict[str, npt.NDArray[Any]]:
    """The columns of rows: the paper's fields in float64, NaN where undefined; flags; the extra
    fields as stored.
    """
    columns: dict[str, Any] = {column: formula(series) for column, formula in _PAPER.items()}
    flags = ~series.clean * BAD_RETURN | ~series.clean_gap * BAD_GAP
    for name, bit in MASK_BITS.items():
        flags |= MASKS[name](series) * bit
    columns |= {"timestamp": series.bars.seconds, "log_ret": series.log_ret, "flags": flags}
    if series.means:  # the inputs of the extra fields
        values = to_half(np.array([formula(series) for formula in _OWN.values()]))
        columns |= zip(OWN_FIELDS, values, strict=True)
    return columns


def stored(columns: Columns) -> dict[str, npt.NDArray[Any]]:
    """The paper's columns as stored: non-finite inputs become 0, an undefined return stays NaN."""
    out = dict(columns)
    for name in _PAPER:
        out[name] = where(np.isfinite(out[name]), out[name], 0.0).astype(COLUMN_TYPES[name])
    out["timestamp"] = out["timestamp"].astype(COLUMN_TYPES["timestamp"])
    return out


def to_half(values: Floats) -> npt.NDArray[np.float16]:
    """An extra field as stored: 0 where undefined, clipped, float16."""
    defined = np.where(np.isfinite(values), values, 0.0)
    return np.minimum(np.maximum(defined, -EXTRA_LIMIT), EXTRA_LIMIT).astype(np.float16)


def cross_columns(
    assets: Mapping[str, Columns], known: Sequence[str] | None = None
) -> dict[str, dict[str, npt.NDArray[np.float16]]]:
    """The stored cross fields per symbol, read from the other `known` assets at each stamp; 0 if
    there are none.

    They depend only on the assets with a bar at that stamp, so that histories and live bars agree;
    an append recomputes them where late bars of an asset arrive.
    """
    out = {
        symbol: np.empty((len(_CROSS), len(rows["timestamp"])), np.float16)
        for symbol, rows in assets.items()
    }
    stamps = np.unique(np.concatenate([rows["timestamp"] for rows in assets.values()]))
    for start in range(0, len(stamps), BLOCK_ROWS):
        part = stamps[start : start + BLOCK_ROWS]
        for symbol, means in read_others(assets, known, part).items():
            times = assets[symbol]["timestamp"]
            own = slice(times.searchsorted(part[0]), times.searchsorted(part[-1], "right"))
            out[symbol][:, own] = means.take(part.searchsorted(times[own]), axis=1, mode="clip")
    return {
        symbol: dict(zip(CROSS_FIELDS, columns, strict=True)) for symbol, columns in out.items()
    }


def read_others(
    assets: Mapping[str, Columns], known: Sequence[str] | None, stamps: npt.NDArray[np.uint32]
) -> dict[str, npt.NDArray[np.float16]]:
    """(cross fields, stamps) for each asset: what a row at these stamps reads of the others."""
    # Always in symbol order: the order of a sum affects its bits. An asset without a bar there adds
    # nothing.
    last = {
        symbol: rows["timestamp"][-1] for symbol, rows in assets.items() if len(rows["timestamp"])
    }
    symbols = sorted(symbol for symbol, stamp in last.items() if stamp >= stamps[0])
    places = [
        (assets[symbol], assets[symbol]["timestamp"].searchsorted(stamps)) for symbol in symbols
    ]
    times, flags, ret_z, relative_log_vol = (
        np.array([rows[name].take(at, mode="clip") for rows, at in places])
        for name in ("timestamp", *CROSS_SOURCES)
    )
    # Masked, unknown and absent assets add nothing.
    counted = (~has_flag(flags, ANY_MASK) & (times == stamps)).astype(np.float64)
    readable = {*(symbols if known is None else known)}
    for number, symbol in enumerate(symbols):
        if symbol not in readable:
            counted[number] = 0
    capped = np.minimum(np.maximum(ret_z.astype(np.float64), -OTHERS_LIMIT), OTHERS_LIMIT)
    vol = relative_log_vol.astype(np.float64)
    dollar = np.array([dollar_sign(symbol) for symbol in symbols])[:, None]
    # (assets, sums and weights, fields, stamps)
    sides = np.empty((len(symbols), 2, len(_CROSS), len(stamps)))
    for index, of_others in enumerate(_CROSS.values()):
        values, weight = of_others(capped, vol, dollar)
        np.multiply(counted, values, out=sides[:, 0, index])
        np.multiply(counted, weight, out=sides[:, 1, index])
    sums, weights = np.subtract(sum(sides), sides, out=sides).swapaxes(0, 1)
    return dict(
        zip(
            symbols, to_half(np.where(weights > 0, sums / np.maximum(weights, 1), 0.0)), strict=True
        )
    )


# From stored columns to inputs.


class InputConfig(Protocol):
    """The part of a model's configuration that determines its inputs."""

    @property
    def input(self) -> str: ...
    @property
    def input_fields(self) -> tuple[str, ...]: ...


def inputs_of(
    config: InputConfig, columns: Columns, meta: npt.NDArray[np.integer]
) -> npt.NDArray[np.float32]:
    """(N, F) unclipped: the fields that a model reads, in its order."""
    fields = config.input_fields
    if config.input == "disc":
        return discrete_inputs(columns, meta)[
            :, [DISC_FIELDS.index(name) for name in fields]
        ].astype(np.float32)
    continuous = continuous_inputs(columns)
    if fields == CONT_FIELDS:
        return continuous
    out, (places, sources, others) = (
        np.empty((len(continuous), len(fields)), np.float32),
        _places(fields),
    )
    out[:, places] = continuous.take(sources, axis=1)
    for index in others:
        out[:, index] = columns[fields[index]]
    return out


@cache
def _places(
    fields: tuple[str, ...],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[int]]:
    """Positions of the fields of `continuous_inputs` in a model's fields and in that array, and of
    the other fields.
    """
    places = [index for index, name in enumerate(fields) if name in CONT_FIELDS]
    sources = [CONT_FIELDS.index(fields[index]) for index in places]
    return (
        np.array(places, np.int64),
        np.array(sources, np.int64),
        sorted({*range(len(fields))} - {*places}),
    )


def continuous_inputs(columns: Columns) -> npt.NDArray[np.float32]:
    """(N, 25) unclipped."""
    out = np.empty((len(columns["timestamp"]), len(CONT_FIELDS)), np.float32)
    for start in range(0, len(out), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        fill_continuous({name: column[block] for name, column in columns.items()}, out[block])
    return out


def fill_continuous(columns: Columns, out: npt.NDArray[np.float32]) -> None:
    """Fill `out` (N, 25); fastest for blocks of rows that fit a processor's cache."""
    for index, name in enumerate(_PAPER):
        out[:, index] = columns[name]
    calendar_channels(columns["timestamp"], out[:, len(_PAPER) : _FIRST_MASK])
    out[:, _FIRST_MASK:] = _MASK_CHANNELS.take(columns["flags"], axis=0, mode="clip")


def discrete_inputs(columns: Columns, meta: npt.NDArray[np.integer]) -> npt.NDArray[np.int16]:
    """(N, 15), `meta` of one asset or of each row; under any mask the three bucket fields are 0."""
    out = np.empty((len(columns["timestamp"]), len(DISC_FIELDS)), np.int16)
    unmasked = ~has_flag(columns["flags"], ANY_MASK)
    for index, name in enumerate(BUCKETED):
        out[:, index] = columns[name] * unmasked
    first_calendar = len(BUCKETED) + len(META_FIELDS)
    out[:, len(BUCKETED) : first_calendar] = meta
    out[:, first_calendar:-1] = calendar_fields(columns["timestamp"])
    out[:, -1] = ~unmasked
    return out


def has_flag(flags: npt.NDArray[np.uint8], bits: np.uint8 | int) -> Bools:
    """Rows where any of the bits is set."""
    return (flags & bits).astype(np.bool_)


def timestamps_of(columns: Columns) -> npt.NDArray[np.datetime64]:
    """Stored seconds as naive timestamps."""
    return columns["timestamp"].astype(np.int64).astype("datetime64[s]")
