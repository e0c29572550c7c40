"""Functions of every element, held against numpy."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import simrank

NUMBERS = st.lists(st.integers(-8, 8), min_size=1, max_size=6)


@given(NUMBERS, st.sampled_from(["add", "sub", "mul", "maximum", "minimum"]))
def test_elementwise_operations_equal_numpy(values, name):
    """On float32 and int64 tensors, with a tensor and with a number."""
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply}.get(name) or getattr(
        np, name
    )
    with simrank.Context("hgx_h100") as ctx:
        for dtype in ("float32", "int64"):
            x = ctx.tensor(values, dtype=dtype)
            assert getattr(x, name)(x).tolist() == function(values, values).tolist()
            if name not in ("maximum", "minimum"):  # As in torch, these take tensors only.
                assert getattr(x, name)(3).tolist() == function(values, 3).tolist()
