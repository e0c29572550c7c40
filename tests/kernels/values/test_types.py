"""Types of results: simrank's promotion against Triton's own semantic layer, pair by pair."""

import functools
from fractions import Fraction

import numpy as np
import pytest
import triton.language as tl

from simrank.kernels.language import elementwise
from simrank.kernels.values import types
from simrank.kernels.values.block import Block, cast_to
from simrank.kernels.values.types import odd_sum, to_float32

from ..promotion import DTYPES, ours, outcome, semantic, theirs

NARROW = {str(d) for d in DTYPES if d.is_fp8()} | {"fp16"}
NUMBERS = (True, 1, -1, 300, 2**31, 2**40, 1.5, 1e-3)
OPERATORS = {
    "add": lambda s, x, y: s.add(x, y, False), "sub": lambda s, x, y: s.sub(x, y, False),
    "mul": lambda s, x, y: s.mul(x, y, False), "truediv": lambda s, x, y: s.truediv(x, y),
    "floordiv": lambda s, x, y: s.floordiv(x, y), "mod": lambda s, x, y: s.mod(x, y),
    "and": lambda s, x, y: s.and_(x, y), "xor": lambda s, x, y: s.xor_(x, y),
    "lshift": lambda s, x, y: s.shl(x, y), "lt": lambda s, x, y: s.less_than(x, y),
    "eq": lambda s, x, y: s.equal(x, y),
}  # fmt: skip


def differences(name, compute, pairs):
    """The pairs of operands for which types differ, as text."""
    found = []
    for label, own_pair, their_pair in pairs:
        wanted = outcome(lambda pair=their_pair: compute(semantic, *pair))
        got = outcome(lambda pair=own_pair: getattr(pair[0], f"__{name}__")(pair[1]))
        if name in {"truediv", "mod"} and wanted in NARROW:
            wanted = "refused"  # Releases before 3.9 give it this type and do not compile it.
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


FUNCTIONS = {
    "maximum": lambda f, _, x, y: f.maximum(x, y), "minimum": lambda f, _, x, y: f.minimum(x, y),
    "where": lambda f, condition, x, y: f.where(condition, x, y),
    "clamp": lambda f, _, x, y: f.clamp(x, y, y), "fma": lambda f, _, x, y: f.fma(x, y, y),
    "fdiv": lambda f, _, x, y: f.fdiv(x, y),
}  # fmt: skip


class Theirs:
    """Triton's functions, outside of a kernel."""

    def __getattr__(self, name):
        """Return a function that is given the semantic layer."""
        return functools.partial(getattr(tl, name), _semantic=semantic)


def compiles(name, first, second, result):
    """Return whether the compiler takes what the semantic layer has given a type."""
    if name == "fma":
        return not result.startswith(("int", "uint"))
    if name == "fdiv" and elementwise.TYPES_NUMBERS_FIRST:
        other = "fp32" if second in NUMBERS else str(second)
        return str(first) == other and result in {"fp32", "fp64"}
    return True


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_promote_as_in_triton(name):
    """Of blocks and numbers; what has a type and does not compile is refused."""
    wrong = []
    for first in DTYPES:
        for second in (*DTYPES, 1, 1.5):
            is_number = second in NUMBERS
            own = ours(tl.int1), ours(first), second if is_number else ours(second)
            their = theirs(tl.int1), theirs(first), second if is_number else theirs(second)
            wanted = outcome(lambda args=their: FUNCTIONS[name](Theirs(), *args))
            got = outcome(lambda args=own: FUNCTIONS[name](elementwise, *args))
            wanted = wanted if compiles(name, first, second, wanted) else "refused"
            if wanted != got:
                wrong.append(f"{name} {first}, {second}: Triton {wanted}, simrank {got}")
    assert not wrong


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


# ---- Conversions between element types ----

_DIGITS = {types.float16: 11, types.bfloat16: 8, types.float32: 24}


def nearest(number, digits):
    """Return the number of so many binary digits that is nearest to an exact one, ties to even."""
    exact = Fraction(number)
    if exact == 0:
        return 0.0
    exponent = 0
    while abs(exact) >= 1 << digits:
        exact, exponent = exact / 2, exponent + 1
    while abs(exact) < 1 << (digits - 1):
        exact, exponent = exact * 2, exponent - 1
    return float(round(exact) * Fraction(2) ** exponent)


