"""Process groups that a program makes as instances of their classes, and calls on groups."""

import shutil
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from simrank.errors import DeadlockError, SpawnException, UnsupportedError


def test_members_meet_in_a_store(spawn, tmp_path):
    """In any order of ranks, several times, before and beside a default group; no socket opens."""

    def program(rank):
        store = dist.FileStore(str(tmp_path / "store"), 3)
        group = dist.ProcessGroupGloo(store, rank, 3, timedelta(seconds=5))
        x = torch.tensor([rank + 1.0])
        group.allreduce([x]).wait()
        assert x == 6
        turned = dist.ProcessGroupGloo(dist.PrefixStore("b", store), 2 - rank, 3)
        y = torch.tensor([float(rank)])
        turned.broadcast([y], dist.BroadcastOptions()).wait()
        assert (turned.rank(), y.item()) == (2 - rank, 2)
        dist.init_process_group("gloo")
        again = dist.ProcessGroupGloo(store, rank, 3)
        again.allreduce(x).wait()
        assert x == 18
        assert isinstance(again, dist.ProcessGroup)
        dist.all_reduce(x)
        assert x == 54

    spawn(program, 3)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler for simulated devices")
def test_groups_of_nccl_are_made_by_hand_too(spawn):
    """With options of the class."""

    def program(rank):
        torch.cuda.set_device(rank)
        store = dist.TCPStore("localhost", 29999, 2, rank == 0)
        options = dist.ProcessGroupNCCL.Options()
        group = dist.ProcessGroupNCCL(store, rank, 2, options)
        x = torch.ones(2, device="cuda")
        group.allreduce(x).wait()
        assert x.sum() == 4

    spawn(program, 2)


def test_a_member_that_does_not_come_is_a_deadlock(spawn):
    """As the group is made, with the line."""

    def program(rank):
        if rank == 0:
            dist.ProcessGroupGloo(dist.FileStore("nowhere", 2), rank, 2)

    with pytest.raises((SpawnException, DeadlockError)) as raised:
        spawn(program, 2)
    assert "test_group_classes.py" in str(raised.value)


def test_outside_of_ranks_the_class_is_torchs_own(spawn):
    """Inside a Context, too."""
    kinds = []

    def program(rank):
        kinds.append(dist.ProcessGroupGloo.__name__)

    real = dist.ProcessGroupGloo
    spawn(program, 1)
    assert kinds == ["ProcessGroupGloo"]
    assert dist.ProcessGroupGloo is real


def test_several_tensors_of_one_process_are_refused(spawn):
    """With nccl, which takes one tensor of each rank."""

    def program(rank):
        dist.init_process_group("nccl")
        group, x = dist.group.WORLD, torch.ones(1, device=f"cuda:{rank}")
        for call in (group.allreduce, group.broadcast, group.reduce):
            with pytest.raises(UnsupportedError, match="a call with 2 tensors"):
                call([x, x])
            with pytest.raises(NotImplementedError, match="There were no tensor arguments"):
                call([])
        with pytest.raises(UnsupportedError, match="a call with 2 tensors"):
            group.allgather([[x, x], [x, x]], [x, x])

    spawn(program, 2)


def test_gaps_and_orders_in_memory_on_gloo(spawn):
    """It gathers from tensors with gaps; what it would scramble is refused."""

    def program(rank):
        dist.init_process_group("gloo")
        wide = torch.arange(12.0).reshape(3, 4) + rank
        part, whole = wide[:, :2], [torch.empty(3, 2) for _ in range(2)]
        dist.all_gather(whole, part)
        assert torch.equal(whole[1], wide[:, :2] - rank + 1)
        dist.gather(part, whole if rank == 0 else None)
        turned = [wide.t() for _ in range(2)]
        with pytest.raises(UnsupportedError, match=r"tensor\.contiguous\(\)"):
            dist.reduce_scatter(torch.empty(4, 3), turned)
        if rank == 0:
            with pytest.raises(UnsupportedError, match=r"tensor\.contiguous\(\)"):
                dist.scatter(torch.empty(4, 3), turned)

    spawn(program, 2)


def test_a_backend_is_an_instance_of_its_class(spawn):
    """The group of several backends is none; one that was made of a class is an instance of it."""

    def program(rank):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        group, kinds = dist.group.WORLD, (dist.ProcessGroupGloo, dist.ProcessGroupNCCL)
        by_hand = dist.ProcessGroupGloo(dist.distributed_c10d._get_default_store(), rank, 2)
        for instance, wanted in (
            (group, [False, False]),
            (group._get_backend(torch.device("cpu")), [True, False]),
            (group._get_backend(torch.device("cuda")), [False, True]),
            (by_hand, [True, False]),
        ):
            assert [isinstance(instance, kind) for kind in kinds] == wanted
        backend = group._get_backend(torch.device("cuda", rank))
        assert backend is group._get_backend(torch.device("cuda"))
        x = torch.ones(1, device=f"cuda:{rank}")
        backend.allreduce([x]).wait()
        assert x.item() == 2.0
        assert "nccl backend of <cpu:gloo,cuda:nccl group" in repr(backend)

    spawn(program, 2)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_time_limit_that_is_set_later_fires(spawn, backend):
    """For calls after it, in the words of the backend."""

    def program(rank):
        dist.init_process_group(backend)
        group = dist.group.WORLD
        device = torch.device("cpu" if backend == "gloo" else f"cuda:{rank}")
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3), group)
        assert group._get_backend(device).options._timeout == timedelta(seconds=3)
        if rank == 0:
            dist.all_reduce(torch.ones(1, device=device))
            torch.cuda.synchronize()
        else:
            time.sleep(5)

    with pytest.raises(SpawnException, match=r"3000 ?ms|Timeout\(ms\)=3000"):
        spawn(program, 2)


def test_a_longer_limit_for_calls_in_flight_is_refused_where_it_matters(spawn):
    """A default limit never fires, so that nothing has to change."""

    def program(rank):
        dist.init_process_group("nccl")
        add = dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs
        add(timedelta(seconds=1))
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3))
        with pytest.raises(UnsupportedError, match="time limit of its own"):
            add(timedelta(seconds=1))

    spawn(program, 2)


def test_nccl2_is_available_where_it_is_simulated(spawn):
    """It is a backend of groups, and one of those that are available."""

    def program(rank):
        names = ("nccl2", "nccl", "gloo", "cpu:gloo,cuda:nccl2", "nccl3")
        assert [dist.is_backend_available(name) for name in names] == [True] * 4 + [False]
        dist.init_process_group("nccl2")
        group = dist.new_group([0, 1], backend="nccl2")
        x = torch.ones(1, device=f"cuda:{rank}")
        dist.all_reduce(x, group=group)
        assert (x.item(), dist.get_backend(group)) == (2.0, "nccl2")

    spawn(program, 2)
    assert not dist.is_backend_available("nccl2")
