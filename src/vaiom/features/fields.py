"""Every input field, defined once: its formula, how it is stored, how a model reads it.

A new input is one line of `FIELDS`: builds, appends, live bars, models and tests follow. Extra
fields are ours. Paper: Methods, "Continuous dynamic features", "Data-quality masks", "Input
Representations"; Appendix B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vaiom.features.asset_state import SHORT_SPAN
from vaiom.features.calendar import MAX_YEARS_SINCE_2000, PERIODIC_FIELDS
from vaiom.features.quantities import MAX_LOG_MOVE, BarQuantities, expected_range_z
from vaiom.features.recursions import SCALE_FLOOR, floored_root, where
from vaiom.features.typing import Bools, Codes, Columns, Floats, Halves, Stamps

INVALID = 0
"""The index of a missing or invalid bucket; valid ids start at 1."""
UNKNOWN_ASSET = 0
"""The id of an asset that the model was not trained on."""
MIN_PROBABILITY = 1e-12
"""Probabilities are floored here before a logarithm."""
NUM_RETURN_BUCKETS = 16
MIN_CLEAN_RETURNS = SHORT_SPAN
"""Rows with fewer clean returns before them are masked: their scales have hardly begun."""
CLASSES = ("FX", "SPOT")
"""The paper's asset classes, ids by position; users may add their own."""
EXTRA_LIMIT = 1000.0
"""Extra fields are clipped here: far beyond what a model reads, well inside float16."""
HALF_ROUNDING = 1e-3
"""More than the relative error of a number in float16."""
BLOCK_ROWS = 1 << 15
"""Rows processed together: their columns fit a processor's cache."""

Formula = Callable[[BarQuantities], Floats]
OthersFormula = Callable[[Floats, Floats, Any], tuple[Floats, Any]]


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
    formula: Formula | None = None
    """From the asset's own bars, known when the row's bar closes; NaN where undefined."""
    others: OthersFormula | None = None
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

    @property
    def column_name(self) -> str:
        """The name of its column in a corpus."""
        return self.column or self.name


def log_root(mean_square: Floats) -> Floats:
    """ln of a volatility, from its square."""
    return np.log(floored_root(mean_square))


def _cont(name: str, doc: str, formula: Formula | None = None, **more: Any) -> Field:
    """A field of ContIn; one with a formula is stored in single precision unless told."""
    return Field(
        name, "cont", doc, **{"stored": "<f4" if formula else None, **more}, formula=formula
    )


def _disc(name: str, doc: str, indices: int = 0, stored: str | None = None) -> Field:
    """A field of DiscIn."""
    return Field(name, "disc", doc, stored, indices=indices)


def _extra(name: str, doc: str, formula: Formula | None = None, **more: Any) -> Field:
    """A field beyond the paper's, stored in half precision."""
    return Field(name, "extra", doc, "<f2", formula, **more)


MASKS: dict[str, Callable[[BarQuantities], Bools]] = {
    "missing": lambda q: q.missing,
    "stale": lambda q: q.log_ret == 0,
    "bad_data": lambda q: (abs(q.log_ret) > MAX_LOG_MOVE) | (abs(q.log_gap) > MAX_LOG_MOVE),
    "insufficient_history": lambda q: q.num_clean_prev < MIN_CLEAN_RETURNS,
    # The past-only scale divides ret_z; an undefined one counts as zero.
    "scale_zero": lambda q: ~(q.sigma20_prev > SCALE_FLOOR),
}
"""Data-quality masks, True = bad."""

