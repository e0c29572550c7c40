"""Element types of kernels: Triton's, with how simrank stores and computes them (rule K3).

Floating types below 32 bits are computed in float32 and rounded after every operation, which for
+ - * / and sqrt is what hardware gives; they are stored in memory in their own format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import triton.language as tl

from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from simrank.kernels.machine.arrays import Value

_INT64 = np.dtype(np.int64)


class ElementType:
    """The type of a value's elements.

    Attributes:
        name: Triton's short name, for example `bf16`, `i32` or `*f32`.
        triton: Triton's own object, which kernels see as `x.dtype`.
        compute: numpy dtype of values in flight.
        memory: numpy dtype in memory; None for what cannot be stored.
        carrier: Unsigned or plain dtype of the same size that numpy moves fast.
        is_plain: Whether numpy's arithmetic of `compute` is the type's own.
        itemsize: Bytes in memory.
        kind: "b" int1, "i" signed, "u" unsigned, "f" floating, "p" pointer.
        bits: Width.
        round: Rounds float32 values to this type; None where they need no rounding.
        pointee: What a pointer points to, or None.
        is_constant: Whether nothing may be stored through a pointer: `tl.const`.
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
        """Return values of `compute` rounded to this type."""
        return values if self.round is None else self.round(values)

    def __repr__(self) -> str:
        """Return Triton's name."""
        return self.name


def _rounder(memory: np.dtype[Any]) -> Callable[[Any], Any]:
    """Return a function that rounds float32 to a narrower type, ties to even."""
    largest = _LARGEST.get(memory.name)

    def round_to(values: Value) -> Value:
        if largest is not None:  # NVIDIA's conversions to fp8 saturate; ml_dtypes gives NaN.
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
    """Return the element type that a kernel's `tl.float32`, pointer type or block type names.

    Raises:
        TypeError: It is no type.
        UnsupportedError: simrank has no such type.
    """
    kind = type(given)
    if kind is ElementType:
        return given  # type: ignore[return-value] # It is one.
    if kind is _dtype and given.name in _BY_TRITON:  # type: ignore[attr-defined] # Likewise.
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
    """Return the element type of a tensor that is stored with a numpy dtype."""
    return _BY_MEMORY[memory]


def pointer_to(pointee: ElementType, *, is_constant: bool = False) -> ElementType:
    """Return the type of pointers to a type; there is one object for each."""
    result = _pointers.get((pointee, is_constant))
    if result is None:
        triton = tl.pointer_type(pointee.triton, const=is_constant)
        result = ElementType(triton, "p", _INT64, _INT64)
        result.pointee, result.is_constant = pointee, is_constant
        _pointers[pointee, is_constant] = result
    return result


# ---- promotion, as Triton's semantic layer has it ----

_promoted: dict[tuple[ElementType, ElementType, bool], ElementType] = {}


def promote(first: ElementType, second: ElementType, *, divides: bool = False) -> ElementType:
    """Return the type in which two blocks are computed.

    Args:
        first: Type of one.
        second: Type of the other.
        divides: Whether it is a division or a modulo, which floats below 32 bits have not.

    Raises:
        TypeError: They do not go together.
    """
    key = (first, second, divides)
    result = _promoted.get(key)
    if result is None:
        result = _promoted[key] = _promote(first, second, divides=divides)
    return result


def _promote(first: ElementType, second: ElementType, *, divides: bool) -> ElementType:
    both, kinds = (first, second), first.kind + second.kind
    if "p" in kinds:
        if first is second:
            return first
        raise TypeError(f"invalid operands of type {first} and {second}")
    if "f" not in kinds:
        return _promote_integers(first, second, divides=divides)
    if divides and float64 not in both:
        return float32
    for wider in (float64, float32, float16):
        if wider in both:
            return wider
    if bfloat16 in both:
        return bfloat16 if first is second else float32
    if kinds != "ff":
        raise TypeError(f"unexpected type {first} and {second}")
    return first if first is second else float16  # Both fp8.


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
    """Return the type that a Python number has by itself, as Triton's `to_tensor`.

    Raises:
        TypeError: It is no number.
        ValueError: It is an integer that no type represents.
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
    """Return the type in which a block and a Python number are computed.

    A number of a lower or equal kind (bool < int < float) takes part with the block's type.

    Raises:
        TypeError: The two do not go together.
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
    """Return the smallest and the largest number of an integer type."""
    return _RANGES[element]
