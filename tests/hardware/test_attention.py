"""The law of attention kernels, and the residual of measured ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.hardware.attention import (
    PHASES,
    attention_class,
    attention_places,
    attention_us,
    read_attention,
    read_attention_fits,
    read_attention_widths,
    residual_log,
)
from simrank.hardware.gemm_rows import measured_devices

H100 = measured_devices()["h100_sxm"].machine


@pytest.mark.parametrize("phase", PHASES)
def test_every_device_of_a_table_has_constants_and_widths(phase):
    """And hundreds of rows."""
    for device, (shapes, times_us) in read_attention(phase).items():
        assert len(shapes) == len(times_us) >= 670
        assert read_attention_fits()[phase, device].floor_us > 0
        assert set(read_attention_widths()[phase, "own", device]) == {0, 1, 2}


@given(st.integers(0, 7), st.integers(5, 14), st.integers(0, 6), st.sampled_from(PHASES))
def test_longer_sequences_and_larger_batches_never_take_less(heads, length, batch, phase):
    """On H100, up to what a causal mask saves in its last block."""
    shape = np.array([2**heads, 2**heads, 128, 2**length, 2**batch])
    longer = shape * np.array([1, 1, 1, 2, 1])
    more = shape * np.array([1, 1, 1, 1, 2])
    constants = read_attention_fits()[phase, "h100_sxm"]
    one, two, three = attention_us(H100, np.array([shape, longer, more]), phase, constants)
    assert constants.floor_us <= one <= 1.02 * min(two, three)


def test_residuals_bring_the_law_to_the_rows():
    """Of prefill on H100: less than half of the errors are left."""
    shapes, times_us = read_attention("prefill")["h100_sxm"]
    constants = read_attention_fits()["prefill", "h100_sxm"]
    logs = np.log(times_us / attention_us(H100, shapes, "prefill", constants))[::10]
    found = [residual_log("prefill", "h100_sxm", H100, shape, 132) for shape in shapes[::10]]
    assert np.abs(logs - found).mean() < 0.5 * np.abs(logs).mean()


def test_classes_and_places_follow_the_work():
    """Operations of prefill, bytes of decode; a full last wave lies apart."""
    shapes = np.array([[8, 8, 128, 128, 1], [32, 8, 128, 4096, 1], [32, 8, 128, 16384, 8]])
    assert attention_class(shapes, "prefill").tolist() == [0, 2, 2]
    assert attention_class(shapes, "decode").tolist() == [0, 1, 2]
    at = attention_places(np.array([[132, 1, 64, 128, 1], [133, 1, 64, 128, 1]]), 132)
    assert np.abs(at[0] - at[1]).max() > 1
