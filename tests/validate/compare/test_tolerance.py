"""Bounds of the comparison: each type's own, or the user's, and steps of a type."""

import ml_dtypes
import numpy as np
import pytest

from simrank.errors import ConfigError
from simrank.validate.compare.tolerance import Tolerance, ulps


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, Tolerance()),
        ("exact", Tolerance(0.0, 0.0)),
        ("1e-3", Tolerance(1e-3, 0.0)),
        ("1e-3,1e-6", Tolerance(1e-3, 1e-6)),
        ("4ulp", Tolerance(ulp=4)),
    ],
)
def test_a_tolerance_is_written_in_few_ways(text, wanted):
    """Relative, both, steps, exact, or each type's."""
    assert Tolerance.parse(text) == wanted


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "ulp", "1.5ulp", "-1ulp", "1,2,3", "x"])
def test_other_words_are_refused(text):
    """With the choices."""
    with pytest.raises(ConfigError, match="--tolerance: expected a relative bound"):
        Tolerance.parse(text)


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [("float64", 1e-7), ("float32", 1.3e-6), ("float16", 1e-3), ("bfloat16", 1.6e-2)],
)
def test_each_type_has_its_own_bound(dtype, factor):
    """What is well below passes, what is three times it does not."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    real = np.full(3, 64.0, kind)
    for share, is_outside in ((0.3, False), (3.0, True)):
        mine = np.full(3, 64.0 * (1 + share * factor), kind)
        assert Tolerance().is_outside(mine, real, dtype).all() == is_outside


def test_integers_and_flags_are_exact():
    """However large, and whatever the user allows."""
    mine, real = np.array([2**60]), np.array([2**60 + 1])
    assert Tolerance(1.0).is_outside(mine, real, "int64").all()
    assert Tolerance(1.0).is_outside(np.array([True]), np.array([False]), "bool").all()


def test_what_is_not_finite_is_equal_only_to_itself():
    """NaN equals NaN; infinity is near to nothing else."""
    mine = np.array([np.nan, np.inf, np.inf, np.nan, 1.0])
    real = np.array([np.nan, np.inf, -np.inf, 1.0, np.inf])
    for each in (Tolerance(), Tolerance(1e9, 1e9), Tolerance(ulp=4)):
        assert each.is_outside(mine, real, "float64").tolist() == [False, False, True, True, True]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_neighbours_are_one_step_apart(dtype):
    """Also across zero, whose two signs are the same."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    one = np.array([1.0, 0.0, 0.0], kind)
    bits = np.dtype(f"u{kind.itemsize}")
    up = (one.view(bits) + np.array([1, 1, 0], bits)).view(kind)
    assert ulps(one, up).tolist() == [1, 1, 0]
    assert ulps(one, np.array([1.0, -0.0, -0.0], kind)).tolist() == [0, 0, 0]
    assert ulps(-up, up)[1] == 2


def test_steps_of_complex_numbers_and_nan():
    """The most of both parts; NaN on one side is further than any number."""
    up = np.nextafter(np.float32(1), np.float32(2))
    one, other = np.array([1 + 1j], np.complex64), np.array([complex(1, up)], np.complex64)
    assert ulps(one, other).tolist() == [1]
    assert ulps(np.array([np.nan]), np.array([1.0]))[0] == 2**64 - 1
