"""What no table has is refused by its name."""

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language.extra.cuda import utils

from simrank.errors import UnsupportedError
from simrank.kernels.source import names

from ..assembly import launch

N = 256


@triton.jit
def unknown_function(x_ptr, out, N: tl.constexpr):
    custom = utils.convert_custom_float8_sm80(tl.load(x_ptr + tl.arange(0, N)), tl.float16)
    tl.store(out + tl.arange(0, N), custom)


def test_what_is_not_emulated_is_refused_by_name(on_rank):
    """A function of the compiler would fail somewhere below otherwise."""

    def body(ctx):
        launch(ctx, unknown_function, [np.zeros(N, "f4")], np.zeros(N, "f4"), N=N)

    with pytest.raises(UnsupportedError, match="convert_custom_float8_sm80"):
        on_rank(body)


# ---- coverage of triton.language: nothing that kernels use is missing ----

REFUSED = {"float8e4b15"}


def test_every_public_name_is_emulated_or_refused_by_name():
    """Frozen: a name that a new triton adds shows up here."""
    states = names.coverage()
    assert set(states) == set(tl.__all__)
    missing = {name for name, state in states.items() if state == names.MISSING}
    assert missing <= {"inline_asm_elementwise"}
    assert {n for n, state in states.items() if state == names.REFUSED_BY_NAME} == REFUSED
