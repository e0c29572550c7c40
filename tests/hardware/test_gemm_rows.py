"""The tables of measured products, and the interpolation of residuals."""

import numpy as np
import pytest

from simrank.hardware.gemm_rows import (
    ANY,
    ITEMSIZES,
    Residual,
    covariance,
    measured_devices,
    places,
    read_fits,
    read_rows,
    read_widths,
    residual_of,
    size_class,
)


@pytest.mark.parametrize("kind", ITEMSIZES)
def test_every_device_of_a_table_has_facts_rows_constants_and_widths(kind):
    """About 1,500 rows each; MI355X has XLA's 269."""
    for device, (sizes, times_us) in read_rows(kind).items():
        assert device in measured_devices()
        assert len(sizes) == len(times_us) >= (269 if device == "mi355x" else 1490)
        assert (times_us > 0).all()
        assert read_fits()[kind, device].constants.floor_us > 0
        assert all(width > 0 for width in read_widths()[kind, "own", device].values())
    assert {("sibling", ANY), ("no relative", ANY)} <= {
        key[1:] for key in read_widths() if key[0] == kind
    } or kind == "nvfp4"


def test_the_residual_of_a_measured_row_is_near_it_and_that_of_far_ones_is_the_nearest():
    """Noise is smoothed; beyond the table nothing is extrapolated."""
    sizes = np.array(
        [[1, 2.0**a, 2.0**b, 2.0**c] for a in range(12) for b in (6, 9, 12) for c in (6, 12)]
    )
    logs = 0.02 * np.log2(sizes[:, 1])
    residual = Residual(sizes, logs, 132)
    errors = [residual.log_at(size, 132) - log for size, log in zip(sizes, logs, strict=True)]
    assert np.abs(errors).max() < 0.03
    edge = residual.log_at(np.array([1, 2**11, 2**12, 2**12]), 132)
    assert residual.log_at(np.array([4, 2**20, 2**20, 2**20]), 132) == edge


def test_the_residual_of_a_device_halves_the_errors_of_its_rule():
    """Of the rows that it interpolates."""
    sizes, times_us = read_rows("bfloat16")["a100_sxm"]
    fit, device = read_fits()["bfloat16", "a100_sxm"], measured_devices()["a100_sxm"]
    left = np.log(times_us / fit.time_us(device.machine, sizes, "bfloat16"))[::10]
    residual = residual_of("bfloat16", "a100_sxm", falls_back=False)
    found = np.array([residual.log_at(size, 108) for size in sizes[::10]])
    assert np.abs(left - found).mean() < 0.5 * np.abs(left).mean()


def test_covariance_falls_with_the_distance():
    """One on the diagonal, besides noise."""
    at = places(np.array([[1, 32, 64, 64], [1, 33, 64, 64], [1, 4096, 64, 64]]), 132)
    found = covariance(at, at, 0.1)
    assert np.diag(found) == pytest.approx([1.1] * 3)
    assert found[0, 1] > found[0, 2] > 0


def test_a_fallback_is_a_size_class_of_its_own():
    """Block-scaled products of thin weights take another kernel."""
    fit = read_fits()["fp8_block", "b200_sxm"]
    sizes = np.array([[1, 16, 64, 4096], [1, 16, 512, 512], [1, 64, 512, 512], [1] + [2048] * 3])
    assert size_class(sizes, fit).tolist() == [3, 0, 1, 2]
    device = measured_devices()["b200_sxm"]
    times_us = fit.time_us(device.machine_in("fp8_block"), sizes, "fp8_block")
    assert times_us[0] >= fit.fallback_us > 100
    assert times_us[1] < 20
