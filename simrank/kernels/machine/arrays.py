"""Types of arrays and of the values of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# The values of a block: an array whose first axis is that of the programs, or a numpy scalar where
# all programs share one. Scalars have the methods and operators of arrays, so they share a name.
Value = np.ndarray[Any, Any]
