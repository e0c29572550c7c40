"""Types of results: simrank's promotion against Triton's own semantic layer, pair by pair."""

import pytest

from ..promotion import DTYPES, ours, outcome, semantic, theirs

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
