"""Tests for DTensors, and their parts, without an import of them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeGuard

    import torch
    from torch.distributed.tensor import DTensor


def is_dtensor(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """Return whether a tensor is a DTensor."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return a rank's part of a tensor, without a gradient of its own if it is a DTensor."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor  # noqa: SLF001 - torch's name


def part_of(value: torch.Tensor, like: DTensor) -> torch.Tensor:
    """Return the part of a whole tensor that a rank has of one placed like a DTensor."""
    layout: Any = import_module("torch.distributed.tensor._utils")
    shape, offset = layout.compute_local_shape_and_global_offset(
        like.shape, like.device_mesh, like.placements
    )
    for dim, (start, size) in enumerate(zip(offset, shape, strict=True)):
        value = value.narrow(dim, start if size else 0, size)
    return value
