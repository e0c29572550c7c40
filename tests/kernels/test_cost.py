"""What a launch costs: roofline, waves, links, and never faster than the library's products."""

from math import ceil

import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank
from simrank.device.memory import Storage
from simrank.hardware.roofline import library_product_ps, started_ps
from simrank.kernels import cost, machine
from simrank.kernels.cost import (
    ATOMIC_PS,
    LOAD_PS,
    STORE_PS,
    AccessCosts,
    Work,
    num_beside,
    together_ps,
)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptr + rows[:, None] * K + (k + inner)[None, :])
        b = tl.load(b_ptr + (k + inner)[:, None] * N + columns[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16))


@triton.jit
def copy(x, y, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offs, tl.load(x + offs))


class _Storage:
    """Stands for a storage of a device."""

    def __init__(self, address, size_bytes, device):
        self.address, self.size_bytes, self.device = address, size_bytes, device


def statistics_of_a_product(device, m, n, k, tile):
    """Return what a Triton GEMM of these sizes would have counted."""
    found = machine.Statistics()
    for number, (rows, columns) in enumerate(((m, k), (k, n), (m, n))):
        storage = _Storage(1 + number, 2 * rows * columns, device)
        extent = machine.Extent(0, rows * columns - 1, 2)
        found.count(storage, rows * columns, rows * columns, extent, writes=number == 2)
    found.count_flops(machine.Dot("bf16", tile, tile, 64), 2 * m * n * k, tile * tile)
    return found, -(-m // tile) * -(-n // tile)


SIZES = st.integers(7, 13).map(lambda power: 2**power)


@settings(max_examples=150)
@given(SIZES, SIZES, SIZES, st.sampled_from([64, 128]), st.sampled_from([1, 2]))
def test_a_triton_gemm_is_never_more_than_5_percent_faster_than_the_library(m, n, k, tile, ctas):
    """Whatever its shape, tile and occupancy."""
    device = DEVICES[0]
    counted, num_programs = statistics_of_a_product(device, m, n, k, tile)
    found = cost.kernel_cost(counted, device, cost.Launched((num_programs, 1, 1), ctas, 4, 3))
    library_ps = library_product_ps(device.spec, "bfloat16", (1, m, n, k))
    assert found.duration_ps >= 0.95 * library_ps


DEVICES = simrank.Context("hgx_h100").devices


def test_the_cost_of_a_real_launch_is_that_of_the_library_at_least(run):
    """Counted from what the kernel did, not from what it was said to be."""

    def body(rank, ctx):
        m, n, k = 256, 512, 1024
        a = ctx.randn(m, k).to(ctx.bfloat16)
        b = ctx.randn(k, n).to(ctx.bfloat16)
        c = ctx.empty(m, n, dtype=ctx.bfloat16)
        operation = matmul[(2, 4)](a, b, c, n, k, BM=128, BN=128, BK=64)
        ctx.synchronize()
        library_ps = library_product_ps(ctx.cluster.device, "bfloat16", (1, m, n, k))
        assert 0.95 * library_ps <= operation.cost.duration_ps < 4 * library_ps
        assert operation.cost.limiter == "arithmetic"
        assert sum(operation.statistics.flops.values()) == 2 * m * n * k

    run(body, 1)


def test_a_copy_takes_its_bytes_over_the_bandwidth(run):
    """Each byte once from and once to the memory, after the start."""

    def body(rank, ctx):
        x, y = ctx.ones(1 << 22), ctx.empty(1 << 22)
        operation = copy[(1 << 10,)](x, y, BLOCK=4096)
        ctx.synchronize()
        found = operation.cost
        bandwidth = ctx.cluster.device.memory_bandwidth_bytes_per_s
        assert found.hbm_bytes == 2 * x.nbytes
        work_ps = round(2 * x.nbytes / bandwidth * 1e12)
        assert found.duration_ps == pytest.approx(started_ps(work_ps), rel=1e-6)
        assert found.limiter == "memory"

    run(body, 1)


@triton.jit
def added_twice(x, y, z, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i) + 1)
    tl.store(z + i, tl.load(y + i) + 1)


def test_what_a_kernel_has_stored_is_loaded_from_caches(run):
    """As a fused norm does, which stores a sum and reads it again; in place counts twice."""

    def body(rank, ctx):
        x, y, z = ctx.ones(1 << 20), ctx.empty(1 << 20), ctx.empty(1 << 20)
        made = added_twice[(1 << 8,)](x, y, z, BLOCK=4096)
        in_place = copy[(1 << 8,)](x, x, BLOCK=4096)
        ctx.synchronize()
        assert made.cost.hbm_bytes == 3 * x.nbytes
        assert in_place.cost.hbm_bytes == 2 * x.nbytes

    run(body, 1)


def test_few_programs_do_not_saturate_the_memory(run):
    """Eight programs have a part of the bandwidth."""

    def body(rank, ctx):
        x, y = ctx.ones(1 << 20), ctx.empty(1 << 20)
        few = copy[(8,)](x, y, BLOCK=1 << 17)
        many = copy[(256,)](x, y, BLOCK=4096)
        ctx.synchronize()
        assert few.cost.memory_ps > 5 * many.cost.memory_ps

    run(body, 1)


# ---- what one access costs a program ----


@pytest.fixture
def devices(ctx):
    return ctx.devices