FIELDS = (
    # The paper's continuous schema.
    _cont("ret_z", "return / sigma20_prev", lambda q: q.log_ret / q.sigma20_prev, signed=True),
    _cont("gap_z", "gap / its scale", lambda q: q.log_gap / q.sigma_gap20_prev, signed=True),
    _cont(
        "relative_log_vol",
        "ln(sigma20/sigma120)",
        lambda q: np.log(q.sigma20) - np.log(q.sigma120),
    ),
    _cont("sigma_through_t", "sigma20", lambda q: q.sigma20, stored="<f8", column="sigma20"),
    _cont("years_since_2000_norm", "the year's place among the 64 that have one"),
    *(
        _cont(f"{period.name}_{wave}", f"{wave} of the {period.name}, once around")
        for period in PERIODIC_FIELDS
        for wave in ("sin", "cos")
    ),
    *(_cont(f"mask_{name}", "1 where the row has this mask") for name in MASKS),
    _cont("mask_any", "1 where the row has any mask"),
    # The paper's discrete schema.
    _disc("return_bucket", "bucket of ret_z, 0 under a mask", NUM_RETURN_BUCKETS + 1, "|u1"),
    _disc("gap_bucket", "bucket of gap_z, 0 under a mask", stored="|u1"),
    _disc("vol_regime", "bucket of relative_log_vol, 0 under a mask", stored="|u1"),
    _disc("asset_id", "1..n in the order of the symbols, 0 unknown"),
    _disc("asset_class_id", "FX 0, SPOT 1, then the user's classes"),
    _disc("timeframe_id", "0: a corpus has one", 1),
    _disc("years_since_2000", "0 to 63", MAX_YEARS_SINCE_2000 + 1),
    _disc("month_of_year", "1 to 12", 13),
    *(
        _disc(period.name, f"from {period.first}", period.num_steps + period.first)
        for period in PERIODIC_FIELDS[1:]
    ),
    _disc("mask_any", "1 where the row has any mask", 2),
    # Of the asset's own bars, not the paper'q.
    _extra("range_z", "ln(High/Low) / sigma20_prev", lambda q: q.range_z),
    _extra(
        "close_location",
        "where in its range the bar closed: -1 at the Low, 1 at the High",
        lambda q: q.close_location,
        signed=True,
    ),
    _extra(
        "range_vol20",
        "ln of the range volatility over 20 bars, less ln sigma20",
        lambda q: log_root(q.means["range20"]) - q.log_sigma20,
    ),
    _extra(
        "range_vol480",
        "ln of the range volatility over 480 bars, less ln sigma20",
        lambda q: log_root(q.long_range) - q.log_sigma20,
    ),
    _extra(
        "long_vol",
        "ln sigma20, less ln of the volatility over 2,400 bars",
        lambda q: q.log_sigma20 - log_root(q.means["ret2400"]),
    ),
    _extra(
        "activity",
        "ln of the bar's volume over its mean of the 120 bars before",
        lambda q: np.log(q.activity),
    ),
    _extra(
        "slot_activity",
        "the same, less what past weeks had in this slot of the week",
        lambda q: np.log(q.activity / q.own_slot_prev["volume"]),
    ),
    _extra(
        "slot_surprise",
        "the bar's return over what past weeks predict for this slot",
        lambda q: q.clean_ret / floored_root(q.own_slot_prev["ret"] * q.means_prev["ret120"]),
        signed=True,
    ),
    _extra(
        "next_slot_vol",
        "ln of the volatility that past weeks predict for the coming slot, less ln sigma20; from "
        "returns",
        lambda q: log_root(q.next_slot_ret) - q.log_sigma20,
    ),
    _extra(
        "next_slot_range",
        "the same from ranges",
        lambda q: log_root(q.next_slot_range) - q.log_sigma20,
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

PAPER_COLUMNS = {
    field.column_name: field.formula for field in FIELDS if field.kind == "cont" and field.formula
}
"""Formulas of the paper's stored columns, in the order of the first inputs of ContIn."""
OWN = {field.name: field.formula for field in FIELDS if field.kind == "extra" and field.formula}
"""Formulas of the extra fields that read the asset's own bars."""
CROSS = {field.name: field.others for field in FIELDS if field.others}
"""Formulas of the extra fields that read other assets."""
OWN_FIELDS = tuple(OWN)
CROSS_FIELDS = tuple(CROSS)
CROSS_SOURCES = ("flags", "ret_z", "relative_log_vol")
"""Columns of an asset that other assets read."""

COLUMN_TYPES = {
    "timestamp": "<u4",  # seconds of the stored clock since 1970
    **{
        field.column_name: field.stored for field in FIELDS if field.kind == "cont" and field.stored
    },
    "log_ret": "<f8",
    "flags": "|u1",
    **{field.name: field.stored for field in FIELDS if field.kind != "cont" and field.stored},
}
"""The stored columns of a corpus."""
REQUIRED_COLUMNS = tuple(name for name in COLUMN_TYPES if name not in EXTRA_FIELDS)
"""Columns that every corpus has; a corpus built before an extra field existed lacks its column."""
BUCKETED = {
    "return_bucket": ("return", "ret_z"),
    "gap_bucket": ("gap", "gap_z"),
    "vol_regime": ("vol_regime", "relative_log_vol"),
}
"""Bucket columns: whose edges, and of which value."""

# Bits of the stored flags: the five masks in their order, then whether the row's own return and gap
# may serve as the target of the row before it.
MASK_BITS = {name: np.uint8(1 << bit) for bit, name in enumerate(MASKS)}
ANY_MASK = np.uint8((1 << len(MASKS)) - 1)
BAD_RETURN = np.uint8(1 << 5)
BAD_GAP = np.uint8(1 << 6)


def has_flag(flags: Codes, bits: np.uint8 | int) -> Bools:
    """Rows where any of the bits is set."""
    return (flags & bits).astype(np.bool_)


def bucket_of(edges: Floats, values: Floats) -> Codes:
    """The j with edges[j-1] < value <= edges[j]; non-finite values get 0.

    `edges` include the infinities; `values` are an array, or the scalar of one row.
    """
    ids = edges[1:-1].searchsorted(values) + 1
    return where(np.isfinite(values), ids, INVALID).astype(np.uint8)


def to_half(values: Floats) -> Halves:
    """An extra field as stored: 0 where undefined, clipped, float16."""
    defined = np.where(np.isfinite(values), values, 0.0)
    not_low = np.maximum(defined, -EXTRA_LIMIT)
    return np.minimum(not_low, EXTRA_LIMIT).astype(np.float16)


def lacks_range(columns: Columns) -> Bools:
    """Rows whose stored range is zero, undefined, or what the return lets expect."""
    range_z = columns["range_z"].astype(np.float64)
    expected = expected_range_z(columns["ret_z"].astype(np.float64))
    is_expected = abs(range_z - expected) <= HALF_ROUNDING * expected
    return np.asarray((range_z == 0) | is_expected)


def timestamps_of(columns: Columns) -> Stamps:
    """Stored seconds as naive timestamps."""
    return columns["timestamp"].astype(np.int64).astype("datetime64[s]")


def vocabulary_sizes(
    num_assets: int, num_classes: int, num_gap_buckets: int, num_vol_regimes: int
) -> dict[str, int]:
    """Number of indices of each discrete field, index 0 included, in the order of `DISC_FIELDS`."""
    of_corpus = {
        "gap_bucket": num_gap_buckets + 1,
        "vol_regime": num_vol_regimes + 1,
        "asset_id": num_assets + 1,
        "asset_class_id": num_classes,
    }
    discrete = [field for field in FIELDS if field.kind == "disc"]
    return {field.name: field.indices or of_corpus[field.name] for field in discrete}
