"""Elementwise functions of kernels: arithmetic, comparisons, transcendental functions."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language as tl

from simrank.kernels import library_tensors
from simrank.kernels.language import special
from simrank.kernels.machine.running import FUSED, SIMPLE, SPECIAL, spend
from simrank.kernels.values import types
from simrank.kernels.values.block import Block, addresses, as_block, cast_to, constant
from simrank.kernels.values.operators import (
    aligned,
    check_broadcast,
    operands,
    spend_division,
    with_axes,
)
from simrank.kernels.values.types import (
    ElementType,
    bfloat16,
    float32,
    float64,
    int1,
    odd_sum,
    to_float32,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.protocols import Array, Value
    from simrank.kernels.values.block import Operand


# ---- functions that kernels share with the tensors of another library: bit-identical results ----
# torch on CUDA and Triton use the same libdevice. Where a program's tensors belong to another
# library, kernels use that library's function; otherwise numpy's, or one written here.

_FLOATS = (np.float32, np.float64)


def shared(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a float function that prefers the running program's tensor library.

    Args:
        name: Name of the function in torch.
        compute: The fallback.
    """

    def function(*values: Any) -> Any:
        library = library_tensors.running()
        own = None if library is None else library.function(name)
        if own is None or any(value.dtype not in _FLOATS for value in values):
            return compute(*values)
        result = own(*(np.require(value, requirements=("C", "W")) for value in values))
        is_block = any(type(value) is np.ndarray for value in values)
        return result if is_block else result.reshape(())[()]

    return function


# ---- arithmetic, comparisons, transcendental functions ----


def _pair(
    first: Operand, second: Operand, *, divides: bool = False
) -> tuple[Any, Any, ElementType]:
    """Return two operands, promoted to a common type; either may be a number."""
    if type(first) is Block:
        return operands(first, second, divides=divides)
    if type(second) is Block:
        theirs, ours, result = operands(second, first, divides=divides)
        return ours, theirs, result
    return operands(as_block(first), second, divides=divides)


def _rounded(values: Value, element: ElementType) -> Block:
    return Block(element.rounded(values), element)


def add(x: Operand, y: Operand, sanitize_overflow: bool = True) -> Block:
    """Compute x + y."""
    del sanitize_overflow
    result: Block = as_block(x) + y
    return result


def sub(x: Operand, y: Operand, sanitize_overflow: bool = True) -> Block:
    """Compute x - y."""
    del sanitize_overflow
    result: Block = as_block(x) - y
    return result


def mul(x: Operand, y: Operand, sanitize_overflow: bool = True) -> Block:
    """Compute x * y."""
    del sanitize_overflow
    result: Block = as_block(x) * y
    return result


# Before Triton 3.9 a number has a type of its own in these functions, as if it were a scalar that
# was loaded, and extremes of bfloat16 are float32: `tl.maximum(x, 0.5)` of a float16 is float32.
TYPES_NUMBERS_FIRST = hasattr(tl.core, "_promote_bfloat16_to_float32")


def widened(x: Operand) -> Operand:
    """Return an operand of an extreme as the installed Triton takes it."""
    if not TYPES_NUMBERS_FIRST:
        return x
    block = as_block(x)
    return cast_to(block, float32) if block.element is bfloat16 else block


def _extreme(ignoring: Callable[..., Any], propagating: Callable[..., Any]) -> Callable[..., Block]:
    def choose(
        x: Operand, y: Operand, propagate_nan: tl.PropagateNan = tl.PropagateNan.NONE
    ) -> Block:
        ours, theirs, result = _pair(widened(x), widened(y))
        if result.kind == "p":
            raise TypeError(f"invalid operands of type {result} and {result}")
        compute = propagating if propagate_nan == tl.PropagateNan.ALL else ignoring
        values = compute(ours, theirs)
        if result.kind == "f":
            spend(SIMPLE, values)
        return Block(values, result)

    return choose


minimum = _extreme(np.fmin, np.minimum)
maximum = _extreme(np.fmax, np.maximum)


def builtin_max(*args: Any, propagate_nan: tl.PropagateNan = tl.PropagateNan.NONE) -> Any:
    """Return the largest argument, as Python's `max` inside a kernel."""
    return _fold(max, maximum, args, propagate_nan)


def builtin_min(*args: Any, propagate_nan: tl.PropagateNan = tl.PropagateNan.NONE) -> Any:
    """Return the smallest argument, as Python's `min` inside a kernel."""
    return _fold(min, minimum, args, propagate_nan)


def builtin_number(kind: type[int] | type[float]) -> Callable[..., Any]:
    """Return Python's `int` or `float` for kernels, which accept compile-time constants only.

    Args:
        kind: The Python type.
    """

    def number(value: Any = 0, *more: Any) -> Any:
        if type(value) is Block:
            raise TypeError(
                f"{kind.__name__}() argument must be a string or a real number, not 'tensor'"
            )
        return kind(value, *more)

    return number


