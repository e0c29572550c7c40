"""What a launch costs: roofline, waves, links, and never faster than the library's products."""

import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank
from simrank.hardware.roofline import library_product_ps, started_ps
from simrank.kernels import machine
from simrank.kernels.cost import launches as cost


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
