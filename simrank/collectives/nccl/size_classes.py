"""Classes of size: in each of them something else decides about a collective's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

# The largest size of each class but the last: latency; LL and LL128; the ramp; then bandwidth.
ENDS_BYTES: Final = (32 << 10, 1 << 20, 64 << 20)
NAMES: Final = ("<= 32 KiB", "64 KiB-1 MiB", "2-64 MiB", ">= 128 MiB")
TEXTS: Final = ("up to 32 KiB", "to 1 MiB", "to 64 MiB", "above")


def errors_by_class(errors_pct: Iterable[tuple[int, float]]) -> str:
    """Return mean absolute errors by class of size as text.

    Args:
        errors_pct: Sizes in bytes, with their errors in percent.
    """
    by_class: dict[int, list[float]] = {}
    for size_bytes, error_pct in errors_pct:
        by_class.setdefault(int(np.searchsorted(ENDS_BYTES, size_bytes)), []).append(abs(error_pct))
    return ", ".join(
        f"{sum(by_class[number]) / len(by_class[number]):.0f} % {name}"
        for number, name in enumerate(TEXTS)
        if number in by_class
    )
