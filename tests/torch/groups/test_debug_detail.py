"""At debug level DETAIL members compare their calls, and all of them learn of a difference."""

import pytest
import torch
import torch.distributed as dist

from simrank.errors import DeadlockError

MISMATCH = "Detected mismatch between collectives on ranks. Rank "


@pytest.fixture
def detail(monkeypatch):
    """Ask for the checks as programs do."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_call_that_differs_raises_on_every_member(spawn, detail, backend):
    """With torch's text; the group goes on, as nothing was issued."""

    def program(rank):
        dist.init_process_group(backend)
        device = "cpu" if backend == "gloo" else f"cuda:{rank}"
        ones = torch.ones(2, device=device)
        calls = {
            r"TensorShape=\[2\].*, but Rank 2 .*TensorShape=\[3\].*shapes: 2vs 3": (
                lambda: dist.all_reduce(torch.ones(2 + (rank == 2), device=device))
            ),
            "TensorDtypes=Float.*, but Rank 2 .*TensorDtypes=Double.*dtypes: Floatvs Double": (
                lambda: dist.all_reduce(ones.double() if rank == 2 else ones)
            ),
            r"OpType=ALLREDUCE.*, but Rank 2 .*OpType=BARRIER\).*ALLREDUCEvs BARRIER": (
                lambda: dist.barrier() if rank == 2 else dist.all_reduce(ones)
            ),
        }
        for reported, call in calls.items():
            wanted = f"{MISMATCH}2 .*but Rank 0 " if rank == 2 else f"{MISMATCH}{rank} .*{reported}"
            with pytest.raises(RuntimeError, match=wanted) as caught:
                call()
            assert type(caught.value) is RuntimeError
        dist.all_reduce(ones)
        assert ones.tolist() == [3.0, 3.0]

    spawn(program, 3)


def test_groups_made_later_and_by_hand_are_checked_too(spawn, monkeypatch):
    """Each has its own number of calls."""

    def program(rank):
        dist.init_process_group("gloo")
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        group = dist.new_group([0, 1])
        store = dist.distributed_c10d._get_default_store()
        by_hand = dist.distributed_c10d._create_process_group_wrapper(
            dist.ProcessGroupGloo(store, rank, 2), "unused", store, rank, 2
        )
        dist.all_reduce(torch.ones(1), group=group)
        with pytest.raises(RuntimeError, match="SequenceNumber=1, OpType=ALLREDUCE"):
            dist.all_reduce(torch.ones(1 + rank), group=group)
        with pytest.raises(RuntimeError, match=MISMATCH):
            by_hand.allreduce([torch.ones(1 + rank)])

    spawn(program, 2)


def test_a_member_that_does_not_call_is_a_deadlock(spawn, detail):
    """The report names the group of the checks."""

    def program(rank):
        dist.init_process_group("gloo")
        if rank:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(DeadlockError, match="DETAIL"):
        spawn(program, 2)
