"""Types of results: simrank's promotion against Triton's own semantic layer, pair by pair."""

import numpy as np
import pytest

pytest.importorskip("triton")

import triton.language as tl
from triton.language.semantic import IncompatibleTypeErrorImpl, TritonSemantic
from triton.runtime.interpreter import InterpreterOptions

from simrank.kernels.language import CORE, STANDARD
from simrank.kernels.values import types
from simrank.kernels.values.block import Block

DTYPES = (
    tl.int1, tl.int8, tl.int16, tl.int32, tl.int64, tl.uint8, tl.uint16, tl.uint32, tl.uint64,
    tl.float16, tl.bfloat16, tl.float32, tl.float64, tl.float8e4nv, tl.float8e5,
)  # fmt: skip
NUMBERS = (True, 1, -1, 300, 2**31, 2**40, 1.5, 1e-3)
OPERATORS = {
    "add": lambda s, x, y: s.add(x, y, False), "sub": lambda s, x, y: s.sub(x, y, False),
    "mul": lambda s, x, y: s.mul(x, y, False), "truediv": lambda s, x, y: s.truediv(x, y),
    "floordiv": lambda s, x, y: s.floordiv(x, y), "mod": lambda s, x, y: s.mod(x, y),
    "and": lambda s, x, y: s.and_(x, y), "xor": lambda s, x, y: s.xor_(x, y),
    "lshift": lambda s, x, y: s.shl(x, y), "lt": lambda s, x, y: s.less_than(x, y),
    "eq": lambda s, x, y: s.equal(x, y),
}  # fmt: skip


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


def differences(name, compute, pairs):
    """The pairs of operands for which types differ, as text."""
    found = []
    for label, own_pair, their_pair in pairs:
        wanted = outcome(lambda pair=their_pair: compute(semantic, *pair))
        got = outcome(lambda pair=own_pair: getattr(pair[0], f"__{name}__")(pair[1]))
        if wanted != got:
            found.append(f"{name} {label}: Triton {wanted}, simrank {got}")
    return found


@pytest.mark.parametrize("name", OPERATORS)
def test_blocks_promote_as_in_triton(name):
    """Every pair of types, refusals included."""
    pairs = [
        (f"{a}, {b}", (ours(a), ours(b)), (theirs(a), theirs(b))) for a in DTYPES for b in DTYPES
    ]
    assert not differences(name, OPERATORS[name], pairs)


@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_promote_as_in_triton(name):
    """Every type with Python numbers, those that do not fit included."""
    pairs = [(f"{a}, {n}", (ours(a), n), (theirs(a), n)) for a in DTYPES for n in NUMBERS]
    assert not differences(name, OPERATORS[name], pairs)


def test_casts_are_refused_as_in_triton():
    """Bit casts between types of different widths, and rounding modes of what is not narrowed."""
    wrong = []
    for source in DTYPES:
        for target in DTYPES:
            for how in ({"bitcast": True}, {"fp_downcast_rounding": "rtz"}):
                if "bitcast" in how:
                    wanted = outcome(lambda s=source, t=target: semantic.bitcast(theirs(s), t))
                else:
                    wanted = outcome(lambda s=source, t=target: semantic.cast(theirs(s), t, "rtz"))
                got = outcome(lambda s=source, t=target, h=how: ours(s).to(t, **h))
                if wanted != got:
                    wrong.append(f"{source} to {target} {how}: Triton {wanted}, simrank {got}")
    assert not wrong


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


def test_sums_have_the_types_of_triton():
    """Integers below 32 bits are widened, int1 as unsigned."""
    wanted = {str(d): str(tl.standard._pick_sum_dtype.fn(d, None)) for d in DTYPES}
    assert {str(d): str(STANDARD["sum"](ours(d)[None], 0).dtype) for d in DTYPES} == wanted


def test_extremes_are_widened_only_without_their_places():
    """As tl.max does; the value beside an index keeps the type of its block."""
    for dtype in (tl.int8, tl.float16, tl.bfloat16, tl.uint8, tl.float64):
        block = ours(dtype)[None]
        wide = {8: tl.int32, 16: tl.float32}.get(dtype.primitive_bitwidth, dtype)
        assert STANDARD["max"](block, 0).dtype == wide
        assert STANDARD["max"](block, 0, return_indices=True)[0].dtype == dtype
