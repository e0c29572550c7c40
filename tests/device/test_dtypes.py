"""Element types: names, promotion, refusal."""

import pickle

import ml_dtypes
import numpy as np
import pytest

from simrank.device.dtypes import DTYPES, as_dtype, promote, promote_scalar
from simrank.errors import UnsupportedError


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_is_found_by_its_name_its_numpy_dtype_and_itself(name):
    """Every spelling of a dtype gives the same object."""
    dtype = DTYPES[name]
    assert as_dtype(name) is as_dtype(dtype) is as_dtype(dtype.numpy) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_narrow_floats_are_stored_as_ml_dtypes():
    """bfloat16 and fp8 have their real storage, not float32."""
    assert as_dtype("bfloat16").numpy == ml_dtypes.bfloat16
    assert as_dtype("float8_e4m3fn").itemsize == 1


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("int64", "float16", "float16"),
        ("float16", "bfloat16", "float32"),
        ("float32", "float64", "float64"),
        ("uint8", "int8", "int16"),
        ("bool", "int32", "int32"),
        ("bfloat16", "bfloat16", "bfloat16"),
    ],
)
def test_promotion_of_two_tensors_is_torchs(first, second, expected):
    """Category first, then width; two half types meet in float32."""
    assert promote(as_dtype(first), as_dtype(second)).name == expected
    assert promote(as_dtype(second), as_dtype(first)).name == expected


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [("float16", 1.5, "float16"), ("int32", 2, "int32"), ("int32", 2.0, "float32"),
     ("bool", 3, "int64"), ("bfloat16", 7, "bfloat16")],
)  # fmt: skip
def test_a_python_number_promotes_only_across_categories(dtype, value, expected):
    """A Python float does not widen a half tensor, and turns an int tensor to float32."""
    assert promote_scalar(as_dtype(dtype), value).name == expected


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_wide_unsigned_integers_promote_with_floats_only(name):
    """Torch promotes them with no other integer, not even with a bool."""
    assert promote(as_dtype(name), as_dtype("float16")).name == "float16"
    assert promote(as_dtype(name), as_dtype(name)).name == name
    for other in ("int32", "uint8", "bool", "uint16" if name != "uint16" else "uint32"):
        for pair in ((name, other), (other, name)):
            with pytest.raises(RuntimeError, match="Promotion for uint16, uint32, uint64 types"):
                promote(*map(as_dtype, pair))


def test_an_unknown_dtype_is_refused_by_name():
    """The error names what was asked for and what there is."""
    with pytest.raises(UnsupportedError, match=r"complex64.*float32"):
        as_dtype(np.complex64)
