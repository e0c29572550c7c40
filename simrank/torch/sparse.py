"""The all_reduce of sparse tensors, which gloo has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from simrank.distributed import lists
from simrank.distributed.reduce_op import ReduceOp
from simrank.torch.buffers import buffer_of, buffers_of
from simrank.torch.work import SimulatedWork

if TYPE_CHECKING:
    from simrank.distributed.api import Op
    from simrank.distributed.group import ProcessGroup


def all_reduce_sparse(group: ProcessGroup, tensor: torch.Tensor, op: Op) -> SimulatedWork:
    """Sum sparse tensors: numbers of entries, indices and values are gathered, as gloo does it.

    Simulated cost: three all_gathers, the last two of the longest member's size. Source: torch 2.13
    `ProcessGroupGloo.cpp`, AsyncSparseAllreduceWork.

    Raises:
        RuntimeError: Another reduction than a sum; gloo's words.
    """
    if op is not ReduceOp.SUM:
        raise RuntimeError("unsupported reduction operation for sparse allreduce")
    own = tensor.coalesce()
    counts = _gathered(group, torch.tensor([own._nnz()]))  # noqa: SLF001 - torch's name
    longest = max(int(count) for count in counts)
    total = torch.sparse_coo_tensor(size=own.shape, dtype=own.dtype)
    if longest:
        indices = _gathered(group, _padded(own.indices().t(), longest))
        values = _gathered(group, _padded(own.values(), longest))
        for count, index, value in zip(counts, indices, values, strict=True):
            part = index[: int(count)].t(), value[: int(count)]
            total = total + torch.sparse_coo_tensor(*part, own.shape)
    tensor.copy_(total.coalesce())
    return SimulatedWork((), [tensor])


def _padded(rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    padded = torch.zeros((num_rows, *rows.shape[1:]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _gathered(group: ProcessGroup, tensor: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.zeros_like(tensor) for _ in range(group.size())]
    lists.all_gather(buffers_of(parts), buffer_of(tensor), group)
    return parts
