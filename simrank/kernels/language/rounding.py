"""Directed rounding: down, up or toward zero, by the side of the exact value.

Exact values are Python fractions, one by one; speed does not matter for these functions.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.arrays import Value

    Gap = Callable[..., Fraction]

MODES = ("rd", "ru", "rz")


def _is_finite(number: float) -> bool:
    return isinstance(number, int) or math.isfinite(number)


def _side(gap: Gap) -> Callable[..., int]:
    """Return a function that compares the exact value with a result: -1, 0 or 1."""

    def side(near: float, *operands: float) -> int:
        if math.isnan(near) or not all(map(_is_finite, operands)):
            return 0
        start = Fraction(0) if math.isinf(near) else Fraction(near)
        try:
            off = gap(start, *map(Fraction, operands))
        except ZeroDivisionError:
            return 0
        if math.isinf(near):  # The exact value of an overflow is finite.
            return -1 if near > 0 else 1
        return (off > 0) - (off < 0)

    return side


def directed(
    mode: str, nearest: Callable[..., Any], gap: Gap, name: str = ""
) -> Callable[..., Any]:
    """Return a function with directed rounding.

    Args:
        mode: "rd" down, "ru" up, "rz" toward zero.
        nearest: Computes one of the two neighbors of the exact result.
        gap: Returns the exact value minus a result, or any number of that sign, as a fraction.
        name: "add", "sub" or "fma": sums of zero are negative when rounded down.
    """
    side_of = np.frompyfunc(_side(gap), gap.__code__.co_argcount, 1)

    def call(*values: Value) -> Value:
        operands = [np.asarray(value) for value in values]
        near = np.asarray(nearest(*operands))
        plain = [operand.astype(object) for operand in operands]
        side = np.asarray(side_of(near.astype(np.float64).astype(object), *plain), np.int8)
        below, above = (near.dtype.type(end) for end in (-np.inf, np.inf))
        if mode == "rz":
            moves, towards = side * np.sign(near) < 0, near.dtype.type(0)
        else:
            moves, towards = (side < 0, below) if mode == "rd" else (side > 0, above)
        result = np.where(moves, np.nextafter(near, towards), near)
        if mode == "rd" and name:
            result = np.where((near == 0) & (side == 0), _zero_sum(name, operands), result)
        return result[()]

    return call


def _zero_sum(name: str, operands: list[Any]) -> Any:
    """Return a zero sum rounded down: positive only if both addends are positive zeros."""
    first, last = operands[0], operands[-1]
    if name == "sub":
        last = -last
    if name == "fma":
        first = np.copysign(first, 1) * np.sign(operands[1]) * np.copysign(1, operands[0])
        first = np.where(operands[0] * operands[1] == 0, _signed_zero(*operands[:2]), first)
    is_positive = (first == 0) & (last == 0) & ~np.signbit(first) & ~np.signbit(last)
    return np.where(is_positive, 0.0, -0.0)


def _signed_zero(first: Any, second: Any) -> Any:
    return np.where(np.signbit(first) != np.signbit(second), -0.0, 0.0)


def fused_nearest(first: Value, second: Value, third: Value) -> Value:
    """Compute first * second + third, rounded once to the nearest or its neighbor."""

    def one(a: float, b: float, c: float) -> float:
        if not all(map(math.isfinite, (a, b, c))):
            return a * b + c
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if exact == 0:
            return a * b + c if a * b == 0 else 0.0
        sign = 1.0 if exact > 0 else -1.0
        try:
            return math.copysign(float(exact), sign)
        except OverflowError:
            return sign * math.inf

    with np.errstate(all="ignore"):
        wide = np.frompyfunc(one, 3, 1)(*(value.astype(object) for value in (first, second, third)))
        result: Value = np.asarray(wide, np.float64).astype(first.dtype)
    return result


GAPS: dict[str, Gap] = {
    "add": lambda r, a, b: a + b - r,
    "sub": lambda r, a, b: a - b - r,
    "mul": lambda r, a, b: a * b - r,
    "div": lambda r, a, b: a / b - r,
    "fma": lambda r, a, b, c: a * b + c - r,
    "rcp": lambda r, a: 1 / a - r,
    "sqrt": lambda r, a: a - r * r,
    "convert": lambda r, a: a - r,
}
NEAREST: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "fma": fused_nearest, "rcp": lambda x: 1 / x, "sqrt": np.sqrt,
}  # fmt: skip
_SUMS = ("add", "sub", "fma")


def arithmetic() -> dict[str, Callable[..., Any]]:
    """Return libdevice's arithmetic functions with directed rounding, by name."""
    return {
        f"{name}_{mode}": directed(mode, nearest, GAPS[name], name if name in _SUMS else "")
        for name, nearest in NEAREST.items()
        for mode in MODES
    }


def conversion(mode: str, target: Any) -> Callable[..., Any]:
    """Return a conversion to a floating type with directed rounding."""
    return directed(mode, lambda values: values.astype(target), GAPS["convert"])
