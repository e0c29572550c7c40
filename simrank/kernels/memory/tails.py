"""What lies between the end of a tensor and that of its allocation, which is rounded up.

A GPU reads there without a fault: kernels load whole tiles at the end of a table, and mask what
comes of them. No program wrote these bytes, so what is loaded is what a wrong result shows by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrank.device.memory import GRANULE_BYTES
from simrank.kernels.memory import illegal

if TYPE_CHECKING:
    from simrank.device.memory import Storage
    from simrank.kernels.machine import Programs
    from simrank.kernels.machine.arrays import Array, Value
    from simrank.kernels.values.types import ElementType


def poison(element: ElementType) -> Value:
    """Return what nobody wrote: NaN, true, or the largest integer."""
    if element.kind == "f":
        return element.scalar(np.nan)
    if element.kind == "b":
        return element.scalar(1)
    return element.scalar(np.iinfo(element.compute).max)


def past_end(
    programs: Programs,
    storage: Storage,
    asked: illegal.Asked,
    index: Array,
    element: ElementType,
) -> Array:
    """Return which lanes of a load of blocks read behind the end of a tensor.

    Args:
        programs: Who loads.
        storage: What they load from.
        asked: The load, for the error.
        index: Its elements; lanes that are masked off repeat one that is not.
        element: Their type.

    Raises:
        IllegalAccessError: A lane leaves the allocation, a program loads a single number, or all is
            checked, as under `strict`.
    """
    itemsize, options = element.itemsize, programs.options
    end_bytes = -(-storage.size_bytes // GRANULE_BYTES) * GRANULE_BYTES
    device = storage.device
    if (
        options.is_checked
        or device is None
        or index.ndim == 1
        or not storage.size_bytes >= itemsize
        or int(index.min()) < 0
        or int(index.max()) >= end_bytes // itemsize
    ):
        raise illegal.outside(programs, storage, asked, element)
    device.memory.space.hints[illegal.past_end_text(programs, storage)] = None
    is_past: Array = index >= storage.size_bytes // itemsize
    return is_past
