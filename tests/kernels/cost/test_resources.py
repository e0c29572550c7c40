"""No kernel is faster than what it needs of memory, links, tensor cores and vector units."""

import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank
from simrank.kernels import cost, machine

DEVICES = {name: simrank.Context(name).devices for name in ("hgx_h100", "hgx_a100", "mi300x")}


@triton.jit
def busy(x, y, n, stride, rounds, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    at = tl.program_id(0) * BLOCK * PARTS + tl.arange(0, BLOCK)
    for part in range(PARTS):
        inside = at + part * BLOCK < n
        values = tl.load(x + (at + part * BLOCK) * stride, mask=inside, other=0.0)
        for _ in range(rounds):
            values = tl.exp2(values) * 0.5
        tl.store(y + at + part * BLOCK, values, mask=inside)


@triton.jit
def put(x, peers, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    peer = tl.load(peers).to(tl.pointer_type(tl.float32))
    tl.store(peer + at, tl.load(x + at))


@settings(max_examples=40, deadline=None)
@given(
    num_programs=st.integers(1, 300),
    block=st.sampled_from([64, 256, 1024]),
    parts=st.integers(1, 3),
    stride=st.sampled_from([1, 1, 2, 7]),
    rounds=st.integers(0, 2),
    mode=st.sampled_from(["batched", "tasks"]),
    cut=st.integers(0, 50),
)
def test_no_kernel_is_faster_than_its_resources(
    num_programs, block, parts, stride, rounds, mode, cut
):
    """Of any size, stride, mask and mode: bytes over bandwidth, operations over rates."""
    n = max(num_programs * block * parts - cut, 1)

    def body(rank, ctx):
        x, y = ctx.ones(n * stride), ctx.empty(n)
        done = ctx.launch(
            busy, (num_programs,), x, y, n, stride, rounds, BLOCK=block, PARTS=parts, mode=mode
        )
        ctx.synchronize()
        spec = ctx.cluster.device
        taken_s = done.cost.duration_ps / 1e12
        assert taken_s >= 2 * 4 * n / spec.memory_bandwidth_bytes_per_s
        clock = spec.peak_flops["float32"] / (2 * spec.fp32_lanes)
        assert taken_s >= rounds * n / (16 * clock)
        assert taken_s >= spec.kernel_floor_ps / 1e12

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=1)


@pytest.mark.parametrize("num_programs", [4, 66, 1056])
def test_programs_that_put_together_do_not_exceed_the_link(run, num_programs):
    """1,056 of them at once reached ten times the link's rate once."""
    import simrank.distributed as dist
    import simrank.distributed.symmetric_memory as symm_mem

    found = {}

    def body(rank, ctx):
        dist.init_process_group("nccl")
        n = num_programs * 1024
        target = symm_mem.empty(n)
        handle = symm_mem.rendezvous(target)
        if rank == 0:
            x = ctx.ones(n)
            peers = ctx.tensor([handle.buffer_ptrs[1]], dtype=ctx.int64)
            done = ctx.launch(put, (num_programs,), x, peers, BLOCK=1024)
            ctx.synchronize()
            found["rate"] = 4 * n / done.cost.duration_ps * 1e12
        dist.barrier()
        ctx.synchronize()
        if rank == 1:
            assert (target == 1).all().item()

    ctx = run(body, 2)
    link = float(ctx.devices[0].network.route_bandwidth_bytes_per_s(0, 1))
    assert 0 < found["rate"] <= link


class _Storage:
    """Stands for a storage of a device."""

    def __init__(self, address, size_bytes, device):
        self.address, self.size_bytes, self.device = address, size_bytes, device


@settings(max_examples=2000, deadline=None)
@given(
    name=st.sampled_from(sorted(DEVICES)),
    num_programs=st.integers(1, 100_000),
    ctas=st.integers(1, 8),
    num_bytes=st.integers(0, 1 << 34),
    waste=st.sampled_from([1.0, 2.0, 8.0]),
    peer_bytes=st.integers(0, 1 << 30),
    flops=st.integers(0, 1 << 44),
    operations=st.lists(st.integers(0, 1 << 40), min_size=3, max_size=3),
)
def test_costs_cover_every_resource(
    name, num_programs, ctas, num_bytes, waste, peer_bytes, flops, operations
):
    """A launch takes at least what each part of what it counts takes, alone at full rate."""
    devices = DEVICES[name]
    device, spec = devices[0], devices[0].spec
    found = machine.Statistics()
    count = num_bytes // 4
    if count:
        extent = machine.Extent(0, count - 1, 4, waste)
        found.count(_Storage(1, num_bytes, device), count, count, extent, writes=False)
    if peer_bytes >= 4:
        extent = machine.Extent(0, peer_bytes // 4 - 1, 4)
        storage = _Storage(2, peer_bytes, devices[1])
        found.count(storage, peer_bytes // 4, peer_bytes // 4, extent, writes=True)
    if flops:
        found.count_flops(machine.Dot("bf16", 128, 128, 64), flops, 128 * 128)
    found.operations = list(operations)
    launched = cost.Launched((num_programs, 1, 1), ctas, 4, 3)
    taken_s = cost.kernel_cost(found, device, launched).duration_ps / 1e12
    slack = 1 - 1e-9
    assert taken_s >= slack * 4 * count / spec.memory_bandwidth_bytes_per_s
    rate = float(device.network.route_bandwidth_bytes_per_s(0, 1))
    assert taken_s >= slack * (peer_bytes // 4 * 4) / rate
    assert taken_s >= slack * flops / spec.peak_flops["bfloat16"]
    clock = spec.peak_flops["float32"] / (2 * spec.fp32_lanes)
    fused, simple, special = operations
    per_clock = (fused / (2 * spec.fp32_lanes), simple / 64, special / 16)
    assert taken_s >= slack * sum(per_clock) / clock


@pytest.mark.parametrize("per_sm", [1, 2, 4])
def test_softmax_between_two_products_takes_its_time(per_sm):
    """Less of it where other programs of an SM are at other things meanwhile."""
    device = DEVICES["hgx_h100"][0]
    attention = machine.Statistics()
    attention.count_flops(machine.Dot("fp16", 128, 64, 64), 256 << 30, 128 * 64)
    attention.operations[machine.SPECIAL] = 1 << 30
    found = cost.kernel_cost(attention, device, cost.Launched((132 * per_sm, 1, 1), per_sm, 4, 3))
    assert 0.3 * found.tensor_ps < found.vector_ps < found.tensor_ps
    shown = (found.arithmetic_ps - found.tensor_ps) / found.vector_ps
    assert {1: 0.99, 2: 0.35, 4: 0.05}[per_sm] < shown < {1: 1.01, 2: 0.5, 4: 0.25}[per_sm]


@triton.jit
def tiles(a, b, c, K, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + start + inner[None, :])
        right = tl.load(b + (start + inner)[:, None] * N + columns[None, :])
        acc = tl.dot(left, right, acc)
    tl.store(c + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16))


@pytest.mark.parametrize("size", [256, 512, 1024])
def test_both_modes_take_as_long_where_nothing_waits(run, size):
    """Programs one by one have clocks of their own; together they get what there is."""
    found = {}

    def body(rank, ctx):
        for mode in ("batched", "tasks"):
            a, b, c = (ctx.ones(size, size).to(ctx.bfloat16) for _ in range(3))
            grid = (size // 64, size // 64)
            done = ctx.launch(tiles, grid, a, b, c, size, size, BM=64, BN=64, BK=64, mode=mode)
            ctx.synchronize()
            found[mode] = done.cost.duration_ps

    run(body, 1)
    assert found["tasks"] == pytest.approx(found["batched"], rel=0.2)
