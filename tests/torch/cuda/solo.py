"""A process group of one rank in Python: every collective is a copy."""

from __future__ import annotations

from contextlib import contextmanager

import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future
from torch.testing._internal.distributed.fake_pg import FakeStore


def _done(value):
    future = Future()
    future.set_result(value)
    return _create_work_from_future(future)


class Solo(dist.ProcessGroup):
    def getBackendName(self):  # noqa: N802 - torch's name.
        return "solo"

    @property
    def pg_name(self):
        return dist.distributed_c10d._world.pg_names[self]

    group_name = pg_name

    def allreduce(self, tensors, _options=None):
        return _done(tensors)

    allreduce_coalesced = broadcast = reduce = allreduce

    def allgather(self, outputs, inputs, _options=None):
        for output, tensor in zip(outputs, inputs, strict=True):
            output[0].copy_(tensor)
        return _done(outputs)

    def _allgather_base(self, output, tensor, _options=None):
        output.view(-1).copy_(tensor.reshape(-1))
        return _done(output)

    _reduce_scatter_base = all_gather_single = reduce_scatter_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs, inputs, _options=None):
        for output, tensor in zip(outputs, inputs, strict=True):
            self._allgather_base(output, tensor)
        return _done(outputs)

    reduce_scatter_tensor_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(self, outputs, inputs, _options=None):
        for output, tensors in zip(outputs, inputs, strict=True):
            output.copy_(tensors[0])
        return _done(outputs)

    scatter = reduce_scatter

    gather = allgather

    def alltoall_base(self, output, tensor, _out_sizes, _in_sizes, _options=None):
        output.copy_(tensor)
        return _done(output)

    def barrier(self, _options=None):
        return _done([])

    def getSize(self):  # noqa: N802 - torch's name.
        return 1

    size = getSize

    def rank(self):
        return 0


@contextmanager
def group():
    if "solo" not in dist.Backend.backend_list:
        dist.Backend.register_backend(
            "solo", lambda _store, rank, size, _timeout: Solo(rank, size), devices=["cpu", "cuda"]
        )
    dist.init_process_group("solo", store=FakeStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
