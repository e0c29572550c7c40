"""Instructions without memory access: integers, floats, comparisons, bits.

Registers hold bits; the type of an instruction determines how they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels.language.special import bytes_of_both

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.protocols import Array, Value


# Dtypes by PTX type; packed types have two elements.
TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "b8": np.uint8, "u8": np.uint8, "s8": np.int8, "b16": np.uint16, "u16": np.uint16,
        "s16": np.int16, "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "b64": np.uint64,
        "u64": np.uint64, "s64": np.int64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
        "f32": np.float32, "f64": np.float64, "pred": np.bool_, "f16x2": np.float16,
        "bf16x2": ml_dtypes.bfloat16, "tf32": np.float32,
    }.items()
}  # fmt: skip
PACKED = {"f16x2", "bf16x2"}


def read_as(bits: Array, kind: str) -> Value:
    """Return bits as values of a PTX type; a packed type gives two columns."""
    if kind == "pred":
        result: Value = bits != 0
        return result
    dtype = TYPES[kind]
    if kind in PACKED:
        return bits.astype(np.uint32).view(dtype).reshape(-1, 2)
    return bits.astype(f"u{dtype.itemsize}").view(dtype)


def bits_of(values: Value | np.generic, kind: str) -> Array:
    """Return values of a PTX type as bits."""
    dtype = TYPES[kind]
    if kind == "pred":
        return np.asarray(values, np.uint64)
    typed = np.ascontiguousarray(values).astype(dtype)
    if kind in PACKED:
        return typed.view(np.uint32).reshape(-1).astype(np.uint64)
    return typed.view(f"u{dtype.itemsize}").astype(np.uint64)


def is_float(kind: str) -> bool:
    """Return whether a PTX type is a floating-point type."""
    return "f" in kind


def compute(opcode: tuple[str, ...], kind: str, values: list[Array]) -> Value:
    """Compute the result of an instruction.

    Args:
        opcode: Parts of the opcode.
        kind: PTX type of the instruction.
        values: Operands as values of that type.

    Raises:
        UnsupportedError: The instruction is not emulated.
    """
    floating = _FLOAT.get(opcode[0]) if is_float(kind) else None
    if floating is not None:
        # Narrow floats are computed in float32 and rounded once, as on hardware.
        wide = [v.astype(np.float32) if v.dtype.itemsize < 4 else v for v in values]
        result: Any = floating(*wide)
        if "relu" in opcode:
            result = np.maximum(result, 0)
        value_of_all: Value = np.clip(result, 0, 1) if "sat" in opcode else result
        return value_of_all
    if opcode[0] in ("mul", "mad"):
        return _multiplied(opcode, kind, values)
    if opcode[0] == "shf":
        return _funnel_shifted(opcode, *values)
    integer = _INTEGER.get(opcode[0])
    if integer is None or is_float(kind):
        raise UnsupportedError(
            f"inline assembly with {'.'.join(opcode)} is not supported: no such instruction"
        )
    return integer(*values)


def _multiplied(opcode: tuple[str, ...], kind: str, values: list[Array]) -> Value:
    """Multiply integers, keep the low half, high half or whole, and add the third operand."""
    first, second, *added = values
    if "wide" in opcode:
        wide = kind[0] + str(2 * int(kind[1:]))
        product: Any = first.astype(TYPES[wide]) * second.astype(TYPES[wide])
    elif "hi" in opcode:
        bits = 8 * first.dtype.itemsize
        exact = first.astype(object) * second.astype(object)
        product = np.array([int(value) >> bits for value in exact], object).astype(first.dtype)
    else:
        product = first * second
    result: Value = product + added[0] if added else product
    return result


def _funnel_shifted(opcode: tuple[str, ...], low: Array, high: Array, by: Array) -> Array:
    """Shift the 64 bits of two registers: left to the high half, or right to the low half."""
    amount = by & 31 if "wrap" in opcode else np.minimum(by, 32)
    whole = high.astype(np.uint64) << np.uint64(32) | low
    if "l" in opcode:
        return (whole << amount.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)
    return (whole >> amount.astype(np.uint64)).astype(np.uint32)


def result_kind(opcode: tuple[str, ...], kind: str) -> str:
    """Return the PTX type of an instruction's result."""
    if "wide" in opcode and opcode[0] in ("mul", "mad"):
        return kind[0] + str(2 * int(kind[1:]))
    return "u32" if opcode[0] in ("popc", "clz", "bfind") else kind


def _shift_left(value: Array, by: Array) -> Value:
    by = by.astype(np.uint32)
    bits = 8 * value.dtype.itemsize
    kept = np.minimum(by, bits - 1).astype(value.dtype)
    result: Value = np.where(by >= bits, value.dtype.type(0), value << kept)
    return result


