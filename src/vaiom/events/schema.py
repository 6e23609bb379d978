"""Field names and their order: 25 continuous, 15 discrete and 3 metadata inputs, and the size of each vocabulary.

Paper: Appendix B, "Complete Input Schemas"; the extra fields are not the paper's.
"""

from __future__ import annotations

INVALID = 0
"""The index of a missing or invalid bucket; bucket ids count from 1."""

UNKNOWN_ASSET = 0
NUM_RETURN_BUCKETS = 16

DYNAMIC_FIELDS = ("ret_z", "gap_z", "relative_log_vol", "sigma_through_t")
MASK_NAMES = ("missing", "stale", "bad_data", "insufficient_history", "scale_zero")

# (name, number of steps in a cycle, value of the first step); order is that of both schemas.
PERIODIC_FIELDS = (
    ("month", 12, 1),
    ("day_of_month", 31, 1),
    ("day_of_week", 7, 0),
    ("day_of_year", 366, 1),
    ("hour", 24, 0),
    ("minute", 60, 0),
    ("second", 60, 0),
)
MAX_YEARS_SINCE_2000 = 63

CONT_FIELDS = (
    *DYNAMIC_FIELDS,
    "years_since_2000_norm",
    *(f"{name}_{wave}" for name, _, _ in PERIODIC_FIELDS for wave in ("sin", "cos")),
    *(f"mask_{name}" for name in MASK_NAMES),
    "mask_any",
)
OWN_FIELDS = (
    "range_z",
    "close_location",
    "range_vol20",
    "range_vol480",
    "long_vol",
    "activity",
    "slot_activity",
    "slot_surprise",
    "next_slot_vol",
    "next_slot_range",
)
CROSS_FIELDS = ("cross_abs", "usd_factor", "cross_vol")
STORED_EXTRA_FIELDS = (*OWN_FIELDS, *CROSS_FIELDS)
EXTRA_FIELDS: tuple[str, ...] = (*STORED_EXTRA_FIELDS, "log_wait")
"""What the paper does not have: of the asset's own bars, of the others' at the same stamp, of the stamps alone."""
SIGNED_FIELDS = ("ret_z", "gap_z", "close_location", "slot_surprise", "usd_factor")
"""What changes its sign, and nothing else, when all prices are turned upside down."""
COLUMN_TYPES = {
    "timestamp": "<u4",  # seconds of the stored clock since 1970
    "ret_z": "<f4",
    "gap_z": "<f4",
    "relative_log_vol": "<f4",
    "sigma20": "<f8",
    "log_ret": "<f8",
    "flags": "|u1",
    "return_bucket": "|u1",
    "gap_bucket": "|u1",
    "vol_regime": "|u1",
    **dict.fromkeys(STORED_EXTRA_FIELDS, "<f2"),
}
"""What a corpus keeps of a row."""
META_FIELDS = ("asset_id", "asset_class_id", "timeframe_id")
DISC_FIELDS = (
    "return_bucket",
    "gap_bucket",
    "vol_regime",
    *META_FIELDS,
    "years_since_2000",
    "month_of_year",
    *(name for name, _, _ in PERIODIC_FIELDS[1:]),
    "mask_any",
)

CLASSES = ("FX", "SPOT")
"""Asset classes; the class id is the position here."""

_METALS = ("XAU", "XAG", "XPT", "XPD")


def default_class(symbol: str) -> str:
    """The class of a symbol that the corpus configuration does not name."""
    return "SPOT" if symbol.upper().startswith(_METALS) else "FX"


def vocabulary_sizes(num_assets: int, num_gap_buckets: int, num_vol_regimes: int) -> dict[str, int]:
    """Number of indices of each discrete field, index 0 included, in the order of `DISC_FIELDS`."""
    calendar = {"years_since_2000": MAX_YEARS_SINCE_2000 + 1, "month_of_year": 13}
    calendar |= {name: steps + first for name, steps, first in PERIODIC_FIELDS[1:]}
    sizes = {
        "return_bucket": NUM_RETURN_BUCKETS + 1,
        "gap_bucket": num_gap_buckets + 1,
        "vol_regime": num_vol_regimes + 1,
        "asset_id": num_assets + 1,
        "asset_class_id": len(CLASSES),
        "timeframe_id": 1,
        **calendar,
        "mask_any": 2,
    }
    return {name: sizes[name] for name in DISC_FIELDS}