def test_a_cost_is_rounded_up(devices):
    """A program's part of the bandwidth is 44 GB/s: a byte takes 22.8 ps, and costs 23 (E1)."""
    own = Storage(devices[0], 64)
    costs = AccessCosts(devices[0], 1)
    assert costs.moved_ps(own, 0, 0) == 0
    assert costs.moved_ps(own, 1, 1) == 23


def test_programs_that_run_together_share_the_bandwidth(devices):
    """Few leave some of it unused; as many as saturate it, and more, get it and no more."""
    size = 1 << 20
    network = devices[0].network
    for peer, rate in (
        (0, devices[0].spec.memory_bandwidth_bytes_per_s),
        (1, network.route_bandwidth_bytes_per_s(0, 1)),
    ):
        storage = Storage(devices[peer], 64)

        def together_bytes_per_s(num_resident, storage=storage):
            costs = AccessCosts(devices[0], num_resident)
            return num_resident * size / costs.moved_ps(storage, size, size) * 1e12

        assert together_bytes_per_s(2) == pytest.approx(2 * together_bytes_per_s(1), rel=1e-6)
        for num_resident in (66, 132, 1056, 20_000):
            assert together_bytes_per_s(num_resident) == pytest.approx(rate, rel=1e-4)
            assert together_bytes_per_s(num_resident) <= rate


def test_what_is_in_l2_comes_faster_and_what_is_on_a_peer_does_not(devices):
    """More than twice as fast; a link carries all of it."""
    own, peer = (Storage(device, 64) for device in (devices[0], devices[1]))
    costs = AccessCosts(devices[0], 132)
    size = 10_000
    new_ps, old_ps = costs.moved_ps(own, size, size), costs.moved_ps(own, size, 0)
    assert new_ps == pytest.approx(2.1 * old_ps, rel=1e-4)
    assert costs.moved_ps(own, size, size // 2) == pytest.approx(new_ps / 2, rel=1e-4)
    assert costs.moved_ps(peer, size, 0) == costs.moved_ps(peer, size, size)


def test_a_load_from_a_peer_travels_there_and_back_and_a_store_one_way(devices):
    """A store is issued and on its way; what waits for it waits for the latency."""
    peer = Storage(devices[1], 64)
    costs = AccessCosts(devices[0], 1)
    latency_ps = costs.latency_ps(peer)
    assert latency_ps > 0
    assert costs.first_ps(peer, writes=False) == LOAD_PS + 2 * latency_ps
    assert costs.first_ps(peer, writes=True) == STORE_PS


def test_an_atomic_on_several_devices_takes_as_long_as_the_farthest(devices):
    """There and back are half each."""
    own, peer = (Storage(device, 64) for device in (devices[0], devices[1]))
    costs = AccessCosts(devices[0], 1)
    half_ps = ATOMIC_PS // 2
    assert costs.atomic_ps([own]) == half_ps
    assert costs.atomic_ps([own, peer]) == half_ps + costs.latency_ps(peer)


def test_memory_of_the_host_is_reached_over_its_link():
    """It takes longer than the device's own memory, in latency and in bandwidth."""
    with simrank.Context("hgx_h100") as ctx:
        costs, own = AccessCosts(ctx.devices[0], 1), ctx.zeros(1024).storage
        host = Storage(None, 4096)
        assert costs.latency_ps(own) == 0 < costs.latency_ps(host)
        assert costs.moved_ps(own, 4096, 4096) < costs.moved_ps(host, 4096, 4096)


# ---- memory works beside units; dots and vector operations beside those of other programs ----

TIMES_PS = st.integers(0, 1 << 40)


def test_the_longer_of_memory_and_units_counts():
    """Loads for what comes next are on their way meanwhile."""
    work = Work(1)
    work.memory_ps, work.tensor_ps = 100, 40
    assert work.taken_ps() == 100
    work.tensor_ps = 140
    assert work.taken_ps() == 140


@given(TIMES_PS, TIMES_PS)
def test_one_program_alone_does_one_after_the_other(tensor_ps, vector_ps):
    """Between the two dots of attention each step waits for the one before it."""
    assert together_ps(tensor_ps, vector_ps, 1) == tensor_ps + vector_ps


@given(TIMES_PS, TIMES_PS, st.integers(1, 32))
def test_more_programs_overlap_more_and_never_beyond_the_longer(tensor_ps, vector_ps, beside):
    """No unit does more than it can."""
    fewer, more = (together_ps(tensor_ps, vector_ps, n) for n in (beside, beside + 1))
    assert max(tensor_ps, vector_ps) <= more <= fewer + 1


@pytest.mark.parametrize("beside", range(1, 9))
def test_balanced_work_takes_what_queues_in_balance_take(beside):
    """A law of such networks: n customers at two equal stations get n / (n + 1) of one's rate."""
    assert together_ps(10**9, 10**9, beside) == pytest.approx(1e9 * (beside + 1) / beside)


@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_before_hopper_warps_do_dots_by_themselves(num_warps):
    """From then on four do one together, and a program's warps wait for each other."""
    found = {}
    for cluster in ("hgx_a100", "hgx_h100"):
        spec = simrank.Context(cluster).devices[0].spec
        found[cluster] = num_beside(spec, 2 * spec.num_sms, num_warps)
    assert found == {"hgx_a100": 2 * ceil(num_warps / 4), "hgx_h100": 2}
