"""What gloo's process group checks of a call's tensors and roots, in its words.

Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp of torch 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def check_root(call: str, root: int, size: int) -> None:
    """Check the root of a call.

    Raises:
        RuntimeError: It is no member's.
    """
    if not 0 <= root < size:
        raise RuntimeError(f"ProcessGroupGloo::{call}: invalid root rank: {root}")


def check_length(call: str, inputs: Sequence[object], size: int) -> None:
    """Check that there is an input for each member.

    Raises:
        RuntimeError: There is not.
    """
    if len(inputs) != size:
        raise RuntimeError(
            f"ProcessGroupGloo::{call}: input tensor list size {len(inputs)} does not match "
            f"world size {size}"
        )


def check_gathered(output: torch.Tensor, source: torch.Tensor, size: int) -> None:
    """Check that each member's part of an output has the source's shape.

    Raises:
        RuntimeError: One has another, or there are fewer parts.
    """
    if not output.ndim:
        raise RuntimeError("chunk expects at least a 1-dimensional tensor")
    num_rows = output.shape[0]
    rows = -(-num_rows // size)  # Of all parts but the last.
    num_parts = -(-num_rows // rows) if rows else size
    if num_parts != size:
        raise RuntimeError(
            "ProcessGroupGloo::allgather: invalid output tensor list at index 0 "
            f"(expected length {size}, got {num_parts})"
        )
    for index, got in ((0, rows), (size - 1, num_rows - rows * (size - 1))):
        part = (got, *output.shape[1:])
        if part != tuple(source.shape):
            raise RuntimeError(
                f"ProcessGroupGloo::allgather: invalid tensor size at index {index} "
                f"(expected ({_listed(source.shape)}), got ({_listed(part)}))"
            )


def check_scattered(output: torch.Tensor, source: torch.Tensor, size: int) -> None:
    """Check that a source has the output's rows once per member.

    Raises:
        RuntimeError: It has not.
    """
    if output.ndim and source.ndim and output.shape[0] * size != source.shape[0]:
        raise RuntimeError(
            "Check failed: outputShape[0] * worldSize == inputShape[0] "
            f"({output.shape[0] * size} vs. {source.shape[0]}). "
        )


def _listed(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))
