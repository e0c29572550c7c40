"""What a launch costs: roofline, waves, links, and never faster than the library's products."""

from math import ceil

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank
from simrank.device.memory import Storage
from simrank.hardware.roofline import QUEUED_START_PS, library_product_ps, started_ps
from simrank.kernels import cost, machine
from simrank.kernels import cost as dots
from simrank.kernels.cost import (
    ATOMIC_PS,
    LOAD_PS,
    STORE_PS,
    AccessCosts,
    BusyTimes,
    busiest_share,
    num_beside,
    together_ps,
)
from simrank.kernels.machine.statistics import Load


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


@given(SIZES, SIZES, SIZES, st.sampled_from([64, 128]), st.sampled_from([1, 2]))
def test_a_triton_gemm_is_never_more_than_5_percent_faster_than_the_library(m, n, k, tile, ctas):
    """Whatever its shape, tile and occupancy."""
    device = DEVICES[0]
    counted, num_programs = statistics_of_a_product(device, m, n, k, tile)
    found = cost.kernel_cost(
        counted, device, cost.LaunchParameters((num_programs, 1, 1), ctas, 4, 3)
    )
    library_ps = library_product_ps(device.spec, "bfloat16", (1, m, n, k))
    assert found.duration_ps >= 0.95 * library_ps


CLUSTERS = {name: simrank.Context(name).devices for name in ("hgx_h100", "hgx_a100", "mi300x")}
DEVICES = CLUSTERS["hgx_h100"]


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
    work = BusyTimes(1)
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


# ---- The SM that has the most work ends last; programs start in their order ----


def loads_of(works):
    return [Load(np.array([number]), work) for number, work in enumerate(works)]


