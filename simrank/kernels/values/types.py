"""Element types of kernels: Triton's types, with their storage and computation (rule K3).

Floating types below 32 bits are computed in float32 and rounded after every operation, which
equals the hardware's result for + - * / and sqrt. In memory they have their own format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic

from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from simrank.kernels.machine.protocols import Value

_INT64 = np.dtype(np.int64)


class ElementType:
    """Type of a value's elements.

    Attributes:
        name: Triton's short name, for example `bf16`, `i32` or `*f32`.
        triton: Triton's type, which kernels see as `x.dtype`.
        compute: numpy dtype of values in registers.
        memory: numpy dtype in memory.
        carrier: Unsigned or plain dtype of the same size, which numpy copies fast.
        is_plain: Whether numpy's arithmetic on `compute` gives this type's results.
        itemsize: Size in memory in bytes.
        kind: "b" int1, "i" signed, "u" unsigned, "f" floating, "p" pointer.
        bits: Width in bits.
        round: Rounds float32 values to this type; None if no rounding is needed.
        pointee: Element type of a pointer; None for other types.
        is_constant: Whether a pointer is read-only: `tl.const`.
    """

    __slots__ = (
        "bits", "carrier", "compute", "is_constant", "is_plain", "itemsize", "kind", "memory",
        "name", "pointee", "round", "triton",
    )  # fmt: skip

    def __init__(self, triton: tl.dtype, kind: str, compute: DTypeLike, memory: DTypeLike) -> None:
        self.triton = triton
        self.name: str = str(triton) if kind == "p" else triton.name
        self.kind = kind
        self.compute = np.dtype(compute)
        self.memory = np.dtype(memory)
        self.itemsize = int(self.memory.itemsize)
        self.bits = 1 if kind == "b" else 8 * self.itemsize
        is_narrow = kind == "f" and self.bits < 32
        self.carrier = np.dtype(f"u{self.itemsize}") if is_narrow else self.memory
        self.round: Callable[[Any], Any] | None = _rounder(self.memory) if is_narrow else None
        self.is_plain = kind in "iuf" and not is_narrow
        self.pointee: ElementType | None = None
        self.is_constant = False

    def scalar(self, number: object) -> Value:
        """Return a number as a numpy scalar of `compute`."""
        make: Any = self.compute.type
        made: Value = make(number)
        return made

    def rounded(self, values: Value) -> Value:
        """Round values of `compute` to this type."""
        return values if self.round is None else self.round(values)

    def __repr__(self) -> str:
        """Return Triton's name."""
        return self.name


def _rounder(memory: np.dtype[Any]) -> Callable[[Any], Any]:
    """Return a function that rounds float32 to a narrower type, to nearest, ties to even."""
    largest = _LARGEST.get(memory.name)

    def round_to(values: Value) -> Value:
        if largest is not None:  # NVIDIA's fp8 conversions saturate; ml_dtypes gives NaN.
            values = np.clip(values, -largest, largest)
        return values.astype(memory).astype(np.float32)

    return round_to


_LARGEST = {
    name: np.float32(ml_dtypes.finfo(name).max)  # type: ignore[no-untyped-call]
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
}

int1 = ElementType(tl.int1, "b", np.bool_, np.bool_)
int8 = ElementType(tl.int8, "i", np.int8, np.int8)
int16 = ElementType(tl.int16, "i", np.int16, np.int16)
int32 = ElementType(tl.int32, "i", np.int32, np.int32)
int64 = ElementType(tl.int64, "i", np.int64, np.int64)
uint8 = ElementType(tl.uint8, "u", np.uint8, np.uint8)
uint16 = ElementType(tl.uint16, "u", np.uint16, np.uint16)
uint32 = ElementType(tl.uint32, "u", np.uint32, np.uint32)
uint64 = ElementType(tl.uint64, "u", np.uint64, np.uint64)
float16 = ElementType(tl.float16, "f", np.float32, np.float16)
bfloat16 = ElementType(tl.bfloat16, "f", np.float32, ml_dtypes.bfloat16)
float32 = ElementType(tl.float32, "f", np.float32, np.float32)
float64 = ElementType(tl.float64, "f", np.float64, np.float64)
float8e4nv = ElementType(tl.float8e4nv, "f", np.float32, ml_dtypes.float8_e4m3fn)
float8e5 = ElementType(tl.float8e5, "f", np.float32, ml_dtypes.float8_e5m2)
float8e4b8 = ElementType(tl.float8e4b8, "f", np.float32, ml_dtypes.float8_e4m3fnuz)
float8e5b16 = ElementType(tl.float8e5b16, "f", np.float32, ml_dtypes.float8_e5m2fnuz)

