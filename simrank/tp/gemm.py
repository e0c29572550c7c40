"""Matrix products as a Triton kernel: fp16, bf16 and other floats, accumulated in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import triton
import triton.language as tl

from simrank.device.tensors import factories
from simrank.ranks import require_program

if TYPE_CHECKING:
    from simrank.device import Tensor

_BLOCK_M, _BLOCK_N, _BLOCK_K = 128, 128, 32


@triton.jit  # type: ignore[untyped-decorator]
def matmul_kernel(
    a_ptr: Any,
    b_ptr: Any,
    c_ptr: Any,
    num_rows: Any,
    num_columns: Any,
    num_inner: Any,
    stride_am: Any,
    stride_ak: Any,
    stride_bk: Any,
    stride_bn: Any,
    BLOCK_M: tl.constexpr,  # noqa: N803 - as Triton kernels are written
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
) -> None:
    """Write c = a @ b; c is contiguous, a and b have any strides.

    Shapes:
        a: [num_rows, num_inner]
        b: [num_inner, num_columns]
        c: [num_rows, num_columns]
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    in_rows = rows[:, None] < num_rows
    in_columns = columns[None, :] < num_columns
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, num_inner, BLOCK_K):
        depths = start + inner
        a_ptrs = a_ptr + rows[:, None] * stride_am + depths[None, :] * stride_ak
        b_ptrs = b_ptr + depths[:, None] * stride_bk + columns[None, :] * stride_bn
        a = tl.load(a_ptrs, mask=in_rows & (depths[None, :] < num_inner), other=0.0)
        b = tl.load(b_ptrs, mask=in_columns & (depths[:, None] < num_inner), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    c_ptrs = c_ptr + rows[:, None] * num_columns + columns[None, :]
    tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=in_rows & in_columns)


class ContextOfKernels(Protocol):
    """The part of a Context that this module uses."""

    def launch(self, kernel: object, grid: object, *args: object, **kwargs: object) -> object:
        """Launch a Triton kernel on the current stream."""


def triton_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of a stack of rows with a matrix, by a Triton kernel.

    Shapes: (B any dims, k, n)
        left: [*B, k]
        right: [k, n], of any strides
        returns: [*B, n]

    Simulated cost: what the kernel did, and never less than the library takes.
    """
    rows = left.reshape(-1, left.shape[-1])
    num_rows, num_inner = rows.shape
    num_columns = right.shape[1]
    result = factories.empty((num_rows, num_columns), dtype=left.dtype, device=left.device)
    if result.numel():
        grid = (triton.cdiv(num_rows, _BLOCK_M), triton.cdiv(num_columns, _BLOCK_N))
        context = cast("ContextOfKernels", require_program("a Triton product").context)
        context.launch(
            matmul_kernel, grid, rows, right, result, num_rows, num_columns, num_inner,
            *rows.stride(), *right.stride(),
            BLOCK_M=_BLOCK_M, BLOCK_N=_BLOCK_N, BLOCK_K=_BLOCK_K, num_warps=8,
        )  # fmt: skip
    return result.reshape(*left.shape[:-1], num_columns)
