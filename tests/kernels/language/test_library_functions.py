"""Functions that another library computes where a program's tensors are its."""

import numpy as np

from simrank.kernels import library_tensors
from simrank.kernels.language.library_functions import shared


class Library:
    """Has one function."""

    def function(self, name):
        return (lambda values: values * 10) if name == "ten" else None


def test_the_librarys_function_is_used_where_there_is_one(monkeypatch):
    """Of floats in blocks and scalars; else ours."""
    ten, other = (shared(name, lambda values: values + 1) for name in ("ten", "other"))
    block, one = np.ones((1, 4), np.float32), np.float32(2)
    assert ten(block).tolist() == [[2.0] * 4]
    monkeypatch.setattr(library_tensors, "running", Library)
    assert ten(block).tolist() == [[10.0] * 4]
    assert (ten(one), type(ten(one))) == (20, np.float32)
    assert other(block).tolist() == [[2.0] * 4]
    assert ten(np.int32(2)) == 3