_ALL = (
    int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32,
    float64, float8e4nv, float8e5, float8e4b8, float8e5b16,
)  # fmt: skip
_BY_TRITON = {t.triton.name: t for t in _ALL}
_BY_MEMORY = {t.memory: t for t in _ALL}
_BY_NAME = {f"{t.triton}": t for t in _ALL} | _BY_TRITON
_dtype = tl.dtype
_pointers: dict[tuple[ElementType, bool], ElementType] = {}


def element_type(given: object) -> ElementType:
    """Return the element type of a Triton type: scalar, pointer or block.

    Raises:
        TypeError: The value is not a type.
        UnsupportedError: The type is not supported.
    """
    kind = type(given)
    if kind is ElementType:
        return given  # type: ignore[return-value] # It is an ElementType.
    if kind is _dtype and given.name in _BY_TRITON:  # type: ignore[attr-defined] # A tl.dtype.
        return _BY_TRITON[given.name]  # type: ignore[attr-defined]
    if isinstance(given, tl.pointer_type):
        return pointer_to(element_type(given.element_ty), is_constant=bool(given.const))
    if isinstance(given, tl.block_type):
        return element_type(given.scalar)
    if not isinstance(given, tl.dtype):
        raise TypeError(f"expected a type such as tl.float32, got {given!r}")
    result = _BY_TRITON.get(given.name)
    if result is None:
        raise UnsupportedError(f"kernels with elements of type {given} are not supported")
    return result


def of_memory(memory: np.dtype[Any]) -> ElementType:
    """Return the element type with a numpy dtype in memory."""
    return _BY_MEMORY[memory]


def pointer_to(pointee: ElementType, *, is_constant: bool = False) -> ElementType:
    """Return the unique pointer type to a type."""
    result = _pointers.get((pointee, is_constant))
    if result is None:
        triton = tl.pointer_type(pointee.triton, const=is_constant)
        result = ElementType(triton, "p", _INT64, _INT64)
        result.pointee, result.is_constant = pointee, is_constant
        _pointers[pointee, is_constant] = result
    return result


# ---- Promotion, as in Triton's semantic layer ----

_promoted: dict[tuple[ElementType, ElementType, bool], ElementType] = {}


def promote(first: ElementType, second: ElementType, *, divides: bool = False) -> ElementType:
    """Return the common type of two blocks in an operation.

    Args:
        first: Type of the first block.
        second: Type of the second block.
        divides: Whether the operation is a division or modulo, which narrow floats do not support.

    Raises:
        TypeError: The types are incompatible.
    """
    key = (first, second, divides)
    result = _promoted.get(key)
    if result is None:
        result = _promoted[key] = _promote(first, second, divides=divides)
    return result


# Triton 3.9 widens every narrow float to divide it, and releases before it all but those of 8 bits.
_WIDENED = frozenset((float32, float16, bfloat16))
_WIDENS_ALL = (
    TritonSemantic.computation_type_impl(None, tl.float8e5, False, tl.float8e5, False, True)
    == tl.float32
)


def _promote(first: ElementType, second: ElementType, *, divides: bool) -> ElementType:
    both, kinds = (first, second), first.kind + second.kind
    if "p" in kinds:
        if first is second:
            return first
        raise TypeError(f"invalid operands of type {first} and {second}")
    if "f" not in kinds:
        return _promote_integers(first, second, divides=divides)
    if divides and float64 not in both and (_WIDENS_ALL or not _WIDENED.isdisjoint(both)):
        return float32
    for wider in (float64, float32, float16):
        if wider in both:
            return wider
    if bfloat16 in both:
        return bfloat16 if first is second else float32
    if kinds != "ff":
        raise TypeError(f"unexpected type {first} and {second}")
    return _promote_bytes(first, second, divides=divides)


