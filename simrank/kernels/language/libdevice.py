"""Table of `tl.extra.libdevice` functions, and the functions of `tl.extra.cuda`.

The table gives argument and result types and the computation of each function; `_function` checks
types, broadcasts, and raises.
"""

from __future__ import annotations

import math
from functools import partial, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language.extra.libdevice  # noqa: F401 - kernels find it as an attribute

from simrank.kernels import machine
from simrank.kernels.language import special
from simrank.kernels.language.elementwise import fused_in, shared
from simrank.kernels.language.special import bytes_of_both, in_wider, of_each, through_float64
from simrank.kernels.values.block import Block, as_block
from simrank.kernels.values.operators import aligned, check_broadcast
from simrank.kernels.values.types import (
    ElementType,
    float32,
    float64,
    int1,
    int32,
    int64,
    to_integer,
    uint32,
    uint64,
)
from simrank.units import PS_PER_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.protocols import Value

    Compute = Callable[..., Any]
    Signatures = dict[tuple[ElementType, ...], ElementType]

_FLOATS = (float32, float64)
_SHARED = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "erfc", "exp",
    "exp2", "expm1", "lgamma", "log", "log10", "log1p", "log2", "pow", "rsqrt", "sin", "sinh",
    "tan", "tanh",
}  # fmt: skip


def _function(name: str, signatures: Signatures, compute: Compute) -> Callable[..., Block]:
    """Return one function of libdevice.

    Raises (the function):
        ValueError: The argument types match none of the signatures.
    """
    own_function = shared(name, compute) if name in _SHARED else compute

    def call(*args: Any) -> Block:
        blocks = [as_block(arg) for arg in args]
        own = tuple(block.element for block in blocks)
        result = signatures.get(own)
        if result is None:
            wanted = "; ".join(", ".join(t.name for t in types) for types in signatures)
            given = ", ".join(t.name for t in own)
            raise ValueError(f"libdevice.{name}: input arg type does not match. "
                             f"Expect one of {wanted}, got {given}")  # fmt: skip
        values = _broadcast(blocks)
        computed = own_function(*values).astype(result.compute, copy=False)
        machine.spend(machine.SPECIAL, computed)
        return Block(computed, result)

    call.__name__ = name
    return call


def _broadcast(blocks: list[Block]) -> list[Any]:
    values = [block.values for block in blocks]
    for first, second in pairwise(blocks):
        check_broadcast(first, second)
    widest = max(values, key=np.ndim)
    return [aligned(value, widest)[0] for value in values]


def _floating(num_args: int, result: ElementType | None = None) -> Signatures:
    return {(t,) * num_args: result or t for t in _FLOATS}


def _fma(first: Value, second: Value, third: Value) -> Value:
    element = float32 if first.dtype == np.float32 else float64
    result: Value = fused_in(element, first, second, third)
    return result


@in_wider
def _power(base: Value, exponent: Value) -> Value:
    return np.power(base, exponent)


def _leading_zeros(values: Value) -> Value:
    bits = values.dtype.itemsize * 8
    left = values.view(np.dtype(f"u{values.dtype.itemsize}")).copy()
    result = np.zeros(np.shape(values), np.int32)
    step = bits // 2
    while step:  # Shift the highest bit up, by halves.
        is_clear = left < (left.dtype.type(1) << left.dtype.type(bits - step))
        result = result + np.where(is_clear, step, 0)
        left = np.where(is_clear, left << left.dtype.type(step), left).astype(left.dtype)
        step //= 2
    return np.where(left == 0, bits, result)


def _population(values: Value) -> Value:
    result: Value = np.bitwise_count(values.view(np.dtype(f"u{values.dtype.itemsize}")))
    return result


def _first_set(values: Value) -> Value:
    """Return the position of the lowest set bit, from 1; 0 if no bit is set."""
    lowest = values & -values
    bits = values.dtype.itemsize * 8
    return np.where(values == 0, 0, bits - _leading_zeros(lowest))


def _reversed_bits(values: Value) -> Value:
    size = values.dtype.itemsize
    raw = np.ascontiguousarray(values)[..., None].view(np.uint8)
    bits = np.unpackbits(raw, axis=-1)[..., ::-1]
    packed = np.ascontiguousarray(np.packbits(bits, axis=-1))
    return packed.view(np.dtype(f"i{size}"))[..., 0]


def _high_half(first: Value, second: Value) -> Value:
    if first.dtype.itemsize == 4:
        wide = np.int64 if first.dtype.kind == "i" else np.uint64
        return (first.astype(wide) * second.astype(wide)) >> wide(32)
    products = np.asarray(first, object) * np.asarray(second, object)
    return np.asarray(products >> 64).astype(first.dtype)


