"""What dots reach by their shape, what loads in flight allow, and what spilled registers take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simrank
from simrank.kernels import cost, machine
from simrank.kernels import cost as dots

FLOPS = 1 << 40
DEVICES = {name: simrank.Context(name).devices[0] for name in ("hgx_h100", "hgx_a100")}
SIZES = st.integers(4, 8).map(lambda power: 2**power)


def taken_ps(cluster, rows, columns, num_warps=4):
    """Return what as many operations take in dots of a shape."""
    dot = machine.Dot("bf16", rows, columns, 64)
    return dots.dots_ps(DEVICES[cluster].spec, dot, FLOPS, num_warps)


@given(st.sampled_from(sorted(DEVICES)), SIZES, SIZES, st.sampled_from([1, 2, 4, 8]))
def test_no_shape_beats_the_rate_of_large_ones(cluster, rows, columns, num_warps):
    """Nor the data sheet's."""
    taken = taken_ps(cluster, rows, columns, num_warps)
    assert taken >= taken_ps(cluster, 256, 256)
    assert taken >= FLOPS / DEVICES[cluster].spec.peak_flops["bfloat16"] * 1e12


@pytest.mark.parametrize(("rows", "num_warps"), [(32, 4), (16, 8), (64, 2)])
def test_hopper_multiplies_64_rows_with_four_warps_or_slower(rows, num_warps):
    """By themselves its warps reach 63 % of that; an Ampere's always do."""
    whole = taken_ps("hgx_h100", 64, 128)
    assert taken_ps("hgx_h100", rows, 128, num_warps) == pytest.approx(whole / 0.629)
    assert taken_ps("hgx_a100", rows, 128, num_warps) == taken_ps("hgx_a100", 64, 128)


def test_few_columns_wait_for_shared_memory_on_hopper():
    """To read 64 rows and 16 columns takes 20 clocks, to multiply them 8."""
    peak_ps = FLOPS / DEVICES["hgx_h100"].spec.peak_flops["bfloat16"] * 1e12
    assert taken_ps("hgx_h100", 64, 16) == pytest.approx(peak_ps * 20 / 8)
    assert taken_ps("hgx_h100", 64, 64) == taken_ps("hgx_h100", 64, 256)


class _Storage:
    """Stands for a storage of a device."""

    def __init__(self, size_bytes, device):
        self.address, self.size_bytes, self.device = 1, size_bytes, device


def cost_of(num_stages=3, num_spilled=0, num_programs=96, read_bytes=1 << 26):
    """Return what a product of narrow tiles costs that reads as much memory."""
    device, found = DEVICES["hgx_h100"], machine.Statistics()
    count = read_bytes // 2
    storage, extent = _Storage(read_bytes, device), machine.Extent(0, count - 1, 2)
    found.count(storage, count, count, extent, writes=False)
    found.count_flops(machine.Dot("bf16", 64, 64, 32), FLOPS >> 8, 64 * 64, 2 * 128 * 32)
    launched = cost.Launched((num_programs, 1, 1), 2, 4, num_stages, num_spilled)
    return cost.kernel_cost(found, device, launched)


def test_more_stages_keep_more_loads_in_flight():
    """Of 96 programs with one tile each on its way, latency is what bounds them."""
    two, three, five = (cost_of(num_stages=stages) for stages in (2, 3, 5))
    assert two.limiter == "latency"
    assert two.duration_ps > 1.5 * three.duration_ps
    assert five.limiter == "memory"


def test_what_feeds_no_dot_waits_for_no_stage():
    """One small dot beside large loads does not make them wait."""
    device, found = DEVICES["hgx_h100"], machine.Statistics()
    count = 1 << 25
    storage, extent = _Storage(2 * count, device), machine.Extent(0, count - 1, 2)
    found.count(storage, count, count, extent, writes=False)
    found.count_flops(machine.Dot("bf16", 16, 16, 16), 96 * 2 * 16**3, 256, 1024)
    launched = cost.Launched((96, 1, 1), 2, 4, 3)
    assert cost.kernel_cost(found, device, launched).limiter == "memory"


@given(st.integers(1, 5), st.integers(1, 2000), st.integers(0, 1 << 30))
def test_neither_stages_nor_programs_make_the_memory_faster(num_stages, num_programs, read_bytes):
    """What is in flight only hides how long it takes."""
    found = cost_of(num_stages, 0, num_programs, read_bytes)
    rate = DEVICES["hgx_h100"].spec.memory_bandwidth_bytes_per_s
    assert found.duration_ps >= (read_bytes // 2 * 2) / rate * 1e12 * (1 - 1e-9)


def test_spilled_registers_take_their_time():
    """Each is written and read once per step, 32 lanes a clock."""
    spec = DEVICES["hgx_h100"].spec
    without, spilling = cost_of(), cost_of(num_spilled=200)
    num_steps = (FLOPS >> 8) / (2 * 64 * 64 * 32)
    clock = spec.peak_flops["float32"] / (2 * spec.fp32_lanes)
    expected_ps = 2 * 200 * 128 * num_steps / 32 / clock * 1e12 * 132 / 96  # 36 SMs have none.
    assert spilling.vector_ps - without.vector_ps == pytest.approx(expected_ps, rel=1e-6)
    assert spilling.special_ps == without.special_ps == 0
    assert spilling.duration_ps > without.duration_ps


def product_cost(cluster, per_flop, num_warps=4):
    """Return what a product costs whose warps read so much of shared memory for each operation."""
    device, found = DEVICES[cluster], machine.Statistics()
    found.count_flops(machine.Dot("bf16", 128, 128, 64), FLOPS, 128 * 128, 2 * 256 * 64)
    launched = cost.Launched((4096, 1, 1), 2, num_warps, 3, 0, per_flop)
    return cost.kernel_cost(found, device, launched)


READS = st.floats(0.0, 1.0)  # Bytes for an operation; tiles of 64 x 64 per warp read 0.03.


@given(READS, st.floats(1.0, 4.0), st.sampled_from([1, 2, 4, 8, 16]))
def test_warps_that_read_more_for_their_dots_take_longer(per_flop, more, num_warps):
    """Never less than the dots or the reads take alone, and at most both, one after the other."""
    spec = DEVICES["hgx_a100"].spec
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
