"""Names for NumPy arrays by their elements, shared by the rooms that hold columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
Ints = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int16]
Codes = npt.NDArray[np.uint8]
"""Bucket ids, flags and codes of splits."""
Bools = npt.NDArray[np.bool_]
Stamps = npt.NDArray[np.datetime64]
Columns = Mapping[str, AnyArray]
"""Columns of equal length by name."""
