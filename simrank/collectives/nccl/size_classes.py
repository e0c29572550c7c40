"""Classes of size: in each of them something else decides about a collective's time."""

from __future__ import annotations

from typing import Final

# The largest size of each class but the last: latency; LL and LL128; the ramp; then bandwidth.
ENDS_BYTES: Final = (32 << 10, 1 << 20, 64 << 20)
NAMES: Final = ("<= 32 KiB", "64 KiB-1 MiB", "2-64 MiB", ">= 128 MiB")
