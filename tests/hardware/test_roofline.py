"""Times of single kernels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.hardware import kernel_ps, load_cluster
from simrank.hardware.roofline import QUEUED_START_PS, peak_flops, queued_ps, started_ps
from simrank.units import PS_PER_US

H100 = load_cluster("hgx_h100").device


def test_a_small_kernel_takes_the_floor():
    """Nothing is faster than the smallest kernel of a stream."""
    assert kernel_ps(H100, 0, "float32", 0) == H100.kernel_floor_ps


def test_a_large_copy_takes_its_bytes_over_the_memory_bandwidth():
    """29 GB at 2.9 TB/s are 10 ms."""
    assert kernel_ps(H100, 0, "float32", 29 * 10**9) == 10 * 10**9


def test_a_large_matmul_takes_its_flops_over_the_peak():
    """The peak is that of the dtype."""
    assert kernel_ps(H100, 989 * 10**12, "bfloat16", 0) == 10**12
    assert kernel_ps(H100, 67 * 10**12, "float32", 0) == 10**12


@given(flops=st.integers(0, 10**18), moved=st.integers(0, 10**15))
def test_more_work_never_takes_less(flops, moved):
    """The time grows with both kinds of work."""
    time_ps = kernel_ps(H100, flops, "bfloat16", moved)

    assert kernel_ps(H100, flops + 10**12, "bfloat16", moved) >= time_ps
    assert kernel_ps(H100, flops, "bfloat16", moved + 10**9) >= time_ps


@pytest.mark.parametrize(
    ("name", "dtype", "same_as"),
    [
        ("hgx_a100", "float8_e4m3fn", "float16"),
        ("hgx_a100", "int64", "float32"),
        ("hgx_h100", "uint8", "int8"),
    ],
)
def test_a_dtype_without_a_peak_runs_as_the_next_wider_one(name, dtype, same_as):
    """A100 has no float8; integers of 64 bits have no peak anywhere."""
    spec = load_cluster(name).device

    assert peak_flops(spec, dtype) == spec.peak_flops[same_as]


def test_negative_work_is_refused():
    """It would make time run backwards."""
    with pytest.raises(ValueError, match="no negative work"):
        kernel_ps(H100, -1, "float32", 0)


def test_a_kernel_starts_and_then_speeds_up():
    """No work takes 2.35 us, long work twice that on top; nothing is ever faster than its work."""
    times = [started_ps(work) for work in range(0, 10 * PS_PER_US, PS_PER_US // 4)]
    assert times[0] == 2.35 * PS_PER_US
    assert times == sorted(times)
    assert started_ps(10**9) == 10**9 + 4.7 * PS_PER_US


def test_a_short_kernel_behind_others_takes_the_time_between_two_kernels():
    """And twice its work; a long one takes as long as one that is launched alone."""
    assert queued_ps(0) == QUEUED_START_PS < started_ps(0)
    assert queued_ps(PS_PER_US) == QUEUED_START_PS + 2 * PS_PER_US
    assert queued_ps(3 * PS_PER_US) == started_ps(3 * PS_PER_US)