def _fold(
    plain: Callable[..., Any],
    combine: Callable[..., Block],
    args: tuple[Any, ...],
    nan: tl.PropagateNan,
) -> Any:
    if len(args) == 1 and isinstance(args[0], list | tuple):
        args = tuple(args[0])
    if not any(type(arg) is Block for arg in args):
        return plain(args)
    result = args[0]
    for arg in args[1:]:
        result = combine(result, arg, propagate_nan=nan)
    return result


def clamp(
    x: Operand, min: Operand, max: Operand, propagate_nan: tl.PropagateNan = tl.PropagateNan.NONE
) -> Block:
    """Limit x to [min, max]; NaN becomes min unless it propagates."""
    own, low, high = _in_one_type(widened(x), widened(min), widened(max))
    if TYPES_NUMBERS_FIRST and own.element.kind != "f":
        raise TypeError(f"Unexpected dtype {own.element}. Only floating point clamp is supported")
    if own.element.kind == "f" and propagate_nan != tl.PropagateNan.ALL:
        return minimum(maximum(own, low), high)
    return minimum(maximum(own, low, propagate_nan), high, propagate_nan)


def _in_one_type(*args: Operand) -> list[Block]:
    """Convert operands to their common type.

    The types of blocks take precedence over those of numbers.
    """
    blocks = [arg.element for arg in args if type(arg) is Block]
    numbers = [arg for arg in args if type(arg) is not Block]
    own = [types.type_of_number(number) for number in numbers]
    result = reduce(types.promote, blocks or own)
    for number in numbers if blocks else ():
        result = types.promote_number(result, number)
    return [cast_to(a, result) if type(a) is Block else constant(a, result) for a in args]


def where(condition: Operand, x: Operand, y: Operand) -> Block:
    """Return x where the condition holds, else y."""
    chosen = cast_to(as_block(condition), int1)
    first, second = as_block(x), as_block(y)
    if first.element.kind == "p" or second.element.kind == "p":
        return _where_pointers(chosen, first, second)
    ours, theirs, result = _pair(x, y)
    for block in (first, second):
        check_broadcast(chosen, block)
    num_axes = max(np.ndim(values) for values in (chosen.values, ours, theirs))
    spread = [with_axes(values, num_axes) for values in (chosen.values, ours, theirs)]
    values = np.where(*spread)
    if num_axes == 0:
        return Block(result.scalar(values), result)
    if result.kind == "f":
        spend(SIMPLE, values)
    return Block(values.astype(result.compute, copy=False), result)


def _where_pointers(chosen: Block, first: Block, second: Block) -> Block:
    if first.element is not second.element:
        raise TypeError(f"invalid operands of type {first.element} and {second.element}")
    base = first.base if first.base is second.base else None
    ours, theirs = (
        (first.values, second.values) if base is not None else (addresses(first), addresses(second))
    )
    num_axes = max(np.ndim(values) for values in (chosen.values, ours, theirs))
    values = np.where(*(with_axes(v, num_axes) for v in (chosen.values, ours, theirs)))
    return Block(values if num_axes else np.int64(values), first.element, base)


def cast(
    input: Operand,
    dtype: tl.dtype,
    fp_downcast_rounding: str | None = None,
    bitcast: bool = False,
) -> Block:
    """Convert a block to another type."""
    return as_block(input).to(dtype, fp_downcast_rounding, bitcast)


def fma(x: Operand, y: Operand, z: Operand) -> Block:
    """Compute x * y + z, rounded once."""
    typed = map(as_block, (x, y, z)) if TYPES_NUMBERS_FIRST else (x, y, z)
    blocks = _in_one_type(*typed)
    result = blocks[0].element
    if result.kind != "f":
        raise TypeError(f"fma takes floats, not {result}")
    ours, theirs, third = (block.values for block in blocks)
    one, other = aligned(ours, third)
    one, two = aligned(one, theirs)
    values = fused_in(result, one, two, other)
    if result.kind == "f":
        for _ in range(2):  # The result is both a product and a sum.
            spend(FUSED, values)
    return Block(values, result)


def fused_in(element: ElementType, first: Any, second: Any, third: Any) -> Any:
    """Compute first * second + third, rounded once to a type."""
    if element.kind != "f":
        return first * second + third
    parts = [np.asarray(values).astype(np.float64) for values in (first, second, third)]
    if element is float64:
        return fused(*parts)[()]
    exact = odd_sum(parts[0] * parts[1], parts[2])  # Products of these types are exact.
    if element is float32:
        return exact.astype(np.float32)[()]
    return element.rounded(to_float32(exact))


def fused(first: Array, second: Array, third: Array) -> Array:
    """Compute first * second + third in float64, corrected by the product's rounding error.

    Source: Dekker, "A floating-point technique for extending the available precision", 1971.
    """
    product = first * second
    if product.dtype != np.float64:
        return product + third
    split = 134217729.0  # 2**27 + 1
    high, low = (_upper(value, split) for value in (first, second))
    error = ((high * low - product) + high * (second - low) + (first - high) * low) + (
        first - high
    ) * (second - low)
    total = product + third
    back = total - product
    lost = (product - (total - back)) + (third - back)
    result = total + (lost + error)
    return np.where(np.isfinite(result), result, total)


