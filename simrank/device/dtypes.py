"""Element types, with torch's names, on numpy and ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from simrank.errors import UnsupportedError


class DType:
    """An element type.

    Attributes:
        name: torch's name, for example `bfloat16`.
        numpy: The numpy dtype that stores it.
        itemsize: Bytes per element.
        kind: "bool", "int" or "float"; promotion goes in this order.
    """

    __slots__ = ("is_floating_point", "itemsize", "kind", "name", "numpy")

    def __init__(self, name: str, numpy: Any, kind: str) -> None:  # noqa: ANN401 - numpy's own
        self.name = name
        self.numpy: np.dtype[Any] = np.dtype(numpy)
        self.itemsize = int(self.numpy.itemsize)
        self.kind = kind
        self.is_floating_point = kind == "float"

    def __repr__(self) -> str:
        """Return `simrank.float32`."""
        return f"simrank.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: there is one object per type."""
        return (as_dtype, (self.name,))


float64 = DType("float64", np.float64, "float")
float32 = DType("float32", np.float32, "float")
float16 = DType("float16", np.float16, "float")
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16, "float")
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "float")
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2, "float")
int8 = DType("int8", np.int8, "int")
int16 = DType("int16", np.int16, "int")
int32 = DType("int32", np.int32, "int")
int64 = DType("int64", np.int64, "int")
uint8 = DType("uint8", np.uint8, "int")
uint16 = DType("uint16", np.uint16, "int")
uint32 = DType("uint32", np.uint32, "int")
uint64 = DType("uint64", np.uint64, "int")
bool_ = DType("bool", np.bool_, "bool")

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2,
        int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool_,
    )
}  # fmt: skip
# What torch has for kernels and for bytes, with little arithmetic and no promotion.
WIDE_UNSIGNED = (uint16, uint32, uint64)
ALIASES = {
    "float": float32, "double": float64, "half": float16, "int": int32, "long": int64,
    "short": int16,
}  # fmt: skip
_BY_NUMPY = {d.numpy: d for d in DTYPES.values()}
_PYTHON: dict[type, DType] = {float: float32, int: int64, bool: bool_}
_KINDS = ("bool", "int", "float")


def as_dtype(dtype: Any) -> DType:  # noqa: ANN401 - any value
    """Return the element type named by a DType, a name (torch's, or numpy's) or a numpy dtype.

    Raises:
        UnsupportedError: simrank has no such type.
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    if isinstance(dtype, str) and dtype in ALIASES:
        return ALIASES[dtype]
    if isinstance(dtype, type):
        known = next((_PYTHON[kind] for kind in dtype.__mro__ if kind in _PYTHON), None)
        if known is not None:
            return known
    try:
        return _BY_NUMPY[np.dtype(dtype)]
    except (KeyError, TypeError):
        text = f"dtype {dtype!r} is not supported; simrank has {', '.join(DTYPES)}"
        raise UnsupportedError(text) from None


def promote(first: DType, second: DType) -> DType:
    """Return the type of a result of two tensors, as torch promotes.

    Raises:
        RuntimeError: Two integers of which one is unsigned and wide; torch's words.
    """
    if first is second:
        return first
    rank_first, rank_second = _KINDS.index(first.kind), _KINDS.index(second.kind)
    is_wide = first in WIDE_UNSIGNED or second in WIDE_UNSIGNED
    if is_wide and "float" not in (first.kind, second.kind):
        raise RuntimeError(
            "Promotion for uint16, uint32, uint64 types is not supported, attempted to promote "
            f"{first.name} and {second.name}"
        )
    if rank_first != rank_second:
        return first if rank_first > rank_second else second
    if first.kind == "int":
        return as_dtype(np.promote_types(first.numpy, second.numpy))
    if first.itemsize == second.itemsize:  # float16 with bfloat16, or two kinds of fp8.
        return float32
    return first if first.itemsize > second.itemsize else second


def promote_scalar(dtype: DType, value: object) -> DType:
    """Return the type of a result of a tensor and a Python number, as torch promotes."""
    if isinstance(value, complex):
        raise UnsupportedError("complex numbers are not supported")
    if isinstance(value, bool | np.bool_):
        return dtype
    if isinstance(value, int | np.integer):
        return int64 if dtype.kind == "bool" else dtype
    return dtype if dtype.kind == "float" else float32


def as_values(data: object, dtype: object = None) -> np.ndarray[Any, Any]:
    """Return numbers, nested lists or an array as an array of a type; floats become float32."""
    # numpy makes float64 of lists with numbers on both sides of 2**63.
    is_uint64 = dtype is not None and as_dtype(dtype) is uint64 and not _is_array(data)
    values = np.asarray(data, np.uint64 if is_uint64 else None)
    if dtype is None:
        is_python = values.dtype == np.float64 and not _is_array(data)
        dtype = float32 if is_python else values.dtype
    return values.astype(as_dtype(dtype).numpy)


def _is_array(data: object) -> bool:
    return hasattr(data, "dtype") or hasattr(data, "__array_interface__")
