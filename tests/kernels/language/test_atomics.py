"""tl's atomics: what they are refused for."""

import numpy as np
import pytest

from simrank.kernels.language.atomics import FUNCTIONS
from simrank.kernels.values import types
from simrank.kernels.values.block import Block


def pointer(element):
    return Block(np.int64(0), types.pointer_to(element))


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("atomic_and", types.float32),
        ("atomic_add", types.int8),
        ("atomic_max", types.float16),
        ("atomic_cas", types.int8),
        ("atomic_poll", types.float32),
    ],
)
def test_types_that_hardware_has_no_atomic_for_are_refused(name, element):
    """By function and type."""
    arguments = (1, 2) if name == "atomic_cas" else (1,)
    with pytest.raises(ValueError, match=f"{name} does not support {element}"):
        FUNCTIONS[name](pointer(element), *arguments)


@pytest.mark.parametrize(("name", "sem"), [("atomic_load", "release"), ("atomic_store", "acquire")])
def test_a_look_does_not_release_and_a_store_does_not_acquire(name, sem):
    """As Triton has it."""
    arguments = () if name == "atomic_load" else (1,)
    with pytest.raises(ValueError, match="only supports"):
        FUNCTIONS[name](pointer(types.int32), *arguments, sem=sem)


def test_a_time_limit_is_not_negative():
    """Of a poll."""
    with pytest.raises(ValueError, match="non-negative"):
        FUNCTIONS["atomic_poll"](pointer(types.int32), 1, timeout_ns=-1)
