"""Which device a communicator is on: that of the tensors, and never that of another rank."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import DistBackendError, SpawnException

CALLS = {
    "all_reduce": dist.all_reduce,
    "all_gather": lambda x: dist.all_gather([x.clone() for _ in range(4)], x),
    "objects": lambda _x: dist.all_gather_object([None] * 4, "text"),
    "async": lambda x: dist.all_reduce(x, async_op=True).wait(),
    "messages": lambda x: (
        dist.send(x, 1)
        if dist.get_rank() == 0
        else dist.recv(x, 0)
        if dist.get_rank() == 1
        else None
    ),
}


def duplicate(caught):
    """Return the one root cause, which is NCCL's refusal."""
    error = next(iter(caught.value.errors.values()))
    assert isinstance(error, DistBackendError)
    return error


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_two_ranks_on_one_device_are_refused_as_nccl_does(run, call):
    """With both calls and their lines; gloo takes it."""

    def program(rank, ctx, backend):
        dist.init_process_group(backend)
        ctx.cuda.set_device(0)
        call(ctx.ones(4))

    with pytest.raises(
        SpawnException, match="Duplicate GPU detected : rank 1 and rank 0"
    ) as caught:
        run(program, 4, "nccl")
    error = duplicate(caught)
    assert error.device == 0
    assert [state.ranks for state in error.uses] == [(0,), (1,)]
    assert isinstance(error, RuntimeError)
    run(program, 4, "gloo")


def test_gloo_sums_what_lies_on_one_device(run):
    """Each rank has a stream of its own there: none waits for another's."""
    sums = []

    def program(rank, ctx):
        dist.init_process_group("gloo")
        ctx.cuda.set_device(0)
        x = ctx.ones(4)
        works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        sums.append(x.tolist())

    run(program, 4)
    assert sums == [[64.0] * 4] * 4


def test_ranks_may_exchange_their_devices(run):
    """Nobody shares one then; the time is that of the devices in use, across nodes too."""
    ends_ps = {}

    def program(rank, ctx, first, step):
        dist.init_process_group("nccl")
        ctx.cuda.set_device(first + rank * step)
        for _ in range(2):
            x = ctx.ones(1 << 20)
            dist.all_reduce(x)
            assert x[0].item() == 4
        ends_ps[first, step] = ctx.now_ps

    cluster = {"name": "h100_ib", "nodes": 4}
    for first, step in ((0, 1), (3, -1), (0, 8), (4, 1)):
        run(program, 4, first, step, cluster=cluster)
    assert ends_ps[0, 1] == ends_ps[3, -1] == ends_ps[4, 1]
    assert ends_ps[0, 8] > 2 * ends_ps[0, 1], "over InfiniBand"


def test_a_message_takes_the_link_between_the_devices_in_use(run):
    """Also where the receiver's call comes later."""
    ends_ps = {}

    def program(rank, ctx, second):
        dist.init_process_group("nccl")
        ctx.cuda.set_device(second * rank)
        x = ctx.ones(1 << 28)
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        ctx.synchronize()
        ends_ps[second] = ctx.now_ps

    for second in (1, 8):
        run(program, 2, second, cluster={"name": "h100_ib", "nodes": 2}, data=False)
    assert ends_ps[8] > 2 * ends_ps[1]


def reduces(_rank, ctx, sets_device):
    """Sum something, on the current device."""
    dist.init_process_group("nccl")
    if sets_device:
        ctx.cuda.set_device(dist.get_rank())
    dist.all_reduce(ctx.ones(4))


@pytest.mark.parametrize("options", [{"strict": True}, {"default_device": 0}])
def test_a_forgotten_set_device_is_found_where_ranks_start_on_device_0(run, options):
    """As in torch; else a rank's own device is its current one from the start."""
    with pytest.raises(SpawnException, match="set_device") as caught:
        run(reduces, 2, False, **options)
    assert duplicate(caught).device == 0
    run(reduces, 2, True, **options)
    run(reduces, 2, False)


def test_a_barrier_before_set_device_is_no_mistake(run):
    """It runs on the rank's own device, as torch guesses; or on the one that it is given."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        dist.barrier()
        dist.barrier(device_ids=[rank + 4])
        with pytest.raises(TypeError, match="List"):
            dist.barrier(device_ids=rank)
        ctx.cuda.set_device(rank)
        dist.all_reduce(ctx.ones(4))
        dist.barrier()

    run(program, 4, default_device=0)


def test_a_collective_runs_on_its_tensors_device_whatever_the_current_one_is(run):
    """On the current stream of that device."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(4, device=f"cuda:{rank}")
        dist.all_reduce(x)
        assert x.tolist() == [2.0] * 4
        with pytest.raises(ValueError, match="different devices, cuda:0 and cuda:1"):
            both = [ctx.empty(4, device=f"cuda:{index}") for index in range(2)]
            dist.all_gather(both, both[0])

    run(program, 2, default_device=0)
    assert simrank.Context("hgx_h100").default_device is None


@pytest.mark.parametrize("call", ["all_reduce", "batch", "future", "message"])
def test_a_wait_holds_the_stream_of_the_tensors_device(run, call):
    """Whatever the current device is: what is computed next, there, comes behind it."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        ctx.cuda.set_device(0)
        x = ctx.ones(4, device=f"cuda:{rank + 4}")
        y = ctx.zeros(4, device=f"cuda:{rank + 4}")
        if call == "all_reduce":
            dist.all_reduce(x, async_op=True).wait()
            y = x * 2
        elif call == "future":
            dist.all_reduce(x, async_op=True).get_future().wait()
            y = x * 2
        elif call == "batch":
            ends = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
            for work in dist.batch_isend_irecv(ends):
                work.wait()
            y = y * 4
        else:
            for sends in (rank == 0, rank == 1):
                dist.send(x, 1 - rank) if sends else dist.recv(y, 1 - rank)
            y = y * 4
        assert y.tolist() == [4.0] * 4

    assert run(program, 2, races="error").races == []
