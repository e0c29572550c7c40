"""Process groups of torch on simrank's calls: errors, times, names; numbers are in conformance."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from simrank.errors import CollectiveMismatchError, DeadlockError, SpawnException

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