@given(st.integers(1, 400), st.integers(1, 132))
def test_equal_programs_end_with_the_sm_that_has_one_more(total, num_sms):
    """As many as there are, over the SMs, rounded up."""
    loads = [Load(np.arange(total), 7.0)]
    assert busiest_share(loads, (total, 1, 1), num_sms) == -(-total // num_sms) * num_sms / total


@given(st.lists(st.integers(1, 100), min_size=2, max_size=200), st.integers(1, 16))
def test_it_is_within_the_bounds_of_list_scheduling(works, num_sms):
    """Graham's: at least the mean and the largest, at most the mean of the rest and the largest."""
    most = busiest_share(loads_of(works), (len(works), 1, 1), num_sms) * sum(works) / num_sms
    assert most >= max(*works, sum(works) / num_sms) - 1e-6
    assert most <= sum(works) / num_sms + max(works) + 1e-6


def test_long_programs_first_end_earlier_than_long_programs_last():
    """Then short ones fill what is left."""
    works = list(range(1, 41))
    rising, falling = (
        busiest_share(loads_of(each), (40, 1, 1), 8) for each in (works, works[::-1])
    )
    assert falling < rising


def test_between_programs_of_a_sample_work_goes_evenly():
    """As it does below a diagonal."""
    sample = [Load(np.array([0, 40]), 1.0), Load(np.array([39, 79]), 40.0)]
    every = loads_of(list(range(1, 41)) * 2)
    for num_sms in (3, 8, 40):
        found = busiest_share(sample, (40, 2, 1), num_sms)
        assert found == pytest.approx(busiest_share(every, (40, 2, 1), num_sms))


def test_so_many_programs_that_the_last_one_is_not_seen_are_not_looked_at():
    """It costs time for what does not show."""
    assert busiest_share(loads_of([1.0, 2.0] * 5000), (10_000, 1, 1), 8) == 1.0


@triton.jit
def below_diagonal(a, b, out, FALLS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    if FALLS:
        block = N - 1 - block
    at = (block * BLOCK + tl.arange(0, BLOCK))[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(block + 1):
        right = tl.load(b + step * BLOCK * BLOCK + at - block * BLOCK * BLOCK)
        acc = tl.dot(tl.load(a + at), right, acc)
    tl.store(out + at, acc)


@pytest.mark.parametrize("has_data", [True, False])
def test_an_author_sees_that_long_programs_are_better_started_first(has_data):
    """With values and without: then some of the programs say what the others do."""
    times, blocks = [], 150

    def body(rank, ctx):
        a, b = (ctx.empty(blocks * 16, 16, dtype=ctx.float16) for _ in range(2))
        out = ctx.empty(blocks * 16, 16)
        for falls in (False, True):
            done = below_diagonal[(blocks,)](a, b, out, falls, blocks, 16)
            ctx.synchronize()
            times.append(done.cost.tensor_ps)

    with simrank.Context("hgx_h100", data=has_data) as ctx:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=1)
    assert times[1] < 0.9 * times[0]


# ---- What dots reach by their shape ----

FLOPS = 1 << 40
SMALL_SIZES = st.integers(4, 8).map(lambda power: 2**power)


def taken_ps(cluster, rows, columns, num_warps=4):
    """Return what as many operations take in dots of a shape."""
    dot = machine.Dot("bf16", rows, columns, 64)
    return dots.dots_ps(CLUSTERS[cluster][0].spec, dot, FLOPS, num_warps)


@given(
    st.sampled_from(["hgx_a100", "hgx_h100"]),
    SMALL_SIZES,
    SMALL_SIZES,
    st.sampled_from([1, 2, 4, 8]),
)
def test_no_shape_beats_the_rate_of_large_ones(cluster, rows, columns, num_warps):
    """Nor the data sheet's."""
    taken = taken_ps(cluster, rows, columns, num_warps)
    assert taken >= taken_ps(cluster, 256, 256)
    assert taken >= FLOPS / CLUSTERS[cluster][0].spec.peak_flops["bfloat16"] * 1e12


@pytest.mark.parametrize(("rows", "num_warps"), [(32, 4), (16, 8), (64, 2)])
def test_hopper_multiplies_64_rows_with_four_warps_or_slower(rows, num_warps):
    """By themselves its warps reach 63 % of that; an Ampere's always do."""
    whole = taken_ps("hgx_h100", 64, 128)
    assert taken_ps("hgx_h100", rows, 128, num_warps) == pytest.approx(whole / 0.629)
    assert taken_ps("hgx_a100", rows, 128, num_warps) == taken_ps("hgx_a100", 64, 128)


def test_few_columns_wait_for_shared_memory_on_hopper():
    """To read 64 rows and 16 columns takes 20 clocks, to multiply them 8."""
    peak_ps = FLOPS / CLUSTERS["hgx_h100"][0].spec.peak_flops["bfloat16"] * 1e12
    assert taken_ps("hgx_h100", 64, 16) == pytest.approx(peak_ps * 20 / 8)
    assert taken_ps("hgx_h100", 64, 64) == taken_ps("hgx_h100", 64, 256)


def cost_of(num_stages=3, num_spilled=0, num_programs=96, read_bytes=1 << 26):
    """Return what a product of narrow tiles costs that reads as much memory."""
    device, found = CLUSTERS["hgx_h100"][0], machine.Statistics()
    count = read_bytes // 2
    storage, extent = _Storage(1, read_bytes, device), machine.Extent(0, count - 1, 2)
    found.count(storage, count, count, extent, writes=False)
    found.count_flops(machine.Dot("bf16", 64, 64, 32), FLOPS >> 8, 64 * 64, 2 * 128 * 32)
    launched = cost.LaunchParameters((num_programs, 1, 1), 2, 4, num_stages, num_spilled)
    return cost.kernel_cost(found, device, launched)


def test_more_stages_keep_more_loads_in_flight():
    """Of 96 programs with one tile each on its way, latency is what bounds them."""
    two, three, five = (cost_of(num_stages=stages) for stages in (2, 3, 5))
    assert two.limiter == "latency"
    assert two.duration_ps > 1.5 * three.duration_ps
    assert five.limiter == "memory"


def test_what_feeds_no_dot_waits_for_no_stage():
    """One small dot beside large loads does not make them wait."""
    device, found = CLUSTERS["hgx_h100"][0], machine.Statistics()
    count = 1 << 25
    storage, extent = _Storage(1, 2 * count, device), machine.Extent(0, count - 1, 2)
    found.count(storage, count, count, extent, writes=False)
    found.count_flops(machine.Dot("bf16", 16, 16, 16), 96 * 2 * 16**3, 256, 1024)
    launched = cost.LaunchParameters((96, 1, 1), 2, 4, 3)
    assert cost.kernel_cost(found, device, launched).limiter == "memory"


@given(st.integers(1, 5), st.integers(1, 2000), st.integers(0, 1 << 30))
def test_neither_stages_nor_programs_make_the_memory_faster(num_stages, num_programs, read_bytes):
    """What is in flight only hides how long it takes."""
    found = cost_of(num_stages, 0, num_programs, read_bytes)
    rate = CLUSTERS["hgx_h100"][0].spec.memory_bandwidth_bytes_per_s
    assert found.duration_ps >= (read_bytes // 2 * 2) / rate * 1e12 * (1 - 1e-9)


def test_spilled_registers_take_their_time():
    """Each is written and read once per step, 32 lanes a clock."""
    spec = CLUSTERS["hgx_h100"][0].spec
    without, spilling = cost_of(), cost_of(num_spilled=200)
    num_steps = (FLOPS >> 8) / (2 * 64 * 64 * 32)
    clock = spec.peak_flops["float32"] / (2 * spec.fp32_lanes)
    expected_ps = 2 * 200 * 128 * num_steps / 32 / clock * 1e12 * 132 / 96  # 36 SMs have none.
    assert spilling.vector_ps - without.vector_ps == pytest.approx(expected_ps, rel=1e-6)
    assert spilling.special_ps == without.special_ps == 0
    assert spilling.duration_ps > without.duration_ps


def product_cost(cluster, per_flop, num_warps=4):
    """Return what a product costs whose warps read so much of shared memory for each operation."""
    device, found = CLUSTERS[cluster][0], machine.Statistics()
    found.count_flops(machine.Dot("bf16", 128, 128, 64), FLOPS, 128 * 128, 2 * 256 * 64)
    launched = cost.LaunchParameters((4096, 1, 1), 2, num_warps, 3, 0, per_flop)
    return cost.kernel_cost(found, device, launched)


READS = st.floats(0.0, 1.0)  # Bytes for an operation; tiles of 64 x 64 per warp read 0.03.


@given(READS, st.floats(1.0, 4.0), st.sampled_from([1, 2, 4, 8, 16]))
def test_warps_that_read_more_for_their_dots_take_longer(per_flop, more, num_warps):
    """Never less than the dots or the reads take alone, and at most both, one after the other."""
    spec = CLUSTERS["hgx_a100"][0].spec
    found = product_cost("hgx_a100", per_flop, num_warps).tensor_ps
    dots_alone = product_cost("hgx_a100", 0.0, num_warps).tensor_ps
    assert product_cost("hgx_a100", per_flop * more, num_warps).tensor_ps >= found
    clocks_of_all = spec.peak_flops["float32"] / (2 * spec.fp32_lanes)
    busiest = dots_alone / taken_ps("hgx_a100", 128, 128)
    reads_alone = FLOPS * per_flop / (128 * clocks_of_all) * 1e12 * busiest
    tolerance = 1e-9 * found + 10
    assert max(dots_alone, reads_alone) - tolerance <= found
    assert found <= dots_alone + reads_alone + tolerance


@given(READS)
def test_groups_of_warps_read_as_they_multiply(per_flop):
    """Hopper's rate has it: see the dots of few columns above."""
    assert product_cost("hgx_h100", per_flop) == product_cost("hgx_h100", 0.0)


def test_more_warps_hide_more_of_what_they_read():
    """Others multiply meanwhile."""
    few, many = (product_cost("hgx_a100", 0.1, num_warps).tensor_ps for num_warps in (4, 32))
    alone = product_cost("hgx_a100", 0.0).tensor_ps
    assert many - alone < 0.5 * (few - alone)


# ---- no kernel is faster than what it needs of memory, links, tensor cores and vector units ----


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


@settings(max_examples=15)
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
        assert taken_s >= QUEUED_START_PS / 1e12

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


@given(
    name=st.sampled_from(sorted(CLUSTERS)),
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
    devices = CLUSTERS[name]
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
    launched = cost.LaunchParameters((num_programs, 1, 1), ctas, 4, 3)
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
    device = CLUSTERS["hgx_h100"][0]
    attention = machine.Statistics()
    attention.count_flops(machine.Dot("fp16", 128, 64, 64), 256 << 30, 128 * 64)
    attention.operations[machine.SPECIAL] = 1 << 30
    found = cost.kernel_cost(
        attention, device, cost.LaunchParameters((132 * per_sm, 1, 1), per_sm, 4, 3)
    )
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


@pytest.mark.parametrize(("size", "inner"), [(256, 256), (768, 128)])
def test_both_modes_take_as_long_where_nothing_waits(run, size, inner):
    """Programs one by one have clocks of their own; together they get what there is."""
    found = {}

    def body(rank, ctx):
        for mode in ("batched", "tasks"):
            shapes = ((size, inner), (inner, size), (size, size))
            a, b, c = (ctx.ones(*shape).to(ctx.bfloat16) for shape in shapes)
            grid = (size // 64, size // 64)
            done = ctx.launch(tiles, grid, a, b, c, inner, size, BM=64, BN=64, BK=64, mode=mode)
            ctx.synchronize()
            found[mode] = done.cost.duration_ps

    run(body, 1)
    assert found["tasks"] == pytest.approx(found["batched"], rel=0.2)
