"""Number formats without a type."""

import numpy as np
import pytest

from simrank.kernels.language.numbers import to_tf32

ULP = 2.0**-10  # Of tf32, at 1.


@pytest.mark.parametrize(
    ("value", "rounded", "truncated"),
    [
        (1 + 0.25 * ULP, 1, 1),
        (1 + 0.5 * ULP, 1 + ULP, 1),
        (-(1 + 0.75 * ULP), -(1 + ULP), -1),
        (np.inf, np.inf, np.inf),
    ],
)
def test_tf32_keeps_ten_bits(value, rounded, truncated):
    """Ties go away from zero; tensor cores cut off."""
    assert to_tf32(np.float32(value)) == np.float32(rounded)
    assert to_tf32(np.float32([value]), truncates=True)[0] == np.float32(truncated)


def test_nan_stays_nan():
    """Rounding its bits would make infinity of some."""
    assert np.isnan(to_tf32(np.float32(np.nan)))
