"""What makes a row an event: the one rule that fits, trains, scores and serves by.

Enters: stored columns of an asset's rows, or of one live row. Leaves: which rows may be forecast
from and which returns may be forecast. Paper: Methods, "Supervision Scope".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vaiom.features.fields import ANY_MASK, BAD_RETURN, MASK_BITS, has_flag
from vaiom.features.recursions import MAX_LOG_MOVE, Bools


def is_event(flags: npt.NDArray[np.uint8], next_flags: npt.NDArray[np.uint8]) -> Bools:
    """Rows without a mask whose next return is a target: known, believable and not exactly zero.

    Arguments are the stored flags of the rows and of the rows after them. An event also needs a
    bucket, which a row has once its scale is defined.
    """
    return ~has_flag(flags, ANY_MASK) & ~has_flag(next_flags, BAD_RETURN)


def has_return(columns: Mapping[str, npt.NDArray[Any]]) -> Bools:
    """Rows whose own return is known and believable; it may be exactly zero.

    Such a return counts in the sum of several bars, in dependence and in shares of zeros.
    """
    missing = has_flag(columns["flags"], MASK_BITS["missing"])
    believable: Bools = np.abs(columns["log_ret"]) <= MAX_LOG_MOVE
    return ~missing & believable
