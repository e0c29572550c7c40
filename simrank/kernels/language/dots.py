"""Matrix products: the compiler's types and limits, fp32 accumulation (rule K3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.kernels import machine
from simrank.kernels.language import numbers, shapes
from simrank.kernels.values.block import Block
from simrank.kernels.values.types import (
    ElementType,
    bfloat16,
    element_type,
    float16,
    float32,
    float64,
    int8,
    int32,
    uint8,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import triton.language as tl

    from simrank.kernels.machine.arrays import Value

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
        ours, theirs = (numbers.to_tf32(v, truncates=True) for v in (ours, theirs))
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


FUNCTIONS: dict[str, Callable[..., Any]] = {"dot": dot}