def _permuted(first: Value, second: Value, selector: Value) -> Value:
    return bytes_of_both(first, second, selector).view(np.int32)


def _product_of_24_bits(first: Value, second: Value) -> Value:
    """Multiply the low 24 bits of both, and keep the low 32 bits."""
    low, other = ((values << 8 >> 8).astype(np.int64) for values in (first, second))
    return np.asarray(low * other).astype(np.uint32)


def _distance(first: Value, second: Value, third: Value) -> Value:
    """Compute |first - second| + third in 32 bits."""
    wide = np.abs(first.astype(np.int64) - second.astype(np.int64)) + third.astype(np.int64)
    return wide.astype(np.uint32).view(first.dtype)


def _mean(first: Value, second: Value, *, up: int) -> Value:
    """Compute the mean of two integers without overflow, halves rounded down or up."""
    return (first.astype(np.int64) + second.astype(np.int64) + up) >> 1


def _words(values: Value, index: int) -> Value:
    """Return the low (0) or high (1) 32 bits of a double."""
    words: Value = (np.asarray(values).view(np.int64) >> (32 * index)).astype(np.int32)
    return words[()]


def _double_of(high: Value, low: Value) -> Value:
    bits = (high.astype(np.int64) << 32) | low.astype(np.uint32).astype(np.int64)
    result: Value = bits.view(np.float64)
    return result


def _reciprocal_of_high_word(values: Value) -> Value:
    """Compute 1 / x to 20 bits; low words count as zero, and subnormal numbers as zero.

    Source: PTX ISA, `rcp.approx.ftz.f64`; the exact result within its error bound is unknown.
    """
    high = (np.asarray(values).view(np.int64) >> 32 << 32).view(np.float64)
    tiny = np.finfo(np.float64).tiny
    high = np.where(np.abs(high) < tiny, np.copysign(0.0, values), high)
    near = ((1 / high).view(np.int64) >> 32 << 32).view(np.float64)
    result: Value = np.where(np.abs(near) < tiny, np.copysign(0.0, near), near)
    return np.where(np.isnan(values), np.nan, result)


def _exponent(values: Value) -> Value:
    """Return the exponent as int32: the least for 0 and NaN, the largest for infinity."""
    exponent = special.logb(values)
    ends = np.where(np.isinf(values), 2.0**31 - 1, -(2.0**31))
    is_plain = np.isfinite(values) & (values != 0)
    return np.where(is_plain, exponent, ends).astype(np.int64).astype(np.int32)


def _norm(*values: Value) -> Value:
    """Compute the length of a vector without intermediate overflow."""
    result: Value = reduce(np.hypot, values)
    return result


def _of_order(function: Callable[[int, float], float]) -> Compute:
    """Return a Bessel function of arrays of orders and arguments."""
    of_both = of_each(lambda x, order: function(int(order), x), 2)
    return lambda orders, values: of_both(values, orders)


def _unsigned(rounded: Compute, target: ElementType) -> Compute:
    """Return a conversion to unsigned integers; libdevice returns their bits as signed ones."""
    return lambda values: np.asarray(to_integer(rounded(values), target)).view(
        f"i{target.itemsize}"
    )


def _bits(target: type[np.generic]) -> Compute:
    return lambda values: values.view(target)


def _whole(rounded: Compute, target: ElementType) -> Compute:
    return lambda values: to_integer(rounded(values), target)


