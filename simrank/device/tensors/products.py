"""Products of tensors: matmul and its relatives, at their flops."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from simrank.device.tensors import arithmetic
from simrank.device.tensors.shapes import broadcast
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device.tensors.tensor import Tensor

_CPP_NAMES = {
    "float64": "double", "float32": "float", "float16": "c10::Half", "bfloat16": "c10::BFloat16",
    "int64": "long long", "int32": "int", "int16": "short", "int8": "signed char",
    "uint8": "unsigned char",
}  # fmt: skip


def matmul(tensor: Tensor, other: Tensor) -> Tensor:
    """Return the matrix product; 16-bit types accumulate in float32, the result is rounded once.

    Shapes: vectors and stacks of matrices are taken as in torch.

    Raises:
        RuntimeError: Sizes or types do not fit; torch's words.

    Simulated cost: a kernel of 2 flops per element of the result and of the inner dim.
    """
    if tensor.ndim == 0 or other.ndim == 0:
        raise RuntimeError(
            "both arguments to matmul need to be at least 1D, but they are "
            f"{tensor.ndim}D and {other.ndim}D"
        )
    if tensor.dtype is not other.dtype:
        names = [_CPP_NAMES.get(x.dtype.name, x.dtype.name) for x in (tensor, other)]
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {names[0]} != {names[1]}"
        )
    if tensor.shape[-1:] != other.shape[-2:][:1]:
        raise RuntimeError(
            "mat1 and mat2 shapes cannot be multiplied "
            f"({'x'.join(map(str, tensor.shape))} and {'x'.join(map(str, other.shape))})"
        )
    batch = broadcast(tensor.shape[:-2], other.shape[:-2])
    shape = (*batch, *tensor.shape[-2:-1], *other.shape[-1:][: other.ndim - 1])
    flops = 2 * prod(shape) * tensor.shape[-1]
    return arithmetic.produce(
        "matmul", np.matmul, (tensor, other), shape, tensor.dtype,
        flops=flops, product=_product(tensor, other, batch),
    )  # fmt: skip


def _product(tensor: Tensor, other: Tensor, batch: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return a product's shape as a library sees it: a stack times one matrix is one product."""
    rows = tensor.shape[-2] if tensor.ndim > 1 else 1
    columns = other.shape[-1] if other.ndim > 1 else 1
    if other.ndim <= 2:
        return 1, prod(batch) * rows, columns, tensor.shape[-1]
    return prod(batch), rows, columns, tensor.shape[-1]


def mm(tensor: Tensor, mat2: Tensor) -> Tensor:
    """Return the product of two matrices; see `matmul`."""
    for name, matrix in (("self", tensor), ("mat2", mat2)):
        if matrix.ndim != 2:
            raise RuntimeError(f"{name} must be a matrix")
    return matmul(tensor, mat2)


def bmm(tensor: Tensor, mat2: Tensor) -> Tensor:
    """Return the products of two stacks of matrices; see `matmul`."""
    for name, batch in (("batch1", tensor), ("batch2", mat2)):
        if batch.ndim != 3:
            raise RuntimeError(f"{name} must be a 3D tensor")
    if tensor.shape[0] != mat2.shape[0]:
        raise RuntimeError(f"bmm of {tensor.shape[0]} and {mat2.shape[0]} matrices")
    return matmul(tensor, mat2)


def mv(tensor: Tensor, vec: Tensor) -> Tensor:
    """Return the product of a matrix and a vector; see `matmul`."""
    if (tensor.ndim, vec.ndim) != (2, 1):
        raise RuntimeError(f"vector + matrix @ vector expected, got {tensor.ndim}, {vec.ndim}")
    return matmul(tensor, vec)


def dot(tensor: Tensor, other: Tensor) -> Tensor:
    """Return the inner product of two vectors; see `matmul`."""
    if (tensor.ndim, other.ndim) != (1, 1):
        raise RuntimeError(f"1D tensors expected, but got {tensor.ndim}D and {other.ndim}D tensors")
    return matmul(tensor, other)


def outer(tensor: Tensor, vec2: Tensor) -> Tensor:
    """Return the products of every element of one vector with every element of another."""
    return tensor.unsqueeze(1) * vec2


def addmm(
    tensor: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Return `beta * tensor + alpha * mat1 @ mat2` in one kernel; see `matmul`."""
    shape = (mat1.shape[0], mat2.shape[1])
    if mat1.shape[1] != mat2.shape[0]:
        raise RuntimeError(
            "mat1 and mat2 shapes cannot be multiplied "
            f"({'x'.join(map(str, mat1.shape))} and {'x'.join(map(str, mat2.shape))})"
        )
    if not tensor.dtype is mat1.dtype is mat2.dtype:
        raise RuntimeError("addmm: expected self, mat1 and mat2 to have the same dtype")
    if broadcast(tensor.shape, shape) != shape:
        raise RuntimeError(
            f"The expanded size of the tensor {list(shape)} must match the existing size "
            f"{list(tensor.shape)}"
        )

    def compute(bias: arithmetic.Array, left: arithmetic.Array, right: arithmetic.Array) -> object:
        kind = left.dtype.type
        return kind(beta) * bias + kind(alpha) * np.matmul(left, right)

    flops = 2 * prod(shape) * mat1.shape[1]
    return arithmetic.produce(
        "addmm", compute, (tensor, mat1, mat2), shape, mat1.dtype,
        flops=flops, product=(1, *shape, mat1.shape[1]),
    )  # fmt: skip


def einsum(equation: str, *operands: Tensor | Sequence[Tensor]) -> Tensor:
    """Return numpy's einsum of the tensors; named indices only.

    Raises:
        UnsupportedError: The equation has an ellipsis.
        RuntimeError: An index has two sizes, or the types differ.

    Simulated cost: a kernel of 2 flops for every combination of the indices.
    """
    if "..." in equation:
        raise UnsupportedError("einsum with '...' is not supported; name every index")
    first = operands[0]
    tensors: list[Tensor] = list(operands if hasattr(first, "storage") else first)  # type: ignore[arg-type]
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for letters, tensor in zip(inputs.split(","), tensors, strict=True):
        for letter, size in zip(letters, tensor.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise RuntimeError(f"einsum(): index {letter} has sizes {sizes[letter]} and {size}")
    if len({tensor.dtype.name for tensor in tensors}) > 1:
        raise RuntimeError("einsum(): operands must have the same dtype")
    if not arrow:
        output = "".join(c for c in sorted(sizes) if inputs.count(c) == 1)
    shape = [sizes[letter] for letter in output]

    def compute(*arrays: arithmetic.Array) -> object:
        return np.einsum(f"{inputs}->{output}", *arrays)

    flops = 2 * prod(sizes.values())
    return arithmetic.produce("einsum", compute, tensors, shape, tensors[0].dtype, flops=flops)