def _promote_bytes(first: ElementType, second: ElementType, *, divides: bool) -> ElementType:
    """Return the common type of two floats of 8 bits.

    Raises:
        TypeError: The operation is a division, which would be one in 8 or 16 bits.
    """
    if divides:
        raise TypeError(
            f"Triton {triton.__version__} divides {first} by {second} without widening them to "
            "float32, and compiles no such division: convert an operand"
        )
    return first if first is second else float16


def _promote_integers(first: ElementType, second: ElementType, *, divides: bool) -> ElementType:
    unsigned = [t for t in (first, second) if t.kind in "ub"]  # int1 counts as unsigned.
    if len(unsigned) != 1:
        return first if first.bits > second.bits else second
    if divides:
        raise TypeError(
            f"Cannot use /, #, or % with {first} and {second} because they have different "
            "signedness;this is unlikely to result in a useful answer. Cast them to the same "
            "signedness."
        )
    one = unsigned[0]
    other = second if one is first else first
    return one if one.bits >= other.bits else other


_KIND_RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "p": 3}


def type_of_number(number: object) -> ElementType:
    """Return the type of a Python number by itself, as in Triton's `to_tensor`.

    Raises:
        TypeError: The value is not a number.
        ValueError: The integer is too large for every type.
    """
    if isinstance(number, bool | np.bool_):
        return int1
    if isinstance(number, int | np.integer):
        for bits, signed, unsigned in ((31, int32, uint32), (63, int64, uint64)):
            if -(1 << bits) <= number < 1 << bits:
                return signed
            if 0 <= number < 1 << (bits + 1):
                return unsigned
        raise ValueError(f"Nonrepresentable integer {number}.")
    if isinstance(number, float | np.floating):
        size: Any = abs(number)
        fits = size in {float("inf"), 0.0} or size != size or 2**-126 <= size <= _MAX_FLOAT32  # noqa: PLR0124
        return float32 if fits else float64
    raise TypeError(f"cannot convert {number!r} of type {type(number)} to tensor")


_MAX_FLOAT32 = (2 - 2**-23) * 2**127


def promote_number(block: ElementType, number: Any, *, divides: bool = False) -> ElementType:
    """Return the common type of a block and a Python number in an operation.

    A number of a lower or equal kind (bool < int < float) adopts the block's type.

    Raises:
        TypeError: The types are incompatible.
        ValueError: The number does not fit the type.
    """
    if block.kind == "f" and not (divides and block.bits < 32):
        return block
    if block.kind in "iu" and type(number) is int:
        if not _RANGES[block][0] <= number <= _RANGES[block][1]:
            raise ValueError(f"Scalar {number} is out of range for type {block}")
        return block
    own = type_of_number(number)
    if _KIND_RANK[own.kind] <= _KIND_RANK[block.kind]:
        own = block
    return promote(block, own, divides=divides)


_RANGES: dict[ElementType, tuple[int, int]] = {
    t: (int(np.iinfo(t.memory).min), int(np.iinfo(t.memory).max)) for t in _ALL if t.kind in "iu"
}


def integer_range(element: ElementType) -> tuple[int, int]:
    """Return the smallest and largest value of an integer type."""
    return _RANGES[element]


# ---- conversions between element types; each rounds once, as a single instruction does ----
# Source: PTX ISA 8.8, `cvt`; the instructions of `tl.cast` in Triton 3.9 for sm_90.

_ndarray = np.ndarray
_EXACT_IN_FLOAT32 = 24  # bits
_EXACT_IN_FLOAT64 = 53


def converted(
    values: Value, own: ElementType, target: ElementType, *, toward_zero: bool = False
) -> Value:
    """Convert values between types that are not pointers."""
    if target.kind == "b":
        truth: Value = values != 0
        return truth
    if own.kind == "f" and target.kind in "iu":
        return to_integer(values, target)
    if target.round is None:
        return values.astype(target.compute)
    if own.kind == "f" and own.bits <= target.bits and not _is_mixed(own, target):
        return values
    single = to_float32(values)
    return _toward_zero(single, target) if toward_zero else target.round(single)


