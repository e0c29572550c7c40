"""Batches of messages are one operation of nccl."""

import shutil

import pytest
import torch

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import torch.distributed as dist

from simrank.errors import DeadlockError, SpawnException

LARGE = 1 << 20  # Too large to be buffered: a send alone waits for its receiver.


@pytest.mark.parametrize("group_backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_the_order_within_a_batch_is_free(spawn, group_backend):
    """All receive first, which would hang one by one; ranks list their peers as they like."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group(group_backend)
        size = dist.get_world_size()
        x = torch.full((LARGE,), float(rank), device="cuda")
        got = [torch.empty_like(x) for _ in range(size)]
        peers = [peer for peer in range(size) if peer != rank]
        calls = [dist.P2POp(dist.irecv, got[peer], peer) for peer in peers]
        calls += [dist.P2POp(dist.isend, x, peer) for peer in peers[:: 1 if rank % 2 else -1]]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        for peer in peers:
            assert (got[peer] == peer).all()

    spawn(program, 3)


def test_a_rank_sends_to_itself_within_a_batch(spawn):
    """As NCCL allows inside of a group, and nowhere else."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        x, y = torch.full((4,), rank + 1.0, device="cuda"), torch.zeros(4, device="cuda")
        calls = [dist.P2POp(dist.irecv, y, rank), dist.P2POp(dist.isend, x, rank)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        assert torch.equal(x, y)
        with pytest.raises(ValueError, match="same as the rank of the current process"):
            dist.isend(x, rank)

    spawn(program, 2)


def test_batches_that_wait_for_each_other_are_a_deadlock(spawn):
    """One after another on a stream: what comes in the first batch must not need the second."""

    def program(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        x, y = (torch.zeros(LARGE, device="cuda") for _ in range(2))
        receive, send = dist.P2POp(dist.irecv, y, 1 - rank), dist.P2POp(dist.isend, x, 1 - rank)
        for calls in ([receive], [send]):
            for work in dist.batch_isend_irecv(calls):
                work.wait()
        torch.cuda.synchronize()

    with pytest.raises((SpawnException, DeadlockError), match="deadlock"):
        spawn(program, 2)


def test_on_gloo_each_message_is_one(spawn):
    """And lists that are none are refused by torch's own words."""

    def program(rank):
        dist.init_process_group("gloo")
        x, y = torch.full((4,), float(rank)), torch.zeros(4)
        calls = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
        assert len([work.wait() for work in dist.batch_isend_irecv(calls)]) == 2
        assert (y == 1 - rank).all()
        with pytest.raises(ValueError, match="P2POp"):
            dist.batch_isend_irecv([3])

    spawn(program, 2)