def _upper(value: Array, split: float) -> Array:
    scaled = value * split
    return scaled - (scaled - value)


def fdiv(x: Operand, y: Operand, ieee_rounding: bool = False, approx: bool = False) -> Block:
    """Compute x / y of floats."""
    if TYPES_NUMBERS_FIRST:
        return _fdiv_as_typed(as_block(x), as_block(y), approx=approx)
    if ieee_rounding and approx:
        raise ValueError("approx and ieee_rounding cannot both be True")
    return _quotient(x, y)


def _quotient(x: Operand, y: Operand) -> Block:
    ours, theirs, result = _pair(x, y, divides=True)
    if result.kind != "f":
        raise TypeError("fdiv requires floating-point operands after type promotion")
    return _divided(ours, theirs, result)


def _divided(ours: Value, theirs: Value, result: ElementType) -> Block:
    values = np.true_divide(ours, theirs)
    spend_division(values, theirs, result)
    return _rounded(values, result)


def _fdiv_as_typed(x: Block, y: Block, *, approx: bool) -> Block:
    """Compute x / y as Triton before 3.9 does: in the type that both operands have.

    Raises:
        TypeError: It does not compile.
    """
    if approx:
        raise TypeError("fdiv() got an unexpected keyword argument 'approx'")
    if x.element.kind != "f" or y.element.kind != "f":
        raise TypeError("both operands of fdiv must have floating scalar type")
    if x.element is not y.element or x.element.bits < 32:
        raise TypeError(f"fdiv of {x.element} and {y.element} does not compile before Triton 3.9")
    ours, theirs, result = _pair(x, y)
    return _divided(ours, theirs, result)


def div_rn(x: Operand, y: Operand) -> Block:
    """Compute x / y of fp32, rounded to nearest."""
    for block in (x, y):
        if type(block) is Block and block.element is not float32:
            raise ValueError(f"Expected dtype ['fp32'] but got {block.element}")
    return _quotient(x, y)


def umulhi(x: Operand, y: Operand) -> Block:
    """Return the upper half of a product of unsigned integers."""
    ours, theirs, result = _pair(x, y)
    if result.kind not in "iu" or result.bits not in (32, 64):
        raise ValueError(f"Expected dtype ['int32', 'int64', 'uint32', 'uint64'] but got {result}")
    unsigned = np.dtype(f"u{result.bits // 8}")
    one, other = ours.astype(unsigned), theirs.astype(unsigned)
    if result.bits == 32:
        high = (one.astype(np.uint64) * other.astype(np.uint64)) >> np.uint64(32)
    else:
        high = _high_of_64(one, other)
    return Block(high.astype(unsigned).view(result.compute), result)


def _high_of_64(one: Value, other: Value) -> Value:
    """Return the upper 64 bits of a product of two 64-bit numbers, by halves."""
    half, low = np.uint64(32), np.uint64(0xFFFF_FFFF)
    a, b, c, d = one >> half, one & low, other >> half, other & low
    middle = b * c + ((b * d) >> half)
    carry = (middle & low) + a * d
    result: Value = a * c + (middle >> half) + (carry >> half)
    return result


def _floating(name: str, compute: Callable[[Any], Any]) -> Callable[[Any], Block]:
    """Return a function that Triton defines for fp32 and fp64 only, or for fp32 only."""
    elements = (float32,) if name.endswith("_rn") else (float32, float64)
    unit = SIMPLE if name in _ROUNDING else SPECIAL
    own = shared(name, compute)

    def function(x: Operand) -> Block:
        block = as_block(x)
        element = block.element
        if element not in elements:
            raise ValueError(f"Expected dtype {[e.name for e in elements]} but got {element}")
        spend(unit, block.values)
        return Block(own(block.values), element)

    function.__name__ = name
    return function


def absolute(x: Operand) -> Block:
    """Compute |x|."""
    block = as_block(x)
    if block.element.kind in "ub":
        return block
    if block.element.kind not in "if":
        raise ValueError(f"Unexpected dtype {block.element}")
    return Block(np.abs(block.values), block.element)


def expect_zero(x: Block, mask: Operand) -> Block:
    """Return x, with zero where the mask is false."""
    return where(mask, x, 0)


_ROUNDING = ("floor", "ceil")
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "cos": np.cos,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt,
    "rsqrt": special.through_float64(lambda x: 1 / np.sqrt(x)),
    "erf": special.erf,
    "floor": np.floor,
    "ceil": np.ceil,
}
MATH: dict[str, Callable[..., Any]] = {
    name: _floating(name, compute) for name, compute in _PLAIN.items()
} | {"abs": absolute, "fma": fma, "fdiv": fdiv, "div_rn": div_rn, "umulhi": umulhi}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "minimum": minimum,
    "maximum": maximum,
    "builtin_max": builtin_max,
    "builtin_min": builtin_min,
    "clamp": clamp,
    "where": where,
    "cast": cast,
    "expect_zero": expect_zero,
}
