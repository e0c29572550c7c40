"""The rule of matrix products: bounds and monotony, whatever the device."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simrank.hardware.gemm_rows import measured_devices, read_fits
from simrank.hardware.gemm_rule import quantising_us, rule_us

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
