"""Elementwise functions promote as in Triton."""

import numpy as np
import pytest
import triton
import triton.language as tl

from simrank.kernels import library_tensors
from simrank.kernels.language import CORE
from simrank.kernels.language.elementwise import shared

from ..promotion import DTYPES, ours, outcome, semantic, theirs


@pytest.mark.parametrize("number", [1, 2.5])
def test_where_promotes_as_in_triton(number):
    """Blocks with blocks and with numbers."""
    wrong = []
    for a in DTYPES:
        for b in (*DTYPES, number):
            right = [theirs(b), ours(b)] if isinstance(b, tl.dtype) else [b, b]
            wanted = outcome(lambda a=a, r=right: semantic.where(theirs(tl.int1), theirs(a), r[0]))
            got = outcome(lambda a=a, r=right: CORE["where"](ours(tl.int1), ours(a), r[1]))
            if wanted != got:
                wrong.append(f"where {a}, {b}: Triton {wanted}, simrank {got}")
    assert not wrong


@triton.jit
def _chosen_by_all_alike(y, x, n):
    tl.store(y, tl.where(n > 3, x, 2.5))
    tl.store(y + 1, tl.where(n < 3, float("nan"), x).to(tl.float32))


def test_where_of_scalars_that_all_programs_share(on_rank):
    """A condition and two numbers, none of them of one program."""

    def body(ctx):
        y = ctx.zeros(2)
        _chosen_by_all_alike[(3,)](y, 1.25, 7)
        assert y.tolist() == [1.25, 1.25]

    on_rank(body)


# ---- functions that another library computes where a program's tensors are its ----


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
