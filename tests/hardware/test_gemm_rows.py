"""The tables of measured products, and the interpolation of residuals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.config.locate import builtin_names, locate
from simrank.hardware.gemm_rows import (
    ANY,
    ITEMSIZES,
    GemmCurve,
    Residual,
    covariance,
    gemm_ps,
    load_gemm_rows,
    measured_devices,
    places,
    quantising_us,
    read_fits,
    read_rows,
    read_widths,
    residual_of,
    rule_us,
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


# ---- library matrix products: interpolated between measured ones, within stated errors ----

TABLES = builtin_names("gemm")
BF16 = "bf16xbf16->bf16"
H100 = str(locate("gemm", "h100"))


@pytest.mark.parametrize("name", TABLES)
def test_rows_left_out_of_the_fit_are_predicted(name):
    """bf16: 15 percent mean error from 1,024 on, 30 below; each tenth row is left out."""
    rows = load_gemm_rows(str(locate("gemm", name)))[BF16]
    errors = {True: [], False: []}
    for first in range(10):
        left_out = rows[first::10]
        curve = GemmCurve([row for row in rows if row not in left_out])
        for row in left_out:
            predicted = curve.time_us(row.batch, row.m, row.n, row.k)
            errors[min(row.m, row.n, row.k) >= 1024].append(abs(predicted / row.time_us - 1))
    assert np.mean(errors[True]) < 0.15
    assert np.mean(errors[False]) < 0.30


@given(*[st.integers(0, 16)] * 3, st.integers(0, 3))
def test_no_product_is_faster_than_the_floor_or_the_best_rate(m, n, k, batch):
    """Far outside of the measured sizes too: within the correction of the nearest ones."""
    sizes = (2**batch, 2**m, 2**n, 2**k)
    time_us = gemm_ps(H100, "bfloat16", *sizes) / 1e6
    flops = 2 * np.prod([float(size) for size in sizes])
    assert time_us > 4.0
    assert flops / (time_us * 1e-6) < 900e12


@given(st.integers(8, 12), st.integers(8, 12), st.integers(8, 12))
def test_twice_the_work_never_takes_less(m, n, k):
    """Up to the noise of the measurements."""
    single = gemm_ps(H100, "bfloat16", 1, 2**m, 2**n, 2**k)
    double = gemm_ps(H100, "bfloat16", 1, 2**m, 2**n, 2 ** (k + 1))
    assert double > 0.95 * single


def test_a_dtype_that_was_not_measured_has_no_time():
    """float32 rows ran as TF32, which torch does not do by default."""
    assert gemm_ps(H100, "float32", 1, 1024, 1024, 1024) is None
    assert gemm_ps(H100, "float8_e4m3fn", 1, 1024, 1024, 1024) is None
    assert gemm_ps(H100, "bfloat16", 1, 0, 1024, 1024) is None


# ---- the rule of matrix products: bounds and monotony, whatever the device ----

MACHINES = {name: device.machine for name, device in measured_devices().items()}
CONSTANTS = {name: read_fits()["bfloat16", name].constants for name in MACHINES}


@given(*[st.integers(0, 14)] * 3, st.integers(0, 3))
def test_no_product_is_faster_than_the_best_one_or_the_floor(m, n, k, batch):
    """On each measured device."""
    sizes = np.array([[2**batch, 2**m, 2**n, 2**k]])
    for name, machine in MACHINES.items():
        (time_us,) = rule_us(machine, sizes, 2.0, CONSTANTS[name])
        assert time_us > CONSTANTS[name].floor_us
        best_per_us = CONSTANTS[name].efficiency * machine.peak_flops / 1e6
        assert 2 * sizes.prod() / time_us < best_per_us


@given(*[st.integers(1, 20_000)] * 3)
def test_more_work_never_takes_less(m, n, k):
    """Twice the rows, columns or sums."""
    sizes = np.array([[1, m, n, k], [1, 2 * m, n, k], [1, m, 2 * n, k], [1, m, n, 2 * k]])
    times_us = rule_us(MACHINES["h100_sxm"], sizes, 2.0, CONSTANTS["h100_sxm"])
    assert (times_us[1:] >= 0.98 * times_us[0]).all()


def test_weights_beyond_l2_come_from_memory():
    """On L40S, five copies of 12 MB fit into 96 MB, and five of 28 MB do not."""
    sizes = np.array([[1, 1, 2048, 3072], [1, 1, 2048, 7168]])
    fits, beyond = rule_us(MACHINES["l40s"], sizes, 2.0, CONSTANTS["l40s"])
    assert beyond > 28e6 / 864e9 * 1e6  # The data sheet's rate.
    assert fits < 12.6e6 / 864e9 * 1e6


def test_only_narrow_operands_are_quantised():
    """Activations arrive in bfloat16: each element is read, and written in a byte."""
    sizes = np.array([[1, 4096, 64, 1024]])
    machine, constants = MACHINES["h100_sxm"], CONSTANTS["h100_sxm"]
    assert quantising_us(machine, sizes, 2.0, constants)[0] == 0
    bytes_per_us = constants.quantise * machine.memory_bytes_per_s / 1e6
    found = quantising_us(machine, sizes, 1.0, constants)[0]
    assert found == 4096 * 1024 * 3 / bytes_per_us
