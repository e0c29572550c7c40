"""What `torch.cuda.comm`, and so `DataParallel`, has in C++: copies between one rank's devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOST = -1


def _on(device: int) -> torch.device:
    return torch.device("cpu") if device == _HOST else torch.device("cuda", device)


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    """Return the tensor on each device; where it is already, the tensor itself."""
    return [tensor.to(_on(device), non_blocking=True) for device in devices]


def broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy the tensor into each of `out`."""
    return [target.copy_(tensor, non_blocking=True) for target in out]


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor],
    devices: Sequence[int],
    buffer_size: int,  # noqa: ARG001 - torch's signature.
) -> list[list[torch.Tensor]]:
    """Return all tensors on each device."""
    return [[broadcast(tensor, [device])[0] for tensor in tensors] for device in devices]


def _chunks(
    tensor: torch.Tensor, count: int, sizes: Sequence[int] | None, dim: int
) -> list[torch.Tensor]:
    if sizes is None:
        return list(tensor.chunk(count, dim))
    return list(tensor.split_with_sizes(list(sizes), dim))


def scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[torch.Stream | None] | None = None,
) -> list[torch.Tensor]:
    """Return one chunk on each device, copied on its stream if there is one."""
    chunks = _chunks(tensor, len(devices), chunk_sizes, dim)
    results = []
    for index, (chunk, device) in enumerate(zip(chunks, devices, strict=False)):
        stream = streams[index] if streams else None
        with torch.cuda.stream(stream):  # type: ignore[arg-type]
            results.append(chunk.contiguous().to(_on(device), non_blocking=True))
    return results


def scatter_out(
    tensor: torch.Tensor,
    out: Sequence[torch.Tensor],
    dim: int = 0,
    streams: Sequence[torch.Stream | None] | None = None,  # noqa: ARG001 - torch's signature.
) -> list[torch.Tensor]:
    """Copy one chunk into each of `out`."""
    chunks = _chunks(tensor, len(out), [target.size(dim) for target in out], dim)
    return [target.copy_(chunk) for target, chunk in zip(out, chunks, strict=True)]


def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    """Return the tensors side by side on one device, by default the current one."""
    device = torch.cuda.current_device() if destination is None else destination
    return torch.cat([tensor.to(_on(device)) for tensor in tensors], dim)


def gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    """Write the tensors side by side into `out`."""
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))


FUNCTIONS = {
    "_broadcast": broadcast,
    "_broadcast_out": broadcast_out,
    "_broadcast_coalesced": broadcast_coalesced,
    "_scatter": scatter,
    "_scatter_out": scatter_out,
    "_gather": gather,
    "_gather_out": gather_out,
}
