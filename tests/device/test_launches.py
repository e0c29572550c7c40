"""A device's launch queue: a host that runs too far ahead waits, in simulated time (D1)."""

from itertools import pairwise

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import DeadlockError
from simrank.multiprocessing import ProcessExitedException

SMALL = {"like": "hgx_h100", "count": 2, "launch_queue": 4, "source": "a test"}
CLUSTER = {
    "name": "small_queue",
    "device": SMALL,
    "switches": ["s"],
    "links": [
        {"between": ["each gpu", "s"], "bandwidth": "450 GB/s", "latency": "1 us", "source": "test"}
    ],
    "collectives": {
        "launch_latency": "5 us", "step_overhead": "0.6 us", "num_channels": 8,
        "buffer": "512 KiB", "source": "test",
    },
}  # fmt: skip


def host_times_us(cluster, num_kernels):
    """Return the host's clock after each launch of a long kernel."""
    times = []

    def program(rank, ctx):
        x = ctx.zeros(1 << 24)
        for _ in range(num_kernels):
            x.add_(1)
            times.append(ctx.engine.current_task().clock_ps / 1e6)
        ctx.cuda.synchronize()

    with simrank.Context(cluster, data=False) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=1)
    return times


def test_a_host_waits_for_the_first_kernel_once_the_queue_is_full():
    """Four launches go at once; each further one waits for the end of a kernel."""
    times = host_times_us(CLUSTER, 8)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    launch_us, kernel_us = gaps[0], gaps[-1]
    assert kernel_us > 10 * launch_us
    assert gaps[:2] == pytest.approx([launch_us] * 2)  # The zeros took the first place.
    assert gaps[4:] == pytest.approx([kernel_us] * 3)


def test_a_thousand_launches_fit_by_default():
    """1,024 are outstanding when the host first waits, and from then on it always does."""
    times = host_times_us("hgx_h100", 1100)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    first = next(index for index, gap in enumerate(gaps) if gap > 2 * gaps[0])
    assert all(gap > 2 * gaps[0] for gap in gaps[first + 1 :])
    num_ended = times[first] / gaps[-1]
    assert first + 2 - num_ended == pytest.approx(1024, abs=2)


def test_what_the_queue_waits_for_is_in_the_report():
    """A rank that runs ahead into a full queue is shown behind the collective that blocks it."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank == 1:
            return
        x = ctx.zeros(4)
        for _ in range(6):
            dist.all_reduce(x)

    with pytest.raises(DeadlockError) as caught, simrank.Context(CLUSTER) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    waiting = caught.value.waits[0]
    assert waiting.ranks == (0,)
    assert waiting.state.startswith("room in the launch queue (4 launches), behind all_reduce #1")
    assert waiting.file == __file__


def test_an_aborted_rank_leaves_room_for_the_next_program():
    """Its launches are dropped with it: the queue is empty afterwards."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank == 1:
            ctx.engine.sleep(10**9)
            raise ValueError("no")
        x = ctx.zeros(4)
        for _ in range(6):
            dist.all_reduce(x)

    with simrank.Context(CLUSTER) as ctx:
        with pytest.raises(simrank.multiprocessing.SpawnException):
            ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
        assert [device.launches.num_outstanding for device in ctx.devices] == [0]


def test_the_main_program_drives_the_engine_while_it_waits_for_room():
    """On the hub nobody else does."""
    with simrank.Context(CLUSTER) as ctx:
        x = ctx.zeros(16)
        for _ in range(20):
            x.add_(1)
        assert x.tolist() == [20.0] * 16


def test_a_wait_or_an_event_takes_no_room():
    """Only what runs on the device does."""
    with simrank.Context(CLUSTER) as ctx:
        stream = ctx.cuda.Stream()
        for _ in range(20):
            stream.record_event()
        assert ctx.devices[0].launches.num_outstanding == 0


def small_queue(capacity):
    """Return the cluster with a queue of another length."""
    return {**CLUSTER, "device": {**SMALL, "launch_queue": capacity}}


def test_a_launch_that_raises_takes_no_room():
    """A race at each of more launches than fit; the last read still comes through."""

    def program(rank, ctx):
        x, stream = ctx.ones(1000), ctx.cuda.Stream()
        ctx.cuda.synchronize()
        for line in range(6):  # A race is raised once for each pair of lines.
            with ctx.cuda.stream(stream):
                x.add_(1)
            source = compile("\n" * line + "x.mul_(2)", f"user{line}.py", "exec")
            with pytest.raises(simrank.errors.RaceError):
                exec(source, {"x": x})  # noqa: S102 - a line of its own each time
            ctx.cuda.synchronize()

    with simrank.Context(small_queue(4), races="error") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=1)
        assert ctx.devices[0].launches.num_outstanding == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_host_that_dies_on_its_way_to_free_room_leaves_it_to_the_next_one(seed):
    """Two ranks launch to one device; the one that was woken is killed before it launches."""
    done = []

    def program(rank, ctx):
        ctx.cuda.set_device(0)
        x = ctx.empty(1 << 20)
        if rank == 1:
            ctx.wait(ctx.timer(1_000_000))
        x.zero_()
        x.add_(1)
        ctx.cuda.synchronize()
        done.append(rank)

    faults = [{"kill": 0, "at": "6.99 us"}]
    options = {"on_failure": "continue", "faults": faults, "seed": seed}
    killed = pytest.raises(ProcessExitedException)
    with simrank.Context(small_queue(1), **options) as ctx, killed:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    assert done == [1]
