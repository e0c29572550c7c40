"""Barriers between two lines of a compiled kernel, found in its assembly."""

import pytest

from simrank.engine import CallSite
from simrank.kernels.compiler.barriers import are_apart

CODE = compile("load()\nreduce()\nstore()\nstore()", "/home/me/mine.py", "exec")
LOAD, STORE, LAST = (
    CallSite(CODE, next(start for start, _, line in CODE.co_lines() if line == number))
    for number in (1, 3, 4)
)

NVIDIA = {
    "head": '\t.file 1 "/home/me/mine.py"\n\t.file 2 "/triton/standard.py"',
    "at": "\t.loc\t{}\t// mine.py",
    "load": "\t// begin inline asm\n\t.loc 1 9 5\n\t@%p1 ld.global.b32 {{ %r1 }}, [ %rd1 + 0 ];\n"
    "\t// end inline asm",
    "store": "\t@%p1 st.global.v2.b32 [ %rd3 + 0 ], {{ %r1, %r2 }};",
    "barrier": "\tbar.sync \t0;",
    "shuffle": "\tshfl.sync.bfly.b32 %r9, %r8, 16, 31, -1;",
    "top": "$L__BB0_2:   // =>This Inner Loop Header: Depth=1",
    "again": "\t@%p5 bra \t$L__BB0_2;",
}
AMD = {
    "head": '\t.file 1 "/home/me" "mine.py"\n\t.file 2 "/triton" "standard.py"',
    "at": "\t.loc\t{}\t; mine.py",
    "load": "\tbuffer_load_dword v5, v2, s[0:3], 0 offen",
    "store": "\tbuffer_store_dword v5, v1, s[0:3], 0 offen",
    "barrier": "\ts_barrier",
    "shuffle": "\tds_bpermute_b32 v1, v2, v3",
    "top": ".LBB0_3:     ; =>This Inner Loop Header: Depth=1",
    "again": "\ts_cbranch_scc1 .LBB0_3",
}
CASES = {
    "load store": True,
    "load barrier store": False,
    "barrier load store barrier": True,
    "load shuffle store": True,
    "top load barrier store again": False,
    "top load barrier store barrier again": False,
    "top store load again": True,
    "top barrier store load again": False,
    "store load": False,
    "top store again top load again": False,
}
LINES = {"load": "1 1 5", "store": "1 3 5", "barrier": "2 7 1", "shuffle": "2 7 1"}


def assembly(words, dialect):
    """Return the text of a kernel."""
    parts = [dialect["head"]]
    for word in words.split():
        if word in LINES:
            parts.append(dialect["at"].format(LINES[word]))
        parts.append(dialect[word].format())
    return "\n".join(parts)


@pytest.mark.parametrize("dialect", [NVIDIA, AMD], ids=["nvidia", "amd"])
@pytest.mark.parametrize("words", CASES)
def test_a_barrier_on_every_way_from_one_line_to_the_other_orders_them(words, dialect):
    """Straight on, and into the next iteration of a loop."""
    text = assembly(words, dialect)
    places = (LOAD, "loads"), (STORE, "writes")
    assert are_apart(text, *places, in_a_warp=False) == CASES[words]
    assert not are_apart(assembly("load shuffle store", dialect), *places, in_a_warp=True)


def test_a_line_that_is_not_found_is_apart_where_there_is_no_barrier_at_all():
    """As of a kernel of an installed package, whose caller is the line."""
    places = (LOAD, "loads"), (LAST, "writes")
    assert are_apart(assembly("load store", NVIDIA), *places, in_a_warp=False)
    assert not are_apart(assembly("load store barrier", NVIDIA), *places, in_a_warp=False)
