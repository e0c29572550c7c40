"""Captured values, and where two of them differ."""

from collections import namedtuple
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

import simrank
from simrank.errors import ConfigError
from simrank.validate.compare.differences import (
    ComparedArray,
    Container,
    Opaque,
    Tolerance,
    brief,
    captured,
    likeness,
    ulps,
)

Point = namedtuple("Point", "x y")


@dataclass
class Step:
    """A result of a program's own class."""

    loss: float
    weights: list


def differing(mine, real, tolerance=Tolerance()):  # noqa: B008 - frozen
    found = likeness(captured(mine), captured(real), tolerance)
    return [str(each) for each in found.differences]


NESTED = {"a": [1, (2.0, "x")], "p": Point(1, None), "s": Step(0.5, [np.ones(3)]), "e": {3, 1}}


def test_equal_values_do_not_differ():
    """Nested containers, named tuples, dataclasses, sets and arrays."""
    assert differing(NESTED, NESTED) == []


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"a": [1, (2.5, "x")]}, "value['a'][1][0]: simulated 2.0, real 2.5 (float32, max error"),
        ({"a": [1, (2.0, "y")]}, "value['a'][1][1]: simulated 'x', real 'y'"),
        ({"a": [True, (2.0, "x")]}, "value['a'][0]: simulated 1, real True"),
        ({"a": (1, (2.0, "x"))}, "value['a']: simulated list of 2, real tuple of 2"),
        ({"a": [1]}, "value['a']: simulated list of 2, real list of 1 (only simulated: [1]"),
        ({"p": Point(1, 0)}, "value['p'].y: simulated None, real 0"),
        ({"s": Step(0.5, [np.ones(4)])}, "ndarray of float64 [3], real ndarray of float64 [4]"),
        ({"s": Step(0.5, [np.ones(3, "f4")])}, "ndarray of float64 [3], real ndarray of float32"),
        (
            {"b": 1},
            "the value: simulated dict of 4, real dict of 5 (only simulated: -; only real: ",
        ),
    ],
)
def test_a_difference_has_its_place(change, wanted):
    """The path to it, and both sides."""
    (found,) = differing(NESTED, NESTED | change)
    assert wanted in found


def test_the_first_element_that_differs_is_named_with_how_far_all_are():
    """Index, number of elements, largest error, steps."""
    mine = np.ones((2, 3), np.float32)
    real = mine.copy()
    real[1] = [1, 1.5, 3]
    (found,) = differing({"w": mine}, {"w": real})
    assert found == (
        "value['w'][1][1]: simulated 1.0, real 1.5 "
        "(float32, 2 of 6 elements, max error 2, 12582912 ulp)"
    )


def test_steps_are_those_of_the_largest_error():
    """Not of an element near zero, where any error is millions of them."""
    (found,) = differing(np.float32([1e-3, 64.0]), np.float32([-1e-3, 65.0]))
    assert "max error 1, 131072 ulp" in found


def test_numbers_that_were_float32_have_its_bounds():
    """`loss.item()`: sums in another order differ in its last bits; other numbers are float64's."""
    one = float(np.float32(1.1))
    up = float(np.nextafter(np.float32(1.1), np.float32(2)))
    assert differing(one, up) == []
    assert differing(one, up, Tolerance.parse("exact")) != []
    assert differing(1.1, 1.1 + 1e-6) != []


def test_what_is_within_bounds_is_counted():
    """How many are not equal bit by bit, and by how many steps at most."""
    up = np.nextafter(np.float32(1), np.float32(2))
    found = likeness(captured([np.float32(1), 2]), captured([up, 2]), Tolerance())
    assert (found.num_values, found.num_rounded, found.most_ulp) == (2, 1, 1)
    assert differing(np.float32(1), up, Tolerance.parse("exact")) != []


def test_order_of_keys_is_a_difference():
    """Iterating ranks would part."""
    assert differing({"a": 1, "b": 2}, {"b": 2, "a": 1}) != []


def test_simulated_tensors_are_read_in_every_type():
    """Also those that numpy has not itself."""
    with simrank.Context("hgx_h100") as ctx:
        found = captured({"x": ctx.full((2,), 1.5, dtype="bfloat16")})
    ((_, array),) = found.parts
    assert (array.dtype, array.values.dtype) == ("bfloat16", np.dtype(ml_dtypes.bfloat16))
    assert array.values.tolist() == [1.5, 1.5]


def test_texts_and_objects_in_arrays_are_compared():
    """One by one."""
    assert differing(np.array(["a", "b"]), np.array(["a", "c"])) == [
        "value[1]: simulated 'b', real 'c'"
    ]


def test_other_objects_are_told_by_class_and_repr():
    """Without addresses, which differ from process to process."""
    found = captured(object())
    assert found == Opaque("builtins.object", "<object object>")
    assert differing(object(), object()) == []
    assert differing(ValueError("a"), ValueError("b")) != []


def test_values_are_shown_in_a_line():
    """Small ones whole, long ones cut."""
    whole = Container(
        "dict", (("['w']", ComparedArray("Tensor", "float32", np.zeros(2, np.float32))),)
    )
    assert brief(whole) == "dict(['w'] [0.0, 0.0] of float32)"
    assert len(brief(captured(list(range(99))))) == 80


# ---- bounds of the comparison: each type's own, or the user's, and steps of a type ----


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
