"""What makes a row an event: the one rule that fits, trains, scores and serves by.

Enters: stored columns of an asset's rows, or of one live row. Leaves: which rows may be forecast
from and which returns may be forecast. Paper: Methods, "Supervision Scope".
"""

from __future__ import annotations

import numpy as np

from vaiom.features.fields import ANY_MASK, BAD_RETURN, MASK_BITS, has_flag
from vaiom.features.quantities import MAX_LOG_MOVE
from vaiom.features.typing import Bools, Codes, Columns


def is_readable(flags: Codes) -> Bools:
    """Rows without a mask: a forecast from them is trained and scored."""
    return ~has_flag(flags, ANY_MASK)


def is_target(flags: Codes) -> Bools:
    """Rows whose own return is known, believable and not exactly zero."""
    return ~has_flag(flags, BAD_RETURN)


def is_event(flags: Codes, next_flags: Codes) -> Bools:
    """Readable rows before a target, from the stored flags of the rows and of the rows after them.

    An event also has a bucket: an unmasked row's scale is defined.
    """
    return is_readable(flags) & is_target(next_flags)


def has_return(columns: Columns) -> Bools:
    """Rows whose own return is known and believable; it may be exactly zero.

    Such a return counts in the sum of several bars, in dependence and in shares of zeros.
    """
    missing = has_flag(columns["flags"], MASK_BITS["missing"])
    believable: Bools = np.abs(columns["log_ret"]) <= MAX_LOG_MOVE
    return ~missing & believable
