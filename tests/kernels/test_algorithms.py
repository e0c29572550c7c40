"""Kernels as collectives: what a module must have, and what its options may be."""

import pytest

pytest.importorskip("triton")

from simrank.errors import UnsupportedError
from simrank.kernels.algorithms import DEFAULTS, KernelAlgorithm

MODULE = """
COLLECTIVE = "all_reduce"
kernel = None
def buffer_elements(*sizes): return 1
def pad_words(*sizes): return 1
"""


@pytest.fixture
def reference(tmp_path):
    """A file that has all that is needed."""
    path = tmp_path / "own.py"
    path.write_text(MODULE)
    return str(path)


def test_what_is_not_given_has_a_default(reference):
    """A size may have a unit."""
    algorithm = KernelAlgorithm("own", reference, {"slot_size": "8 KiB"})
    assert algorithm.collective == "all_reduce"
    assert algorithm.options == {**DEFAULTS, "slot_size": 8192}


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"slots": 3}, ValueError, "no option slots; choices"),
        ({"num_slots": 0}, ValueError, "num_slots must be a whole number from 1, got 0"),
        ({"num_warps": True}, ValueError, "num_warps must be a whole number"),
        ({"slot_size": 3000}, ValueError, "power of two in bytes, got 3000"),
        ({"buffer": "l2"}, UnsupportedError, "only hbm"),
    ],
)
def test_an_option_that_no_kernel_takes_is_refused(reference, options, kind, words):
    """With its value, and what it may be."""
    with pytest.raises(kind, match=words):
        KernelAlgorithm("own", reference, options)


def test_a_module_that_lacks_something_is_refused_by_what_it_lacks(tmp_path):
    """All of it at once."""
    path = tmp_path / "half.py"
    path.write_text('COLLECTIVE = "all_reduce"\n')
    with pytest.raises(ValueError, match=r"half\.py has no kernel, buffer_elements, pad_words"):
        KernelAlgorithm("half", str(path), {})


def test_a_module_that_raises_is_refused_with_its_line(tmp_path):
    """And is no module that another one finds."""
    path = tmp_path / "broken.py"
    path.write_text("x = 1\nx / 0\n")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"broken\.py:2 raised ZeroDivisionError"):
            KernelAlgorithm("broken", str(path), {})