def block(numbers, element):
    return Block(np.array([numbers]).astype(element.compute), element)


def near_middles(random, digits):
    """Return floats on, just above and just below the middles of narrower ones."""
    base = random.integers(1 << (digits - 1), 1 << digits, 300) + 0.5
    off = random.choice([0.0, 2.0**-40, -(2.0**-40), 2.0**-20], 300)
    return (base + off) * random.choice([1, -1], 300)


@pytest.mark.parametrize("target", [types.float16, types.bfloat16], ids=str)
def test_fp64_is_rounded_once(target):
    """By way of fp32 a number just above the middle would become the middle itself."""
    x = near_middles(np.random.default_rng(3), _DIGITS[target])
    found = cast_to(block(x, types.float64), target).values[0]
    assert found.tolist() == [nearest(float(number), _DIGITS[target]) for number in x]


@pytest.mark.parametrize("own", [types.int32, types.uint32, types.int64, types.uint64], ids=str)
@pytest.mark.parametrize("target", [types.float16, types.bfloat16, types.float32], ids=str)
def test_integers_are_rounded_once(own, target):
    """Also those that neither fp32 nor fp64 holds."""
    random = np.random.default_rng(5)
    top = 15 if target is types.float16 else own.bits - (own.kind == "i")
    bits = random.integers(2, top, 400)
    middles = (
        (1 << bits.astype(object))
        + (1 << (bits.astype(object) * 2 // 3))
        + random.integers(-1, 2, 400)
    )
    numbers = [int(n) * (-1 if own.kind == "i" and i % 2 else 1) for i, n in enumerate(middles)]
    x = Block(np.array([numbers], own.compute), own)
    wanted = [nearest(number, _DIGITS[target]) for number in numbers]
    assert cast_to(x, target).values[0].tolist() == wanted


def test_the_largest_integers_round_to_powers_of_two():
    """2**63 - 1 is nearest to 2**63 in every float."""
    x = block([2**63 - 1, -(2**63), 2**62 + 2**54 + 1], types.int64)
    assert cast_to(x, types.bfloat16).values[0].tolist() == [2.0**63, -(2.0**63), 2.0**62 + 2.0**55]


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (types.int8, [44, 56, -1, 0, 0, -128, 127]),
        (types.uint8, [44, 0, 255, 0, 0, 128, 127]),
        (types.int16, [300, -200, 32767, -32768, 0, 128, 127]),
        (types.uint16, [300, 0, 65535, 0, 0, 128, 127]),
        (types.int32, [300, -200, 10**6, -(10**6), 0, 128, 127]),
    ],
    ids=str,
)
def test_floats_become_integers_of_a_register_and_are_cut_to_8_bits(target, wanted):
    """There is no conversion to 8 bits: sm_90 saturates at 16 bits, and stores the lower half."""
    x = block([300.0, -200.0, 1e6, -1e6, np.nan, 128.7, 127.9], types.float32)
    assert cast_to(x, target).values[0].tolist() == wanted


def test_what_is_no_number_becomes_what_the_instruction_says():
    """Zero, but the lowest number from fp64 and to 64 bits."""
    for own, target, wanted in (
        (types.float32, types.int32, 0), (types.float64, types.int32, -(2**31)),
        (types.float32, types.int64, -(2**63)), (types.float32, types.uint64, 2**63),
        (types.float64, types.int8, 0),
    ):  # fmt: skip
        assert cast_to(block([np.nan], own), target).values[0, 0] == wanted


def test_a_cast_toward_zero_is_rounded_once_too():
    """Just below a number of bf16 is the one before it."""
    x = Block(np.float64(1 - 2.0**-40), types.float64)
    assert float(cast_to(x, types.bfloat16, toward_zero=True).values) == 1 - 2.0**-8


def test_rounding_to_odd_keeps_what_fits():
    """Numbers of fp32 stay, and so do infinities and NaN."""
    x = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, 2.0**-149])
    np.testing.assert_array_equal(to_float32(x), x.astype(np.float32))
    assert np.signbit(to_float32(x))[1]
    with np.errstate(over="ignore"):
        assert to_float32(np.float64(1e300)) == np.finfo(np.float32).max
    assert odd_sum(np.float64(1), np.float64(2.0**-80)) == 1 + 2.0**-52
    assert odd_sum(np.float64(1), np.float64(0.5)) == 1.5
