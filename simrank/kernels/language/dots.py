"""Matrix products, also scaled ones: the compiler's types and limits, accumulation (K3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.compiler.driver import target_of
from simrank.kernels.language import shapes, special
from simrank.kernels.values.block import Block, bitcast_to
from simrank.kernels.values.types import (
    ElementType,
    bfloat16,
    element_type,
    float8e4nv,
    float8e5,
    float16,
    float32,
    float64,
    int8,
    int32,
    uint8,
    uint16,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import triton.language as tl

    from simrank.kernels.machine.protocols import Array, Value

_PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
_INPUTS = (int8, uint8, float16, bfloat16, float32, float64)
_LEAST_K = {8: 32, 16: 16, 32: 8, 64: 4}  # Limits of Triton's NVIDIA backend; M and N may be 1.


def dot(
    input: Block,
    other: Block,
    acc: Block | None = None,
    input_precision: str | None = None,
    allow_tf32: bool | None = None,
    max_num_imprecise_acc: int | None = None,
    out_dtype: tl.dtype | None = None,
) -> Block:
    """Multiply two matrices, or batches of matrices; see `tl.dot`.

    Accumulation is in fp32 (int32 or fp64 for such inputs). Accumulation that is less precise on
    hardware, of fp16 and of fp8 within one instruction, is rounded once at the end.

    Raises:
        ValueError: The compiler rejects the types or shapes.
    """
    del max_num_imprecise_acc
    if input_precision is not None and allow_tf32 is not None:
        raise ValueError("Only one of input_precision and allow_tf32 can be specified")
    if input_precision is None:
        input_precision = "tf32" if allow_tf32 is None or allow_tf32 else "ieee"
    if str(input_precision).lower() not in _PRECISIONS:
        raise ValueError(f"input_precision must be one of {_PRECISIONS}. Got {input_precision}")
    if type(input) is not Block or type(other) is not Block or not (input.shape and other.shape):
        raise ValueError("dot operands must be block tensors (not scalars)")
    if len(input.shape) > 3:
        return _dot_of_batches(input, other, acc, input_precision, out_dtype)
    _check_types(input.element, other.element)
    _check_shapes(input, other)
    requested = _requested_type(acc, out_dtype)
    result = _result(input.element, requested)
    shape = (*input.shape[:-1], other.shape[-1])
    if acc is not None:
        _check_accumulator(acc, shape, result, requested)
    product = _product(input, other, precision=str(input_precision).lower())
    if acc is not None:
        product = product + acc.values
    _count(input, product)
    return Block(result.rounded(product), result)


def _dot_of_batches(
    first: Block, second: Block, acc: Block | None, precision: str, out_dtype: tl.dtype | None
) -> Block:
    """Multiply batches with several batch dims, as one batch."""
    ours, theirs = first.shape, second.shape
    if ours[:-2] != theirs[:-2]:
        raise ValueError("input and other must have equal batch shapes")
    batch = int(np.prod(ours[:-2]))
    if acc is not None:
        acc = shapes.reshape(acc, (batch, ours[-2], theirs[-1]))
    result = dot(
        shapes.reshape(first, (batch, *ours[-2:])),
        shapes.reshape(second, (batch, *theirs[-2:])),
        acc,
        precision,
        out_dtype=out_dtype,
    )
    return shapes.reshape(result, (*ours[:-1], theirs[-1]))


def _is_fp8(element: ElementType) -> bool:
    return element.kind == "f" and element.bits == 8


def _check_types(ours: ElementType, theirs: ElementType) -> None:
    if _is_fp8(ours) and _is_fp8(theirs):
        return
    for side, element in (("lhs", ours), ("rhs", theirs)):
        if element not in _INPUTS:
            raise ValueError(f"Unsupported {side} dtype {element}")
    if ours is not theirs:
        raise ValueError(f"Both operands must be same dtype. Got {ours} and {theirs}")
    if ours is uint8:
        raise ValueError("only int8 supported!")


def _check_shapes(first: Block, second: Block) -> None:
    ours, theirs = list(first.shape), list(second.shape)
    if len(ours) != len(theirs) or len(ours) < 2:
        raise ValueError(f"Both inputs must be either 2D or 3D; (lhs: {ours} vs rhs: {theirs})")
    if ours[:-2] != theirs[:-2]:
        raise ValueError("input and other must have equal batch shapes")
    if ours[-1] != theirs[-2]:
        raise ValueError(
            f"First input shape ({ours}) and second input shape {theirs} are not compatible for "
            f"matmul (second index of first shape ({ours[-1]}) must be equal to first index of "
            f"second shape ({theirs[-2]})"
        )
    least = _LEAST_K[first.element.bits]
    if ours[-1] < least:
        raise ValueError(f"Input shapes should have M >= 1, N >= 1 and K >= {least}")


def _requested_type(acc: Block | None, out_dtype: tl.dtype | None) -> ElementType:
    if out_dtype is not None:
        return element_type(out_dtype)
    return float32 if acc is None else acc.element


def _result(ours: ElementType, requested: ElementType) -> ElementType:
    """Return the element type of a product."""
    if ours is int8:
        return int32
    if requested is bfloat16:
        raise ValueError(
            "out_dtype=bfloat16 is unsupported. Please use out_dtype=float32/float16 and cast with "
            "`.to(tl.bfloat16)`"
        )
    if ours in (float32, bfloat16):
        return float32
    return float64 if ours is float64 else requested


def _check_accumulator(
    acc: Block, shape: tuple[int, ...], result: ElementType, requested: ElementType
) -> None:
    if tuple(acc.shape) != shape:
        raise ValueError(f"expected accumulator shape {list(shape)}, got {list(acc.shape)}")
    for expected in (requested, result):
        if acc.element is not expected:
            raise ValueError(
                f"expected accumulator dtype {expected}, got {acc.element}; pass "
                f"out_dtype={acc.element} to use this accumulator dtype"
            )


def _product(first: Block, second: Block, *, precision: str) -> Value:
    ours, theirs = first.values, second.values
    fill = machine.now().statistics.fill
    if fill is not None:  # The values are unknown: see `running.sample`.
        shape = np.broadcast_shapes(ours.shape[:-2], theirs.shape[:-2])
        kind = np.int32 if first.element is int8 else ours.dtype
        return np.full((*shape, ours.shape[-2], theirs.shape[-1]), fill, kind)
    # Float64 represents products of 8-bit integers and their sums exactly.
    if first.element is int8:
        exact: Value = np.matmul(ours.astype(np.float64), theirs.astype(np.float64))
        return exact.astype(np.int32)
    if machine.is_as_hardware() and first.element is float32 and precision == "tf32":
        ours, theirs = (special.to_tf32(v, truncates=True) for v in (ours, theirs))
    result: Value = np.matmul(ours, theirs)
    return result


def _count(first: Block, result: Value) -> None:
    programs = machine.now()
    copies = len(programs) if len(result) == 1 else 1
    num_flops = 2 * result.size * first.shape[-1] * copies
    num_outputs = result.size // len(result)
    (rows, inner), columns = first.shape[-2:], result.shape[-1]
    inputs_bytes = (rows + columns) * inner * first.element.bits // 8
    counted = machine.Dot(first.element.name, rows, columns, inner)
    programs.statistics.count_flops(counted, num_flops, num_outputs, inputs_bytes)


# ---- matrix products in microscaling formats: elements of 4 to 16 bits with shared scales ----
# Source: OCP Microscaling Formats (MX) v1.0, sections 5.3 and 5.4; types, shapes and scale
# factors as in `semantic.dot_scaled` of Triton 3.9.

_FP4 = "e2m1"
_FORMATS: dict[str, ElementType] = {
    "e4m3": float8e4nv, "e5m2": float8e5, "bf16": bfloat16, "fp16": float16,
}  # fmt: skip
_FP4_VALUES = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
_NATIVE_FROM = 100  # compute capability: tcgen05.mma.kind::mxf8f6f4
_NATIVE_ON_AMD = ("gfx950",)


class _Operand(NamedTuple):
    """One operand; `k_pack`: the two 4-bit elements of a byte are neighbors along K."""

    block: Block
    scale: Block | None
    format: str
    k_pack: bool
    is_rhs: bool

    @property
    def side(self) -> str:
        return "rhs" if self.is_rhs else "lhs"


def dot_scaled(
    lhs: Block,
    lhs_scale: Block | None,
    lhs_format: str,
    rhs: Block,
    rhs_scale: Block | None,
    rhs_format: str,
    acc: Block | None = None,
    fast_math: bool = False,
    lhs_k_pack: bool = True,
    rhs_k_pack: bool = True,
    out_dtype: tl.dtype | None = None,
) -> Block:
    """Multiply two matrices in microscaling formats; see `tl.dot_scaled`.

    Products of elements and scales are exact in fp32, the type of accumulation. A scale byte of
    255 means NaN; a byte of 0 means 2^-127, or 0 if an operand is fp16, as in the upcasting code.
    If both operands are e2m1 in groups of 16, scales may be e4m3 (nvfp4).

    Simulated cost: an fp8 dot if the device supports such formats (fp4 costs as much as fp8:
    clusters have no fp4 rate); otherwise a bf16 dot, or an fp16 dot if an operand is fp16.

    Raises:
        ValueError: The compiler rejects the types or shapes.
        UnsupportedError: Scales are neither e8m0 bytes nor nvfp4 scales, or nvfp4 scales have a
            sign.
    """
    del fast_math  # NaN scales are always detected.
    if out_dtype is not None and element_type(out_dtype) is not float32:
        raise ValueError("Only float32 is supported for out_dtype at the moment")
    formats = (str(lhs_format), str(rhs_format))
    operands = (
        _Operand(lhs, lhs_scale, formats[0], bool(lhs_k_pack), is_rhs=False),
        _Operand(rhs, rhs_scale, formats[1], bool(rhs_k_pack), is_rhs=True),
    )
    for operand in operands:
        _check(operand)
    if len(lhs.shape) != len(rhs.shape) or len(lhs.shape) not in (2, 3):
        raise ValueError(
            f"Both inputs must be either 2D or 3D; (lhs: {lhs.shape} vs rhs: {rhs.shape})"
        )
    ours, theirs = (_elements(operand) for operand in operands)
    if ours.shape[-1] != theirs.shape[-2]:
        raise ValueError(
            "Reduction dimension should pack the same number of elements; "
            f"(lhs: {lhs.shape} vs rhs: {rhs.shape})"
        )
    factors = {
        _factor(operand, ours.shape[-1]) for operand in operands if operand.scale is not None
    }
    if len(factors) > 1:
        raise ValueError(f"Operands must have the same scale factor; got {sorted(factors)}")
    for operand in operands:
        _check_scale(operand, is_nvfp4=set(formats) == {_FP4} and factors == {16})
    product = np.matmul(_scaled(operands[0], ours, formats), _scaled(operands[1], theirs, formats))
    if acc is not None:
        _check_accumulator(acc, product.shape[1:], float32, float32)
        product = product + acc.values
    _count_scaled(formats, product, ours.shape[-1])
    return Block(product, float32)


def _check(operand: _Operand) -> None:
    block, given, side = operand.block, operand.format, operand.side
    if type(block) is not Block or not block.shape:
        raise ValueError("dot_scaled operands must be block tensors (not scalars)")
    if given != _FP4 and given not in _FORMATS:
        raise ValueError(f"NYI: {side}_format {given}")
    if given == _FP4 and block.element is not uint8:
        raise ValueError(f"e2m1 format must be packed as uint8. Got {block.element}")
    if given != _FP4 and not operand.k_pack:
        raise ValueError("only mxfp4 inputs can be packed along a dimension different than K")
    if given != _FP4 and block.element not in (_FORMATS[given], _bits_of(given)):
        raise ValueError(f"Unexpected dtype for {given}. Got {block.element}")


def _check_scale(operand: _Operand, *, is_nvfp4: bool) -> None:
    scale = operand.scale
    if scale is None or scale.element in (uint8, int8):
        return
    subject = f"tl.dot_scaled with {operand.side}_scale of {scale.element}"
    if scale.element is not float8e4nv or not is_nvfp4:
        raise UnsupportedError(
            f"{subject} is not supported: only e8m0 is, in bytes, and e4m3 of nvfp4, where both "
            "operands are e2m1 in groups of 16"
        )
    if np.signbit(scale.values).any():
        raise UnsupportedError(f"{subject} is not supported where it has a sign: nvfp4's have none")


def _bits_of(given: str) -> ElementType:
    return uint8 if _FORMATS[given].bits == 8 else uint16


def _elements(operand: _Operand) -> Array:
    """Return the unpacked elements in float32."""
    block = operand.block
    if operand.format != _FP4:
        own = _FORMATS[operand.format]
        return np.asarray((block if block.element is own else bitcast_to(block, own)).values)
    along = -2 if operand.k_pack == operand.is_rhs else -1
    packed = np.moveaxis(block.values, along, -1)
    codes = np.stack([packed & 0xF, packed >> 4], axis=-1)
    values = _FP4_VALUES[codes.reshape(*packed.shape[:-1], -1)]
    return np.moveaxis(values, -1, along)


def _factor(operand: _Operand, inner: int) -> int:
    """Return the number of elements along K that share a scale.

    Raises:
        ValueError: The scale's shape does not fit; the text is the compiler's.
    """
    assert operand.scale is not None, "only those with scales are asked"
    shape = operand.block.shape
    outer = shape[-1] if operand.is_rhs else shape[-2]
    outer *= 2 if operand.format == _FP4 and not operand.k_pack else 1
    given = tuple(operand.scale.shape)
    factor = inner // given[-1] if given else 0
    if factor not in (16, 32):
        raise ValueError(f"scale factor must be 16 or 32. Got {factor}")
    if given[-2:] != (outer, inner // factor):
        raise ValueError(
            f"{operand.side}_scale must be a tensor of shape [..., {outer}, {inner // factor}]. "
            f"Got {list(given)}"
        )
    return factor


def _scaled(operand: _Operand, values: Array, formats: tuple[str, str]) -> Array:
    """Multiply elements by their scales."""
    if operand.scale is None:
        return values
    if operand.scale.element is float8e4nv:
        scales = np.asarray(operand.scale.values, np.float32)
    else:
        scales = _powers(operand.scale.values.view(np.uint8), has_fp16="fp16" in formats)
    inner = values.shape[-2 if operand.is_rhs else -1]
    scales = np.repeat(scales, inner // scales.shape[-1], axis=-1)
    result: Array = values * (np.swapaxes(scales, -1, -2) if operand.is_rhs else scales)
    return result


def _powers(given: Array, *, has_fp16: bool) -> Array:
    """Decode e8m0 bytes."""
    bits = given.astype(np.uint32) << np.uint32(23)
    if not has_fp16:
        bits = np.maximum(bits, np.uint32(1 << 22))
    return np.where(bits == 0xFF << 23, np.float32(np.nan), bits.view(np.float32))


def _count_scaled(formats: tuple[str, str], result: Array, inner: int) -> None:
    programs = machine.now()
    copies = len(programs) if len(result) == 1 else 1
    target = target_of(programs.device.spec)
    is_native = target.arch in _NATIVE_ON_AMD or (
        target.backend == "cuda" and int(target.arch) >= _NATIVE_FROM
    )
    if is_native and not {"bf16", "fp16"} & set(formats):
        computed = float8e4nv
    else:
        computed = float16 if "fp16" in formats else bfloat16
    flops = 2 * result.size * inner * copies
    rows, columns = result.shape[-2:]
    counted = machine.Dot(computed.name, rows, columns, inner)
    programs.statistics.count_flops(counted, flops, result.size // len(result))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dot": dot,
    "dot_scaled": dot_scaled,
}