_TRANSCENDENTAL: dict[str, Compute] = {
    "cbrt": np.cbrt, "rsqrt": lambda x: 1 / np.sqrt(x), "rcbrt": lambda x: 1 / np.cbrt(x),
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(x.dtype.type(10), x),
    "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip
_ERFC_INVERSE = special.erfc_inverse(special.inverse_of_erf)
_UNARY: dict[str, Compute] = {
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint,
    "round": special.rounded_away, "nearbyint": np.rint, "sqrt": np.sqrt, "sqrt_rn": np.sqrt,
    "rcp_rn": lambda x: 1 / x, "logb": special.logb,
    **{
        name: in_wider(compute)
        for name, compute in _TRANSCENDENTAL.items()
    },
    "sinpi": through_float64(special.sine_of_pi), "cospi": through_float64(special.cosine_of_pi),
    "erf": special.erf, "erfc": of_each(math.erfc), "erfinv": special.erfinv,
    "normcdf": of_each(special.normal_cdf), "lgamma": of_each(special.log_gamma),
    "tgamma": of_each(special.gamma), "erfcx": of_each(special.erfcx),
    "erfcinv": of_each(_ERFC_INVERSE),
    "normcdfinv": of_each(lambda p: -math.sqrt(2) * _ERFC_INVERSE(2 * p)),
    "j0": of_each(partial(special.bessel_j, 0)), "j1": of_each(partial(special.bessel_j, 1)),
    "y0": of_each(partial(special.bessel_y, 0)), "y1": of_each(partial(special.bessel_y, 1)),
    "cyl_bessel_i0": of_each(partial(special.bessel_i, 0)),
    "cyl_bessel_i1": of_each(partial(special.bessel_i, 1)),
}  # fmt: skip
_BINARY: dict[str, Compute] = {
    "copysign": np.copysign, "fmod": np.fmod, "atan2": in_wider(np.arctan2),
    "hypot": in_wider(np.hypot), "nextafter": np.nextafter, "add_rn": np.add,
    "sub_rn": np.subtract, "mul_rn": np.multiply, "div_rn": np.divide, "fdim": special.difference,
    "remainder": of_each(math.remainder, 2),
    "rhypot": in_wider(lambda x, y: 1 / np.hypot(x, y)),
}  # fmt: skip
_TERNARY: dict[str, Compute] = {
    "fma": _fma, "fma_rn": _fma, "norm3d": in_wider(_norm),
    "rnorm3d": in_wider(lambda *values: 1 / _norm(*values)),
}  # fmt: skip
_OF_FOUR: dict[str, Compute] = {
    "norm4d": in_wider(_norm), "rnorm4d": in_wider(lambda *values: 1 / _norm(*values)),
}  # fmt: skip
_DIRECTED = special.arithmetic()
_NUM_OPERANDS = {"sqrt": 1, "rcp": 1, "fma": 3}
_FAST: dict[str, Compute] = {
    **{f"fast_{name}f": _UNARY[name] for name in ("sin", "cos", "log", "log2", "log10", "exp")},
    "fast_tanf": _UNARY["tan"], "fast_exp10f": _UNARY["exp10"], "rsqrt_rn": _UNARY["rsqrt"],
    "saturatef": lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0, 1),
}  # fmt: skip
_FAST_BINARY: dict[str, Compute] = {
    "fast_dividef": special.quotient_fast,
    "fast_powf": through_float64(special.power_fast),
}
_TESTS: dict[str, Compute] = {"isnan": np.isnan, "isinf": np.isinf, "signbit": np.signbit}
_WHOLE = (("int", int32), ("uint", uint32), ("ll", int64), ("ull", uint64))
_ROUNDINGS: dict[str, Compute] = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}

_ONE_FLOAT: Signatures = {(float32,): float32}
_TWO_FLOATS: Signatures = {(float32, float32): float32}
_INTEGERS: Signatures = {(int32,): int32, (int64,): int32}
_SAME_INTEGER: Signatures = {(int32,): int32, (int64,): int64}
_PAIRS_OF_32: Signatures = {(t, t): t for t in (int32, uint32)}
_PRODUCTS: Signatures = {(t, t): t for t in (int32, uint32, int64, uint64)}

