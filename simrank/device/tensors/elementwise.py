"""Functions of every element, as data: what numpy computes, and what type comes out.

`arithmetic` runs them in stream order; `methods` gives them torch's names on tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from simrank.device.dtypes import WIDE_UNSIGNED, DType

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

_ERF_IS_ONE = 6.0  # 1 - erf(6) is 2e-17, below what float64 resolves.
_ERF_DEGREE = 40  # Chosen so that the interpolation below agrees with math.erf to 1e-15.


@cache
def _erf_coefficients() -> Array:
    """Return the Chebyshev coefficients of log(erfc(z) / t) + z^2 in t = 2 / (2 + z)."""

    def smooth(points: Array) -> Array:
        low = 2 / (2 + _ERF_IS_ONE)
        ts = low + (points + 1) / 2 * (1 - low)
        return np.array([math.log(math.erfc(2 / t - 2) / t) + (2 / t - 2) ** 2 for t in ts])

    return np.polynomial.chebyshev.chebinterpolate(smooth, _ERF_DEGREE)


def erf(values: Array) -> Array:
    """Return the error function of every element, to about 1e-15.

    Source: the substitution t = 2 / (2 + z) of Press et al., "Numerical Recipes", section 6.2.2;
    the coefficients are interpolated from `math.erfc` at first use.
    """
    z = np.minimum(np.abs(values.astype(np.float64)), _ERF_IS_ONE)
    t, low = 2 / (2 + z), 2 / (2 + _ERF_IS_ONE)
    point = (t - low) / (1 - low) * 2 - 1
    exponent = np.polynomial.chebyshev.chebval(point, _erf_coefficients()) - z * z
    result: Array = np.sign(values) * (1 - t * np.exp(exponent))
    return result.astype(values.dtype)


def gelu(values: Array) -> Any:  # noqa: ANN401 - numpy\'s
    """Return x * Phi(x), with Phi of the normal distribution."""
    half = values.dtype.type(0.5)
    return values * half * (1 + erf(values * values.dtype.type(math.sqrt(0.5))))


def gelu_tanh(values: Array) -> Any:  # noqa: ANN401 - numpy\'s
    """Return gelu in its tanh approximation."""
    kind = values.dtype.type
    inner = kind(math.sqrt(2 / math.pi)) * (values + kind(0.044715) * values**3)
    return values * kind(0.5) * (1 + np.tanh(inner))


def sigmoid(values: Array) -> Any:  # noqa: ANN401 - numpy\'s
    """Return 1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1, small) / (1 + small)


def silu(values: Array) -> Any:  # noqa: ANN401 - numpy\'s
    """Return x * sigmoid(x)."""
    return values * sigmoid(values)


def relu(values: Array) -> Array:
    """Return max(x, 0)."""
    return np.maximum(values, np.zeros((), values.dtype))


class Unary(NamedTuple):
    """A function of one number.

    Attributes:
        function: Of an array; narrow floating types come in as float32.
        result: "same" type, "number" (bools become int64), "float" (integers become float32) or
            "bool".
        kinds: Kinds of types it is defined for.
    """

    function: Function
    result: str = "float"
    kinds: tuple[str, ...] = ("bool", "int", "float")


_NUMBERS, _FLOATS = ("int", "float"), ("float",)

UNARY: dict[str, Unary] = {
    "neg": Unary(np.negative, "same", _NUMBERS),
    "abs": Unary(np.abs, "same", _NUMBERS),
    "sign": Unary(lambda x: x if x.dtype == np.bool_ else np.sign(x), "same"),
    "square": Unary(lambda x: x * x, "number"),
    "relu": Unary(relu, "same", _NUMBERS),
    "ceil": Unary(np.ceil, "same", _NUMBERS),
    "floor": Unary(np.floor, "same", _NUMBERS),
    "round": Unary(np.round, "same", _NUMBERS),
    "trunc": Unary(np.trunc, "same", _NUMBERS),
    "exp": Unary(np.exp),
    "exp2": Unary(np.exp2),
    "expm1": Unary(np.expm1),
    "log": Unary(np.log),
    "log2": Unary(np.log2),
    "log10": Unary(np.log10),
    "log1p": Unary(np.log1p),
    "sqrt": Unary(np.sqrt),
    "rsqrt": Unary(lambda x: 1 / np.sqrt(x)),
    "reciprocal": Unary(lambda x: 1 / x),
    "sin": Unary(np.sin),
    "cos": Unary(np.cos),
    "tanh": Unary(np.tanh),
    "sigmoid": Unary(sigmoid),
    "erf": Unary(erf),
    "gelu": Unary(gelu, "same", _FLOATS),
    "gelu_tanh": Unary(gelu_tanh, "same", _FLOATS),
    "silu": Unary(silu, "same", _FLOATS),
    "isnan": Unary(np.isnan, "bool"),
    "isinf": Unary(np.isinf, "bool"),
    "isfinite": Unary(np.isfinite, "bool"),
    "logical_not": Unary(np.logical_not, "bool"),
    "bitwise_not": Unary(np.invert, "same", ("bool", "int")),
}

ARITHMETIC: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
    "pow": np.power, "maximum": np.maximum, "minimum": np.minimum,
    "floor_divide": np.floor_divide, "remainder": np.remainder,
}  # fmt: skip
BITWISE: dict[str, Function] = {
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
}  # fmt: skip
COMPARE: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}  # fmt: skip
_NOT_OF_BOOLS = ("pow", "floor_divide", "remainder")
TENSORS_ONLY = ("maximum", "minimum", "logical_and", "logical_or", "logical_xor")
BINARY: dict[str, Function] = ARITHMETIC | BITWISE | COMPARE
# What torch has not for uint16, uint32 and uint64. Source: torch 2.13, each called on the CPU.
_NOT_OF_WIDE_UNSIGNED = {
    "neg", "abs", "sign", "square", "relu", "logical_not", "bitwise_not", "add", "sub", "pow",
    "maximum", "minimum", "floor_divide", "remainder", "lt", "le", "gt", "ge", "logical_and",
    "logical_or", "logical_xor", "max", "min", "argmax", "argmin", "topk",
}  # fmt: skip


def not_of_unsigned(name: str, dtype: DType) -> Exception | None:
    """Return torch's error for functions without wide unsigned integers, else None.

    Kernels compute with them; torch stores, copies, compares for equality and multiplies them.
    """
    if dtype not in WIDE_UNSIGNED or name not in _NOT_OF_WIDE_UNSIGNED:
        return None
    return NotImplementedError(
        f"\"{name}_cpu\" not implemented for '{dtype.name}'\n"
        "  to fix: view it as, or convert it to, a signed type"
    )


def wrong_kind(name: str, result: str, kinds: tuple[str, str]) -> Exception | None:
    """Return torch's error where a function of two is not defined for types, else None.

    Args:
        name: Of the function.
        result: Name of the type that both are promoted to.
        kinds: Kinds of both types: "bool", "int" or "float".
    """
    if name == "sub" and "bool" in kinds:
        both = "two bool tensors" if kinds == ("bool", "bool") else "a bool tensor"
        way = (
            "Use the `^` or `logical_xor()` operator instead."
            if kinds == ("bool", "bool")
            else "If you are trying to invert a mask, use the `~` or `logical_not()` operator "
            "instead."
        )
        return RuntimeError(f"Subtraction, the `-` operator, with {both} is not supported. {way}")
    if (name in BITWISE and "float" in kinds) or (name in _NOT_OF_BOOLS and result == "bool"):
        return NotImplementedError(f"\"{name}_cpu\" not implemented for '{result}'")
    return None
