"""Quantities with units, as people write them, to and from exact integers.

Inside simrank a size is an integer number of bytes, a time of picoseconds, a bandwidth of bytes
per second and a rate of arithmetic of operations per second. Start with `parse_bandwidth` and
`transfer_ps`. Decimal prefixes are powers of 1000 (`kB`, `MB`, `GB`), binary ones of 1024 (`KiB`).
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PS_PER_NS = 1_000
PS_PER_US = 1_000_000
PS_PER_MS = 1_000_000_000
PS_PER_S = 1_000_000_000_000
MAX_QUANTITY = 2**63 - 1  # Every quantity fits an int64 array.

_NUMBER = re.compile(
    r"\s*(?P<number>[+-]?(?:\d[\d_]{0,29}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,2})?)"
    r"\s*(?P<unit>.*?)\s*",
    re.ASCII | re.DOTALL,
)
_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}

_SIZE_UNITS = {f"{prefix}B": Fraction(scale) for prefix, scale in (_PREFIXES | _BINARY).items()}
_BANDWIDTH_UNITS = {f"{unit}/s": scale for unit, scale in _SIZE_UNITS.items()} | {
    f"{prefix}{bit}": Fraction(scale, 8)
    for prefix, scale in _PREFIXES.items()
    for bit in ("b/s", "bit/s")
}
_TIME_UNITS = {
    "ps": Fraction(1),
    "ns": Fraction(PS_PER_NS),
    "us": Fraction(PS_PER_US),
    "ms": Fraction(PS_PER_MS),
    "s": Fraction(PS_PER_S),
}
_FLOPS_UNITS = {
    f"{prefix}{flops}": Fraction(scale)
    for prefix, scale in _PREFIXES.items()
    for flops in ("FLOPS", "FLOP/s")
}
_POWER_UNITS = {"mW": Fraction(1, 1000), "W": Fraction(1), "kW": Fraction(1000)}
UNIT_NAMES = (*_SIZE_UNITS, *_BANDWIDTH_UNITS, *_TIME_UNITS, *_FLOPS_UNITS, *_POWER_UNITS)


def parse_size(text: str) -> int:
    """Read a size such as `8 GiB`.

    Args:
        text: A number and one of B, kB, MB, GB, TB, PB (powers of 1000), KiB .. PiB (of 1024).

    Returns:
        The size in bytes.

    Raises:
        ValueError: The unit is missing or unknown, or the size is negative or no whole number
            of bytes.
    """
    value = _parse(text, _SIZE_UNITS, "a size with a unit", "8 MiB")
    if value.denominator != 1:
        raise ValueError("expected a whole number of bytes")
    return value.numerator


def parse_bandwidth(text: str) -> int:
    """Read a rate such as `450 GB/s` or `400 Gb/s`.

    Args:
        text: A number and a size per second (`GB/s`, `GiB/s`) or bits per second (`Gb/s`).

    Returns:
        The rate in bytes per second, rounded to the nearest integer.

    Raises:
        ValueError: The unit is missing or unknown, or the rate is not above zero.
    """
    value = round(_parse(text, _BANDWIDTH_UNITS, "a rate with a unit", "450 GB/s"))
    if value <= 0:
        raise ValueError("expected a rate of at least 1 B/s")
    return value


def parse_time(text: str) -> int:
    """Read a time such as `1.5 us`.

    Args:
        text: A number and one of ps, ns, us, ms, s.

    Returns:
        The time in picoseconds, rounded up.

    Raises:
        ValueError: The unit is missing or unknown, or the time is negative.
    """
    return math.ceil(_parse(text, _TIME_UNITS, "a time with a unit", "1 us"))


def parse_flops(text: str) -> int:
    """Read a rate of arithmetic such as `989 TFLOPS`.

    Args:
        text: A number and one of FLOPS, GFLOPS, TFLOPS, PFLOPS, or the same as `TFLOP/s`.

    Returns:
        The rate in operations per second.

    Raises:
        ValueError: The unit is missing or unknown, or the rate is not above zero.
    """
    value = round(_parse(text, _FLOPS_UNITS, "a rate of arithmetic with a unit", "989 TFLOPS"))
    if value <= 0:
        raise ValueError("expected a rate of at least 1 FLOPS")
    return value


def parse_power(text: str) -> int:
    """Read a power such as `700 W`.

    Args:
        text: A number and one of mW, W, kW.

    Returns:
        The power in watts.

    Raises:
        ValueError: The unit is missing or unknown, or the power is not above zero.
    """
    value = round(_parse(text, _POWER_UNITS, "a power with a unit", "700 W"))
    if value <= 0:
        raise ValueError("expected a power of at least 1 W")
    return value


def parse_size_nccl(text: str) -> int:
    """Read a size as nccl-tests' `-b` and `-e` do, or with a unit.

    Args:
        text: A number with K, M, G or T (powers of 1024), a bare number of bytes, or a size
            that `parse_size` accepts.

    Returns:
        The size in bytes.

    Raises:
        ValueError: The text is none of these.
    """
    match = re.fullmatch(r"\s*(\d{1,19})\s*([KMGTkmgt]?)\s*", text, re.ASCII)
    if match is None:
        return parse_size(text)
    value = int(match[1]) << (10 * " KMGT".index(match[2].upper() or " "))
    if value > MAX_QUANTITY:
        raise ValueError("expected a size below 2^63 bytes")
    return value


def _parse(text: str, units: Mapping[str, Fraction], expected: str, example: str) -> Fraction:
    """Return the exact value of `text` in the base unit of `units`."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"expected {expected}, for example `{example}`")
    if not match["unit"]:
        raise ValueError(f"expected {expected}: write the unit, for example `{example}`")
    unit = match["unit"].replace("\N{MICRO SIGN}", "u").replace("\N{GREEK SMALL LETTER MU}", "u")
    if unit not in units:
        raise ValueError(f"expected {expected}, for example `{example}`: unknown unit `{unit}`")
    value = Fraction(match["number"].replace("_", "")) * units[unit]
    if value < 0:
        raise ValueError(f"expected {expected} that is not negative")
    if value > MAX_QUANTITY:
        raise ValueError(f"expected {expected} that fits 63 bits")
    return value


