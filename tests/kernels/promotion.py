"""What Triton's own semantics says of types, to compare with."""

import numpy as np
import triton.language as tl
from triton.language.semantic import IncompatibleTypeErrorImpl, TritonSemantic
from triton.runtime.interpreter import InterpreterOptions

from simrank.kernels.values import types
from simrank.kernels.values.block import Block

DTYPES = (
    tl.int1, tl.int8, tl.int16, tl.int32, tl.int64, tl.uint8, tl.uint16, tl.uint32, tl.uint64,
    tl.float16, tl.bfloat16, tl.float32, tl.float64, tl.float8e4nv, tl.float8e5,
)  # fmt: skip


class NoBuilder:
    """Stands for Triton's builder of code: types are all that is asked."""

    options = InterpreterOptions()
    codegen_fns = {"min_dot_size": lambda *_: (1, 1, 16)}  # noqa: RUF012 - never changed

    def __getattr__(self, _name):
        """Return a function that does nothing."""
        return lambda *_: None


semantic = TritonSemantic(NoBuilder())


def theirs(dtype):
    return tl.tensor(None, dtype)


def ours(dtype):
    element = types.element_type(dtype)
    return Block(element.compute.type(1), element)


def outcome(compute):
    """The type of a result, or that there is none."""
    try:
        with np.errstate(all="ignore"):
            found = compute()
    except (TypeError, ValueError, AssertionError, IncompatibleTypeErrorImpl):
        return "refused"
    return "refused" if found is NotImplemented else str(found.dtype)
