"""Special functions that numpy lacks."""

import math

import numpy as np
import pytest

from simrank.kernels.language.special import erf, erfinv, to_tf32


def test_erf_by_its_table_is_within_one_ulp():
    """Of float32, against the C library, signs and the far ends included."""
    values = np.linspace(-7, 7, 4001, dtype=np.float32)
    wanted = np.array([math.erf(float(v)) for v in values], np.float32)
    assert np.all(np.abs(erf(values) - wanted) <= np.spacing(np.abs(wanted)))


def test_erf_of_no_number_is_none():
    """Among many, where a table is used."""
    values = np.full(1000, np.nan, np.float32)
    assert np.isnan(erf(values)).all()


@pytest.mark.parametrize("target", [-0.999, -0.5, 0.0, 1e-6, 0.3, 0.9999])
def test_erfinv_is_the_inverse(target):
    """What it gives, erf gives back."""
    assert math.erf(float(erfinv(np.float64(target)))) == pytest.approx(target, rel=1e-12)


def test_erfinv_ends_at_infinity():
    """And is no number beyond."""
    assert erfinv(np.float64(1)) == np.inf
    assert np.isnan(erfinv(np.float64(1.5)))


# ---- number formats without a type ----

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