_TABLE: dict[str, tuple[Signatures, Compute]] = {
    **{name: (_floating(1), compute) for name, compute in _UNARY.items()},
    **{name: (_floating(2), compute) for name, compute in _BINARY.items()},
    **{name: (_floating(3), compute) for name, compute in _TERNARY.items()},
    **{name: (_floating(4), compute) for name, compute in _OF_FOUR.items()},
    **{
        name: (_floating(_NUM_OPERANDS.get(name.partition("_")[0], 2)), compute)
        for name, compute in _DIRECTED.items()
    },
    **{name: (_ONE_FLOAT, compute) for name, compute in _FAST.items()},
    **{name: (_TWO_FLOATS, compute) for name, compute in _FAST_BINARY.items()},
    **{name: (_floating(1, int1), compute) for name, compute in _TESTS.items()},
    "finitef": ({(float32,): int1}, np.isfinite),
    "isfinited": ({(float64,): int1}, np.isfinite),
    "abs": (_floating(1) | _SAME_INTEGER, np.abs),
    "pow": (_floating(2) | {(t, int32): t for t in _FLOATS}, _power),
    "ldexp": ({(t, int32): t for t in _FLOATS}, np.ldexp),
    "scalbn": ({(t, int32): t for t in _FLOATS}, np.ldexp),
    "jn": ({(int32, t): t for t in _FLOATS}, _of_order(special.bessel_j)),
    "yn": ({(int32, t): t for t in _FLOATS}, _of_order(special.bessel_y)),
    "ilogb": (_floating(1, int32), _exponent),
    "byte_perm": ({(int32, int32, int32): int32}, _permuted),
    "mul24": (_PAIRS_OF_32, _product_of_24_bits),
    "hadd": (_PAIRS_OF_32, partial(_mean, up=0)),
    "rhadd": (_PAIRS_OF_32, partial(_mean, up=1)),
    "sad": ({(t, t, uint32): t for t in (int32, uint32)}, _distance),
    "rcp64h": ({(float64,): float64}, _reciprocal_of_high_word),
    "double2loint": ({(float64,): int32}, partial(_words, index=0)),
    "double2hiint": ({(float64,): int32}, partial(_words, index=1)),
    "hiloint2double": ({(int32, int32): float64}, _double_of),
    "clz": (_INTEGERS, _leading_zeros),
    "popc": (_INTEGERS, _population),
    "ffs": (_INTEGERS, _first_set),
    "brev": (_SAME_INTEGER, _reversed_bits),
    "mulhi": (_PRODUCTS, _high_half),
    "llrint": (_floating(1, int64), _whole(np.rint, int64)),
    "llround": (_floating(1, int64), _whole(special.rounded_away, int64)),
    "float_as_int": ({(float32,): int32}, _bits(np.int32)),
    "float_as_uint": ({(float32,): int32}, _bits(np.int32)),
    "int_as_float": ({(int32,): float32}, _bits(np.float32)),
    "uint_as_float": ({(uint32,): float32}, _bits(np.float32)),
    "double_as_longlong": ({(float64,): int64}, _bits(np.int64)),
    "longlong_as_double": ({(int64,): float64}, _bits(np.float64)),
    "double2float_rn": ({(float64,): float32}, np.float32),
    **{
        f"{source}2{target}_{mode}": ({(element,): whole}, _whole(rounded, whole))
        for source, element in (("float", float32), ("double", float64))
        for target, whole in (("int", int32), ("ll", int64))
        for mode, rounded in _ROUNDINGS.items()
    },
    **{
        f"{source}2{target}_{mode}": ({(element,): signed}, _unsigned(rounded, whole))
        for source, element in (("float", float32), ("double", float64))
        for target, whole, signed in (("uint", uint32, int32), ("ull", uint64, int64))
        for mode, rounded in _ROUNDINGS.items()
    },
    **{
        f"{source}2{target}_rn": ({(element,): floating}, floating.compute.type)
        for source, element in _WHOLE
        for target, floating in (("float", float32), ("double", float64))
    },
    **{
        f"{source}2{target}_{mode}": (
            {(element,): floating},
            special.conversion(mode, floating.compute),
        )
        for source, element in (*_WHOLE, ("double", float64))
        for target, floating in (("float", float32), ("double", float64))
        for mode in special.MODES
        if element.bits > 32 * (floating is float64) and element is not floating
    },
}
LIBDEVICE: dict[str, Callable[..., Any]] = {
    name: _function(name, signatures, compute) for name, (signatures, compute) in _TABLE.items()
}


# ---- tl.extra.cuda ----


def globaltimer() -> Block:
    """Return a program's simulated time in nanoseconds; in lockstep, the launch's start time."""
    return Block(np.int64(machine.clock_ps() // PS_PER_NS), int64)


def smid() -> Block:
    """Return the SM of a program; programs are assigned to SMs round-robin."""
    programs = machine.now()
    ids = (programs.ids % programs.device.spec.num_sms).astype(np.int32)
    return Block(ids if len(ids) > 1 else ids[0], int32)


def num_warps() -> int:
    """Return the number of warps of a program."""
    return machine.now().options.num_warps


def num_threads() -> int:
    """Return the number of threads of a program: 32 per warp, as on CUDA, on every device."""
    return 32 * num_warps()


def gdc_wait() -> None:
    """Record that programs wait for the preceding launch, which has already ended."""
    programs = machine.now()
    if programs.log is not None:
        programs.log.waited(programs.ids)


def gdc_launch_dependents() -> None:
    """Record that the next launch may begin early; the simulator does not start it early."""
    log = machine.now().log
    if log is not None:
        log.has_dependents = True


CUDA: dict[str, Callable[..., Any]] = {
    "globaltimer": globaltimer,
    "smid": smid,
    "num_warps": num_warps,
    "num_threads": num_threads,
    "gdc_wait": gdc_wait,
    "gdc_launch_dependents": gdc_launch_dependents,
}
# AMD has one more function than CUDA.
_HIP = LIBDEVICE | {"fast_tanhf": _function("fast_tanhf", _ONE_FLOAT, _UNARY["tanh"])}
BY_MODULE: dict[str, dict[str, Callable[..., Any]]] = {
    "triton.language.extra.libdevice": LIBDEVICE,
    "triton.language.extra.cuda.libdevice": LIBDEVICE,
    "triton.language.extra.hip.libdevice": _HIP,
    "triton.language.extra.cuda.utils": CUDA,
    "triton.language.extra.cuda.gdc": CUDA,
}
