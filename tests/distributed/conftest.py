"""Symmetric memory that several files of tests begin with."""

import pytest

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem


@pytest.fixture
def met():
    """Return what gives a rank a symmetric buffer and its handle."""

    def meet(ctx, size=16, dtype=simrank.float32, group=None):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(size, dtype=dtype, device="cuda")
        return buffer, symm_mem.rendezvous(buffer, group)

    return meet