def ceil_ps(seconds: float) -> int:
    """Return a cost in picoseconds, rounded up (rule E1).

    Args:
        seconds: A finite cost in seconds, at least zero.

    Raises:
        ValueError: The cost is negative, infinite or not a number.
    """
    if not 0.0 <= seconds < math.inf:
        raise ValueError(f"a cost must be finite and not negative, got {seconds!r} s")
    numerator, denominator = seconds.as_integer_ratio()  # Exact, and faster than a Fraction.
    return -(-numerator * PS_PER_S // denominator)


def transfer_ps(size_bytes: int, bandwidth_bytes_per_s: int) -> int:
    """Return the exact time to move some bytes at a rate, rounded up.

    Args:
        size_bytes: Bytes to move, at least zero.
        bandwidth_bytes_per_s: The rate, above zero.

    Returns:
        The time in picoseconds.
    """
    return -(-size_bytes * PS_PER_S // bandwidth_bytes_per_s)


def format_time(time_ps: int) -> str:
    """Return a time as text with three decimals, for example `12.500 us`."""
    magnitude = abs(time_ps)
    if magnitude >= PS_PER_S:
        return f"{time_ps / PS_PER_S:.3f} s"
    if magnitude >= PS_PER_MS:
        return f"{time_ps / PS_PER_MS:.3f} ms"
    if magnitude >= PS_PER_US or time_ps == 0:
        return f"{time_ps / PS_PER_US:.3f} us"
    if magnitude >= PS_PER_NS:
        return f"{time_ps / PS_PER_NS:.3f} ns"
    return f"{time_ps} ps"


def format_size(size_bytes: int) -> str:
    """Return a size as text that `parse_size` reads back exactly, for example `8 GiB`."""
    for unit, scale in (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if size_bytes and size_bytes % scale == 0:
            return f"{size_bytes // scale} {unit}"
    if size_bytes and size_bytes % 1024 == 0:
        return f"{size_bytes // 1024} KiB"
    return f"{size_bytes} B"


def format_bandwidth(bandwidth_bytes_per_s: float) -> str:
    """Return a rate as text with up to four digits, for example `376 GB/s`."""
    for unit, scale in (("TB/s", 10**12), ("GB/s", 10**9), ("MB/s", 10**6), ("kB/s", 10**3)):
        if bandwidth_bytes_per_s >= scale:
            return f"{bandwidth_bytes_per_s / scale:.4g} {unit}"
    return f"{bandwidth_bytes_per_s:.4g} B/s"
