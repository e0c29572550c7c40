"""Replaced attributes are put back exactly."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from simrank.torch.cuda.switch import Patches


def test_absent_attributes_are_absent_again():
    """In reverse order, also when one attribute was replaced twice."""

    class Owner:
        kept = 1

    patches = Patches()
    patches.set(Owner, "kept", 2)
    patches.set(Owner, "kept", 3)
    patches.set(Owner, "new", 4)
    assert (Owner.kept, Owner.new) == (3, 4)
    patches.restore()
    assert Owner.kept == 1
    assert not hasattr(Owner, "new")


def test_names_that_an_installed_module_gets_later():
    """A module that had none of the objects is looked at again once it has more names."""
    old, new = object(), object()
    library = ModuleType("a_library")
    library.__file__ = "/usr/lib/python3/site-packages/a_library.py"
    sys.modules["a_library"] = library
    patches = Patches()
    try:
        patches.replace_everywhere([(old, new)])
        library.later = old
        patches.replace_everywhere([(old, new)])
        assert library.later is new
        patches.restore()
        assert library.later is old
    finally:
        del sys.modules["a_library"]


def test_switches_are_turned_back():
    """To where they were."""
    turned = []
    patches = Patches()
    patches.switch(turned.append, True, to=False)
    assert turned == [False]
    patches.restore()
    assert turned == [False, True]


def test_names_that_a_program_bound_before(cuda):
    """`from torch.cuda import Stream` in a module gives the class that works."""
    from simrank.torch.cuda import disable, standalone

    disable()
    program = ModuleType("a_program")
    program.Stream = dummy = torch.cuda.Stream
    sys.modules["a_program"] = program
    try:
        with standalone(1):
            assert program.Stream is torch.cuda.Stream
            assert program.Stream().cuda_stream == 1
        assert program.Stream is dummy
        with pytest.raises(RuntimeError, match=r"requires CUDA support|CUDA driver"):
            program.Stream()
    finally:
        del sys.modules["a_program"]
