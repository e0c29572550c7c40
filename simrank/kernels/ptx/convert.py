"""Conversions: `cvt` between integers, floats and pairs of narrow floats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels.language.numbers import to_tf32
from simrank.kernels.ptx.compute import TYPES, bits_of, is_float, read_as
from simrank.kernels.values.conversions import to_float32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.kernels.machine.arrays import Array, Value

# Pairs of floats of 8 and of 4 bits, and of bare powers of two.
_FP8: dict[str, Any] = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}
_FP4, _POWERS = "e2m1x2", "ue8m0x2"
_NARROW = {*_FP8, _FP4, _POWERS}
_POWER_BIAS, _POWER_NAN = 127, 255
_PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}
_HALVES = ("f16", "bf16")
_ROUNDINGS = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_KNOWN = {
    "rn", "rz", "rp", "rna", "rni", "rzi", "rmi", "rpi", "sat", "satfinite", "ftz", "relu",
    "approx",
}  # fmt: skip


def convert(opcode: tuple[str, ...], sources: Sequence[Array]) -> Array:
    """Return the bits of a conversion; of two sources, the first goes to the upper half.

    Raises:
        UnsupportedError: It is none of the conversions here.
    """
    *modifiers, target, source = opcode[1:]
    name = ".".join(opcode)
    known = {*TYPES, *_NARROW}
    if target not in known or source not in known or set(modifiers) - _KNOWN:
        raise UnsupportedError(f"inline assembly with {name} is not supported: no such conversion")
    if source in _NARROW:
        return _from_narrow(sources[0], source, target)
    if target in _NARROW or target in _PAIRS:
        return _to_pair(sources, source, target, modifiers)
    values = read_as(sources[0], source)
    if is_float(source) and not is_float(target):
        return bits_of(_to_integer(values, TYPES[target], modifiers), target)
    if is_float(source) and is_float(target):
        return bits_of(_to_float(values, target, modifiers), target)
    if "sat" in modifiers:
        info = np.iinfo(TYPES[target])
        low = max(int(info.min), int(np.iinfo(values.dtype).min))
        values = np.clip(values, low, min(int(info.max), int(np.iinfo(values.dtype).max)))
    return bits_of(to_float32(values) if target in _HALVES else values, target)


def _to_float(values: Array, target: str, modifiers: Sequence[str]) -> Array:
    rounding = next((_ROUNDINGS[m] for m in modifiers if m in _ROUNDINGS), None)
    wide = values.astype(np.float32) if values.dtype.itemsize < 4 else values
    if rounding is not None:
        wide = rounding(wide)
    if "sat" in modifiers:
        wide = np.clip(wide, 0, 1)
    if "relu" in modifiers:
        wide = np.maximum(wide, 0)
    if target == "tf32":
        rounded: Array = to_tf32(wide)
        return rounded
    if target in _HALVES:
        wide = to_float32(wide)
    if "rz" in modifiers and target in _HALVES:
        return _toward_zero(wide, TYPES[target])
    return wide.astype(TYPES[target])


def _toward_zero(values: Array, dtype: np.dtype[Any]) -> Array:
    near = values.astype(dtype)
    too_large = np.abs(near.astype(np.float32)) > np.abs(values)
    smaller: Array = np.where(too_large, np.nextafter(near, dtype.type(0)), near)
    return smaller


def _to_integer(values: Array, dtype: np.dtype[Any], modifiers: Sequence[str]) -> Value:
    """Round, and saturate as hardware does.

    NaN gives zero, but 2**(bits - 1) from fp64 and to 64 bits.
    """
    rounding = next((_ROUNDINGS[m] for m in modifiers if m in _ROUNDINGS), np.trunc)
    wide = np.nan_to_num(rounding(values.astype(np.float64)), nan=0.0)
    info = np.iinfo(dtype)
    inside = np.clip(wide, float(info.min), float(info.max))
    result = inside.astype(dtype)
    if dtype.itemsize == 8 or values.dtype == np.float64:
        nothing = np.array(1 << info.bits - 1, f"u{dtype.itemsize}").view(dtype)
        result = np.where(np.isnan(values), nothing, result)
    value_of_all: Value = np.where(wide >= float(info.max), dtype.type(info.max), result)
    return value_of_all


def _to_pair(sources: Sequence[Array], source: str, target: str, modifiers: Sequence[str]) -> Array:
    """Put two values side by side, the first above the second."""
    if source in _PAIRS:
        both = read_as(sources[0], source).astype(np.float32)
    else:
        upper, lower = (read_as(bits, source) for bits in sources)
        both = np.stack([lower, upper], axis=-1)
    if "relu" in modifiers:
        both = np.maximum(both, 0)
    if target in _PAIRS:
        return bits_of(both, target)
    if target == _FP4:
        # NaN gives the largest value (PTX ISA 8.8, cvt).
        narrow = np.clip(np.nan_to_num(both, nan=6.0), -6.0, 6.0).astype(ml_dtypes.float4_e2m1fn)
        codes = narrow.view(np.uint8) & 0xF
        packed: Array = codes[:, 0] | codes[:, 1] << 4
        return packed.astype(np.uint64)
    if target == _POWERS:
        codes = _power_codes(both, rounds_up="rp" in modifiers)
    else:
        dtype = np.dtype(_FP8[target])
        largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        codes = np.clip(both, -largest, largest).astype(dtype)  # These conversions saturate.
    return np.ascontiguousarray(codes).view(np.uint16).reshape(-1).astype(np.uint64)


def _power_codes(values: Array, *, rounds_up: bool) -> Array:
    """Return the biased exponents of powers of two, up or toward zero; signs are dropped."""
    wide = np.abs(values.astype(np.float64))
    fraction, exponent = np.frexp(wide)  # Of 0.5 to 1: an exact power of two has 0.5.
    exponent = exponent - 1 + ((fraction > 0.5) & rounds_up)
    inside = np.clip(exponent, -_POWER_BIAS, _POWER_BIAS)
    inside = np.where(wide == 0, -_POWER_BIAS, np.where(np.isinf(wide), _POWER_BIAS, inside))
    return np.where(np.isnan(wide), _POWER_NAN, inside + _POWER_BIAS).astype(np.uint8)


def _from_narrow(bits: Array, source: str, target: str) -> Array:
    if target not in _PAIRS:
        raise UnsupportedError(f"inline assembly with a conversion of {source} to {target}")
    if source == _FP4:
        codes = np.stack([bits & 0xF, (bits >> 4) & 0xF], axis=-1).astype(np.uint8)
        pair = codes.view(ml_dtypes.float4_e2m1fn)
    else:
        dtype = ml_dtypes.float8_e8m0fnu if source == _POWERS else _FP8[source]
        pair = bits.astype(np.uint16).view(np.dtype(dtype)).reshape(-1, 2)
    return bits_of(pair.astype(np.float32), target)