def _is_mixed(own: ElementType, target: ElementType) -> bool:
    """Return whether two floating types have equal width, or the target is fp8."""
    return target.bits in {own.bits, 8}


def to_float32(values: Value) -> Value:
    """Convert values to float32 so that further rounding gives the correctly rounded result.

    Excess bits are truncated, and the last bit is set (rounding to odd). The result stays between
    the same two narrower numbers, and is their midpoint only if the original value was.

    Source: Boldo and Melquiond, "When double rounding is odd", 2005.
    """
    if values.dtype.kind in "iu":
        if values.dtype.itemsize * 8 <= _EXACT_IN_FLOAT32:
            return values.astype(np.float32)
        if values.dtype.itemsize == 8:
            values = _odd_integers(values)
        values = values.astype(np.float64)
    if values.dtype != np.float64:
        return values.astype(np.float32)
    near = np.asarray(values.astype(np.float32))
    inexact = near.astype(np.float64) != values
    inexact = inexact & np.isfinite(values)
    away = np.abs(near) > np.abs(values)
    cut = np.where(away, np.nextafter(near, np.float32(0)), near)
    bits = cut.view(np.uint32) | inexact.astype(np.uint32)
    return np.where(inexact, bits.view(np.float32), near)[()]


def odd_sum(first: Value, second: Value) -> Value:
    """Compute a sum in float64, rounded to odd as in `to_float32`.

    Source: Knuth, "The Art of Computer Programming" 2, 4.2.2, for the rounding error of a sum.
    """
    total = np.asarray(first + second)
    back = total - first
    lost = (first - (total - back)) + (second - back)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & np.isfinite(lost) & (lost != 0) & (bits & 1 == 0)
    towards = np.where(lost > 0, np.inf, -np.inf)
    return np.where(inexact, np.nextafter(total, towards), total)


def _odd_integers(values: Value) -> Value:
    """Round 64-bit integers to odd, to values that float64 represents."""
    drop = 64 - _EXACT_IN_FLOAT64
    low = values.dtype.type((1 << drop) - 1)
    cut = values & ~low  # Negative numbers round toward minus infinity, which is as good.
    odd = cut | values.dtype.type(1 << drop)
    is_large = np.abs(values.astype(np.float64)) >= float(1 << _EXACT_IN_FLOAT64)
    return np.where(is_large & ((values & low) != 0), odd, values)[()]


def to_integer(values: Value, target: ElementType) -> Value:
    """Convert floats toward zero, saturated, as hardware does; to 8 bits by way of 16 bits.

    NaN gives zero; from fp64 and to 64-bit types it gives 2**(bits - 1).
    """
    wide = np.asarray(values, np.float64)
    through = max(target.bits, 16)
    low, high = (-(1 << through - 1), (1 << through - 1) - 1)
    if target.kind == "u":
        low, high = 0, (1 << through) - 1
    inside = np.clip(np.nan_to_num(wide, nan=0.0, posinf=high, neginf=low), low, high)
    register = np.dtype(f"{target.kind}{through // 8}")
    whole = inside.astype(register)
    if through == 64:  # The largest float below 2**63 is far below the largest integer.
        whole = np.where(wide >= float(high), register.type(high), whole)
    if through == 64 or values.dtype == np.float64:
        nothing = np.array(1 << through - 1, f"u{through // 8}").view(register)
        whole = np.where(np.isnan(wide), nothing, whole)
    whole = whole.astype(target.compute)
    return whole if type(values) is _ndarray else whole[()]


def _toward_zero(values: Value, target: ElementType) -> Value:
    """Round to a narrower type toward zero."""
    assert target.round is not None, "only narrow types are rounded"
    nearest = target.round(values)
    too_large = np.abs(nearest) > np.abs(values)
    narrow = np.asarray(nearest).astype(target.memory)
    smaller = np.nextafter(narrow, target.memory.type(0)).astype(np.float32)
    result: Value = np.where(too_large, smaller, nearest)[()]
    return result
