"""Tolerances of numbers between the two sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simrank.errors import ConfigError, ConfigProblem

Values = np.ndarray[Any, Any]
# Relative and absolute, per type. Source: torch.testing.assert_close of torch 2.13; of fp8, which
# it takes exactly, one step.
_BY_DTYPE = {
    "float64": (1e-7, 1e-7),
    "complex128": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float8_e4m3fn": (0.125, 0.0),
    "float8_e5m2": (0.25, 0.0),
}
_EXACT = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A tolerance.

    Attributes:
        relative: To the real value, instead of each type's own; None: that.
        absolute: Beside it.
        ulp: Steps of the type, instead of both; None: those count.
    """

    relative: float | None = None
    absolute: float = 0.0
    ulp: int | None = None

    @classmethod
    def parse(cls, text: str | None) -> Tolerance:
        """Parse `1e-3`, `1e-3,1e-6`, `4ulp` or `exact`; None: the defaults of each type.

        Raises:
            ConfigError: It is none of them.
        """
        if text is None:
            return cls()
        if text == "exact":
            return cls(0.0, 0.0)
        try:
            if text.endswith("ulp"):
                return cls(ulp=_not_negative(int(text.removesuffix("ulp"))))
            relative, _, absolute = text.partition(",")
            return cls(_not_negative(float(relative)), _not_negative(float(absolute or 0)))
        except ValueError:
            expected = "a relative bound such as 1e-3, two such as 1e-3,1e-6, 4ulp or exact"
            problem = ConfigProblem("command line", None, "--tolerance", expected, text)
            raise ConfigError(problem) from None

    def __str__(self) -> str:
        """Return the text for reports."""
        if self.ulp is not None:
            return f"{self.ulp} ulp"
        if self.relative is None:
            return "the bounds of torch.testing for each type"
        if not (self.relative or self.absolute):
            return "exact"
        return f"{self.relative:g} of the real value, and {self.absolute:g}"

    def is_outside(self, simulated: Values, real: Values, dtype: str) -> Values:
        """Return a mask of elements outside of the tolerance; NaN equals NaN.

        Args:
            simulated: Elements of one type.
            real: As many.
            dtype: torch's name of it.
        """
        same = _bits_alike(simulated, real)
        if dtype not in _BY_DTYPE:
            return ~same
        if self.ulp is not None:
            return ~same & ~(ulps(simulated, real) <= self.ulp)
        relative, absolute = _BY_DTYPE.get(dtype, _EXACT)
        if self.relative is not None:
            relative, absolute = self.relative, self.absolute
        one, other = wide(simulated), wide(real)
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(one - other) <= absolute + relative * np.abs(other)
        near &= np.isfinite(one) & np.isfinite(other)
        return np.asarray(~(same | near))


def _not_negative(value: Any) -> Any:  # noqa: ANN401 - a number
    if not 0 <= value < float("inf"):
        raise ValueError(value)
    return value


def _bits_alike(one: Values, other: Values) -> Values:
    """Return a mask of equal elements; NaN equals NaN."""
    with np.errstate(invalid="ignore"):
        return np.asarray((one == other) | ((one != one) & (other != other)))  # noqa: PLR0124 - NaN


def wide(values: Values) -> Values:
    """Return numbers in which differences are exact enough."""
    with np.errstate(invalid="ignore"):
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def ulps(one: Values, other: Values) -> Values:
    """Return the distance of elements in ulps; for complex ones the larger part.

    Where only one of them is NaN, it is the largest number there is.
    """
    if one.dtype.kind == "c":
        return np.maximum(ulps(one.real.copy(), other.real.copy()),
                          ulps(one.imag.copy(), other.imag.copy()))  # fmt: skip
    a, b = _ordered(one), _ordered(other)
    steps = np.maximum(a, b) - np.minimum(a, b)
    is_one_nan = (one != one) != (other != other)  # noqa: PLR0124 - NaN
    both = (one != one) & (other != other)  # noqa: PLR0124 - NaN
    return np.where(is_one_nan, np.uint64(2**64 - 1), np.where(both, np.uint64(0), steps))


def _ordered(values: Values) -> Values:
    """Return floats as unsigned integers in the same order; neighbours differ by one."""
    width = 8 * values.dtype.itemsize
    bits = np.ascontiguousarray(values).view(f"u{width // 8}").reshape(values.shape)
    bits = bits.astype(np.uint64)
    sign = np.uint64(1 << (width - 1))
    return np.where(bits & sign, sign - (bits & ~sign), sign + bits)
