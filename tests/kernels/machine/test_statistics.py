"""What a launch is counted to have done."""

import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
from simrank.kernels.machine import Dot, Extent, Statistics
from simrank.kernels.machine.statistics import collected, profile_of
from simrank.trace.kernel_report import headline


class Memory:
    """Stands for a storage."""

    address, size_bytes, device = 4096, 1024, None


def counted():
    statistics = Statistics()
    statistics.count(Memory(), 16, 12, Extent(4, 9, 4), writes=False)
    statistics.count(Memory(), 16, 16, Extent(2, 5, 4), writes=True)
    return statistics


def test_traffic_is_bytes_of_active_lanes_and_the_range_they_touch():
    """Lanes that are masked off move nothing; the range is in bytes, its end exclusive."""
    statistics = counted()
    (traffic,) = statistics.traffic.values()
    assert (traffic.read_bytes, traffic.written_bytes) == (48, 64)
    assert (traffic.low, traffic.high) == (8, 40)
    assert (statistics.num_lanes, statistics.num_masked_lanes) == (32, 4)


@pytest.mark.parametrize("what", ["traffic", "flops", "atomics"])
def test_what_is_rolled_back_is_not_counted(what):
    """Restored counts are those of the snapshot, but for the steps that were done in vain."""
    statistics = counted()
    before = statistics.snapshot()
    if what == "traffic":
        statistics.count(Memory(), 8, 8, Extent(0, 255, 4), writes=True)
    elif what == "flops":
        statistics.count_flops(Dot("fp16", 4, 4, 4), 1000, 16)
    else:
        statistics.count_atomics(7)
    assert statistics.snapshot() != before
    statistics.restore(before)
    assert statistics.snapshot() == before


# ---- what each line of a kernel did: counted where somebody collects, shown beside the source ----

PADS = {}


@triton.jit
def wait_for(address, value):
    while tl.atomic_add(address, 0, sem="acquire", scope="sys") != value:
        pass


@triton.jit
def pull(mine, peer, flag, peer_flag, out, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.atomic_add(peer_flag, 1, sem="release", scope="sys")
    wait_for(flag, 1)
    x = tl.load(peer + offs, mask=offs < n)
    y = tl.load(mine + offs, mask=offs < n)
    tl.store(out + offs, x + y, mask=offs < n)


@triton.jit
def scaled_dot(x, out, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    a = tl.load(x + offs)
    if tl.program_id(0) > 1:
        a = a * 2
    tl.store(out + tl.program_id(0) * BLOCK * BLOCK + offs, tl.dot(a, a))


def line_of(kernel, text):
    """Return the number of the line of a kernel that has some text."""
    (offset,) = [i for i, line in enumerate(kernel.raw_src) if text in line]
    return kernel.starting_line_number + offset


def exchange(rank, ctx):
    """Let rank 1 come late: rank 0 waits for it inside the kernel."""
    PADS[rank] = (ctx.zeros(4, dtype=simrank.int32), ctx.ones(100))
    dist.init_process_group("nccl")
    dist.barrier()
    if rank == 1:
        ctx.ones(1 << 26).mul_(1.0)
    out = ctx.empty(100)
    mine, peer = PADS[rank], PADS[1 - rank]
    pull[(1,)](mine[1], peer[1], mine[0], peer[0], out, 100, BLOCK=128)
    assert out.tolist() == [2.0] * 100


def test_bytes_masks_atomics_and_waiting_are_counted_per_line(run):
    """Of device functions too."""
    with collected() as found:
        run(exchange, 2)
    (kernel,) = found
    lines = {number: line for (_, number), line in kernel.lines.items()}
    peer_load = lines[line_of(pull, "load(peer")]
    assert peer_load.peer_bytes == {0: 400, 1: 400}
    assert peer_load.masked_share == 28 / 128
    assert lines[line_of(pull, "load(mine")].local_bytes == 800
    assert lines[line_of(pull, "atomic_add(peer_flag")].num_atomics == 2
    assert lines[line_of(wait_for, "while")].parked_ps > 50_000_000
    assert kernel.num_launches == 2


def test_what_a_split_has_undone_is_not_counted(run):
    """Each program counts once, however often its batch was tried."""

    def body(rank, ctx):
        x, out = ctx.ones(16, 16), ctx.empty(4, 16, 16)
        operation = scaled_dot[(4,)](x, out, BLOCK=16)
        assert out[3, 0, 0].item() == 64.0
        assert operation.num_splits == 1

    with collected() as found:
        run(body, 1)
    (kernel,) = found
    flops = {number: line.flops for (_, number), line in kernel.lines.items()}
    assert flops[line_of(scaled_dot, "tl.dot")] == 4 * 2 * 16**3


def test_nothing_is_counted_while_nobody_collects(run):
    """And collecting ends with its block."""
    with collected() as found:
        pass
    run(exchange, 2)
    assert found == []
    assert profile_of(pull) is None


def test_ranks_that_have_kernels_of_their_own_from_one_file_are_one():
    """Each rank executes a script by itself; the page shows the kernel once, and who waited."""
    with collected() as found, simrank.Context("hgx_h100") as ctx:

        def body(rank):
            own = triton.JITFunction(scaled_dot.fn)
            own[(2,)](ctx.ones(256), ctx.empty(512), BLOCK=16)
            ctx.cuda.synchronize()

        ctx.multiprocessing.spawn(body, nprocs=2)
    (kernel,) = found
    assert (kernel.num_launches, kernel.ranks) == (2, {0, 1})
    assert "2 launch(es) on ranks 0-1, 4 programs" in headline(kernel)