def _shift_right(value: Array, by: Array) -> Value:
    by = by.astype(np.uint32)
    bits = 8 * value.dtype.itemsize
    kept = np.minimum(by, bits - 1).astype(value.dtype)
    filled: Value = value >> kept
    if value.dtype.kind == "i":
        return filled
    result: Value = np.where(by >= bits, value.dtype.type(0), filled)
    return result


def _divided(first: Array, second: Array) -> Value:
    """Divide toward zero; division by zero gives all bits set, as on hardware."""
    safe = np.where(second == 0, second.dtype.type(1), second)
    result = np.trunc(first.astype(np.longdouble) / safe).astype(first.dtype)
    value_of_all: Value = np.where(second == 0, ~first.dtype.type(0), result)
    return value_of_all


def _popc(value: Array) -> Value:
    result: Value = np.bitwise_count(value.view(f"u{value.dtype.itemsize}")).astype(np.uint32)
    return result


def _clz(value: Array) -> Array:
    bits = 8 * value.dtype.itemsize
    return np.array([bits - int(v).bit_length() for v in value.tolist()], np.uint32)


def _reversed(value: Array) -> Array:
    bits = 8 * value.dtype.itemsize
    return np.array([int(f"{int(v):0{bits}b}"[::-1], 2) for v in value.tolist()], value.dtype)


def _extract(value: Array, start: Array, length: Array) -> Array:
    """Extract a bit field, sign-extended if the type is signed."""
    result = []
    for v, first, count in zip(value.tolist(), start.tolist(), length.tolist(), strict=True):
        width = count & 0xFF
        field = (v >> (first & 0xFF)) & ((1 << width) - 1)
        is_negative = value.dtype.kind == "i" and width and field >> (width - 1)
        result.append(field - (1 << width) if is_negative else field)
    return np.array(result, value.dtype)


def _inserted(field: Array, into: Array, start: Array, length: Array) -> Array:
    """Insert the low bits of a value into another."""
    bits = 8 * into.dtype.itemsize
    result = []
    lanes = (field.tolist(), into.tolist(), start.tolist(), length.tolist())
    for own, kept, first, count in zip(*lanes, strict=True):
        mask = (((1 << (count & 0xFF)) - 1) << (first & 0xFF)) & ((1 << bits) - 1)
        result.append(kept & ~mask | (own << (first & 0xFF)) & mask)
    return np.array(result, into.dtype)


def _logic(first: Array, second: Array, third: Array, table: Array) -> Array:
    """Apply a boolean function of three operands, given by its table of eight bits."""
    result = np.zeros_like(first)
    ones = ~first.dtype.type(0)
    lut = int(table[0]) & 0xFF
    for index in range(8):
        if lut >> index & 1:
            part = (first if index & 4 else first ^ ones) & (second if index & 2 else second ^ ones)
            result |= part & (third if index & 1 else third ^ ones)
    return result


def _copy_sign(sign: Array, magnitude: Array) -> Array:
    return np.copysign(magnitude, sign)


def _fused(first: Array, second: Array, third: Array) -> Array:
    """Compute a * b + c, rounded once where the product of two float32 is exact in float64."""
    wide = first.astype(np.float64) * second.astype(np.float64) + third.astype(np.float64)
    return wide.astype(first.dtype)


def _unordered(first: Array, second: Array) -> Array:
    return np.isnan(first) | np.isnan(second)


_INTEGER: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "div": _divided, "min": np.minimum, "max": np.maximum,
    "rem": lambda a, b: (a - _divided(a, b) * b).astype(a.dtype),
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.invert, "neg": np.negative, "abs": np.abs, "shl": _shift_left, "shr": _shift_right,
    "popc": _popc, "clz": _clz, "brev": _reversed, "bfe": _extract, "bfi": _inserted,
    "lop3": _logic, "prmt": bytes_of_both,
    "sad": lambda a, b, c: c + np.where(a < b, b - a, a - b),
}  # fmt: skip
_FLOAT: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "fma": _fused, "mad": _fused,
    "min": np.fmin, "max": np.fmax, "neg": np.negative, "abs": np.abs,
    "rcp": lambda a: a.dtype.type(1) / a, "sqrt": np.sqrt,
    "rsqrt": lambda a: a.dtype.type(1) / np.sqrt(a),
    "ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "copysign": _copy_sign,
}  # fmt: skip
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
    "equ": lambda a, b: (a == b) | _unordered(a, b),
    "neu": lambda a, b: (a != b) | _unordered(a, b),
    "ltu": lambda a, b: (a < b) | _unordered(a, b),
    "leu": lambda a, b: (a <= b) | _unordered(a, b),
    "gtu": lambda a, b: (a > b) | _unordered(a, b),
    "geu": lambda a, b: (a >= b) | _unordered(a, b),
    "nan": _unordered, "num": lambda a, b: ~_unordered(a, b),
}  # fmt: skip
COMBINED: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
