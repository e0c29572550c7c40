"""Process groups of torch on simrank's calls: errors, times, names; numbers are in conformance."""

import shutil
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from simrank.errors import CollectiveMismatchError, DeadlockError, SpawnException, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # New names of collectives.


def error_of(failure):
    """Return what the lowest rank raised."""
    return failure.value.errors[min(failure.value.errors)]


def test_an_all_reduce_takes_the_time_of_simranks_own(spawn):
    """The same cluster, algorithm and bytes: the same picoseconds."""
    import simrank.distributed as own

    def torchs(rank):
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1 << 16))

    def simranks(rank, ctx_of):
        own.init_process_group("gloo")
        import simrank

        own.all_reduce(simrank.ones(1 << 16, device="cpu"))

    assert spawn(torchs, 4).now_ps == spawn(simranks, 4, None).now_ps > 0


def test_calls_that_differ_are_shown_side_by_side(spawn):
    """The differing column, each rank's line in the program."""

    def program(rank):
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(3 + rank))

    with pytest.raises(SpawnException) as failure:
        spawn(program)
    error = error_of(failure)
    assert isinstance(error, CollectiveMismatchError)
    assert "count" in str(error)
    assert "test_group.py" in str(error)


def test_a_hang_names_the_users_lines_and_not_torchs(spawn):
    """Skipped by one rank, and the report says which."""

    def program(rank):
        dist.init_process_group("gloo")
        if rank != 2:
            dist.all_reduce(torch.ones(3))

    with pytest.raises(DeadlockError) as failure:
        spawn(program, 4)
    text = str(failure.value)
    assert "deadlock (proved)" in text
    assert "test_group.py" in text
    assert "distributed_c10d" not in text
    assert "rank 2" in text


def test_a_time_limit_of_the_programs_own_fires_in_simulated_time(spawn):
    """Torch's error, at the limit; the default limits never do."""

    def program(rank):
        dist.init_process_group("gloo", timeout=timedelta(seconds=2))
        if rank == 0:
            with pytest.raises(RuntimeError, match="Timed out waiting 2000ms"):
                dist.all_reduce(torch.ones(3))

    context = spawn(program)
    assert context.now_ps >= 2 * 10**12


def test_a_cpu_tensor_has_no_place_in_nccl(spawn):
    """Torch's words."""

    def program(rank):
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(3))

    with pytest.raises(SpawnException) as failure:
        spawn(program)
    assert "No backend type associated with device type cpu" in str(error_of(failure))


def test_backends_that_are_not_simulated_are_refused_by_name(spawn):
    """As they would be missing."""

    def program(rank):
        dist.init_process_group("mpi")

    with pytest.raises(SpawnException, match="mpi"):
        spawn(program)


def test_gloo_wants_parts_of_the_inputs_shape(spawn):
    """Nccl would take it; gloo says what it expected."""

    def program(rank):
        dist.init_process_group("gloo")
        dist.all_gather_into_tensor(torch.empty(2, 3), torch.ones(3))

    with pytest.raises(SpawnException) as failure:
        spawn(program)
    assert "invalid tensor size at index 0 (expected (3), got (1, 3))" in str(error_of(failure))


def test_futures_are_done_and_chain(spawn):
    """`then` sees the value; a second future is the same."""
    seen = []

    def program(rank):
        dist.init_process_group("gloo")
        work = dist.all_reduce(torch.ones(2), async_op=True)
        future = work.get_future()
        seen.append(future.then(lambda done: done.value()[0].tolist()).wait())
        assert work.get_future() is future

    spawn(program)
    assert seen == [[2.0, 2.0]] * 2


def test_autograd_sees_that_listed_outputs_changed(spawn):
    """As gloo copies into them."""

    def program(rank):
        dist.init_process_group("gloo")
        outputs = [torch.zeros(2) for _ in range(2)]
        before = [tensor._version for tensor in outputs]
        dist.all_gather(outputs, torch.ones(2))
        assert [tensor._version > old for tensor, old in zip(outputs, before, strict=True)]

    spawn(program)


def test_nccl_takes_tensors_in_channels_last_order(spawn):
    """Elements move as they lie in memory; tensors with gaps, or transposed, are refused."""

    def tensor(rank, like=torch.channels_last):
        shape = (2, 3, 4, 2) if like is torch.channels_last else (2, 3, 4, 2, 1)
        values = torch.arange(48.0, device="cuda").reshape(shape) * (rank + 1)
        return values.to(memory_format=like)

    def program(rank):
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        for like in (torch.channels_last, torch.channels_last_3d):
            x = tensor(rank, like)
            dist.broadcast(x, 1)
            assert torch.equal(x, tensor(1, like))
            assert x.is_contiguous(memory_format=like)
        x = tensor(rank)
        dist.all_reduce(x)
        assert torch.equal(x, tensor(2))
        gathered = torch.empty(4, 3, 4, 2, device="cuda").to(memory_format=torch.channels_last)
        dist.all_gather_into_tensor(gathered, tensor(rank))
        assert torch.equal(gathered, torch.cat([tensor(0), tensor(1)]))
        exchanged = tensor(rank)
        dist.all_to_all_single(exchanged, tensor(rank))
        assert torch.equal(exchanged, torch.cat([tensor(r)[rank : rank + 1] for r in range(2)]))
        for wrong in (tensor(rank)[:, :2], torch.ones(3, 2, device="cuda").t()):
            with pytest.raises(ValueError, match="broadcast: Tensors must be contiguous"):
                dist.broadcast(wrong, 0)

    spawn(program, 2)


def test_orders_in_memory_that_differ_scramble_a_broadcast(spawn):
    """As on GPUs and with gloo: each member fills its tensor in its own order."""
    seen = []

    def program(rank, backend):
        dist.init_process_group(backend)
        device = "cpu" if backend == "gloo" else f"cuda:{rank}"
        x = torch.arange(16.0, device=device).reshape(1, 2, 2, 4)
        if rank == 0:
            x = x.to(memory_format=torch.channels_last)
        dist.broadcast(x, 1)
        if rank == 0:
            seen.append(x.permute(0, 2, 3, 1).flatten().tolist())

    for backend in ("gloo", "nccl"):
        spawn(program, 2, backend)
    assert seen == [list(range(16))] * 2


# ---- process groups that a program makes as instances of their classes, and calls on groups ----


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
    assert "test_group.py" in str(raised.value)


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
    before = dist.is_backend_available("nccl2")  # CUDA builds since 2.14 have one.

    def program(rank):
        names = ("nccl2", "nccl", "gloo", "cpu:gloo,cuda:nccl2", "nccl3")
        assert [dist.is_backend_available(name) for name in names] == [True] * 4 + [False]
        dist.init_process_group("nccl2")
        group = dist.new_group([0, 1], backend="nccl2")
        x = torch.ones(1, device=f"cuda:{rank}")
        dist.all_reduce(x, group=group)
        assert (x.item(), dist.get_backend(group)) == (2.0, "nccl2")

    spawn(program, 2)
    assert dist.is_backend_available("nccl2") == before
