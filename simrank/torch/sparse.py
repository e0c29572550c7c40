"""The all_reduce of sparse tensors, which gloo has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from simrank.distributed import api
from simrank.torch.buffers import buffer_of, buffers_of
from simrank.torch.work import SimulatedWork

if TYPE_CHECKING:
    from simrank.distributed.group import ProcessGroup


def all_reduce_sparse(group: ProcessGroup, tensors: list[torch.Tensor]) -> SimulatedWork:
    """Sum sparse tensors as gloo does it: it gathers their shapes, then indices and values.

    Several tensors of a rank are summed first, and all of them get the result.

    Simulated cost: three all_gathers, the last two of the longest member's size. Source: torch 2.13
    `ProcessGroupGloo.cpp`, AsyncSparseAllreduceWork.

    Raises:
        RuntimeError: Shapes differ from member to member; gloo's words.
    """
    first, *others = tensors
    own = sum(others, start=first).coalesce()
    facts = [own._nnz(), *_padded_shape(own)]  # noqa: SLF001 - torch's name
    told = _gathered(group, torch.tensor(facts))
    if any(each[1:].tolist() != facts[1:] for each in told):
        raise RuntimeError("Sparse dimensions do not match")
    counts = [int(each[0]) for each in told]
    longest = max(counts)
    total = torch.sparse_coo_tensor(size=own.shape, dtype=own.dtype)
    if longest:
        indices = _gathered(group, _padded(own.indices().t(), longest))
        values = _gathered(group, _padded(own.values(), longest))
        for count, index, value in zip(counts, indices, values, strict=True):
            part = index[:count].t(), value[:count]
            total = total + torch.sparse_coo_tensor(*part, own.shape)
    for tensor in tensors:
        tensor.copy_(total.coalesce())
    return SimulatedWork((), tensors)


def _padded_shape(tensor: torch.Tensor) -> list[int]:
    """Return the sparse sizes of a tensor, and its dense ones, four of each at most as in gloo."""
    sizes, num_sparse = list(tensor.shape), tensor.sparse_dim()
    sparse, dense = sizes[:num_sparse], sizes[num_sparse:]
    return [*sparse, *[0] * (4 - len(sparse)), *dense, *[0] * (4 - len(dense))]


def _padded(rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    padded = torch.zeros((num_rows, *rows.shape[1:]), dtype=rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _gathered(group: ProcessGroup, tensor: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.zeros_like(tensor) for _ in range(group.size())]
    api.all_gather(buffers_of(parts), buffer_of(tensor), group)
    return parts
