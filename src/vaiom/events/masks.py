"""The five row masks and target validity.

Enters: the scales of one asset. Leaves: boolean arrays, True = bad. `_next` refers to the row's target, row t+1.
Paper: Methods, "Data-quality masks"; Appendix B, "Serialized row and target validity rules".
"""

from __future__ import annotations

import numpy as np

from vaiom.events.scales import MAX_LOG_MOVE, SCALE_FLOOR, SHORT_SPAN, Bools, Scales

MIN_CLEAN_RETURNS = SHORT_SPAN


def row_masks(scales: Scales) -> dict[str, Bools]:
    """Each mask of `schema.MASK_NAMES` for every row."""
    with np.errstate(invalid="ignore"):
        return {
            "missing": scales.missing,
            "stale": scales.log_ret == 0,
            "bad_data": (np.abs(scales.log_ret) > MAX_LOG_MOVE) | (np.abs(scales.log_gap) > MAX_LOG_MOVE),
            "insufficient_history": scales.num_clean_prev < MIN_CLEAN_RETURNS,
            # The past-only scale divides ret_z; where it is undefined it is no scale at all.
            "scale_zero": ~(scales.sigma20_prev > SCALE_FLOOR),
        }


def bad_return(scales: Scales) -> Bools:
    """Rows whose own return can be nobody's target: non-finite, exactly zero, excessive, or of a missing row."""
    return ~scales.clean


def bad_gap(scales: Scales) -> Bools:
    """Rows whose own gap can be nobody's target: missing row, non-finite or excessive gap."""
    with np.errstate(invalid="ignore"):
        return scales.missing | ~(np.abs(scales.log_gap) <= MAX_LOG_MOVE)
