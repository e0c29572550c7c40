"""Coverage of triton.language: nothing that kernels use is missing."""

import triton.language as tl

from simrank.kernels.source import coverage

REFUSED = {"float8e4b15"}


def test_every_public_name_is_emulated_or_refused_by_name():
    """Frozen: a name that a new triton adds shows up here."""
    states = coverage.coverage()
    assert set(states) == set(tl.__all__)
    missing = {name for name, state in states.items() if state == coverage.MISSING}
    assert missing <= {"inline_asm_elementwise"}
    assert {n for n, state in states.items() if state == coverage.REFUSED_BY_NAME} == REFUSED
