"""Which module that ranks share holds an object."""

import sys
from types import ModuleType

import pytest

from simrank.isolation.module_globals import cure, holder_of


class Thing:
    """What a module holds, or what lies in between."""


@pytest.fixture(name="module")
def fixture_module(monkeypatch):
    """Put an empty module among those that are imported."""
    module = ModuleType("holding.inner")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_objects_are_found_however_deep(module):
    """In an attribute of an entry of an attribute."""
    thing, between = Thing(), Thing()
    assert holder_of(thing) is None
    between.held = {"by": [thing]}
    module.state = between
    assert holder_of(thing) == "holding.inner"


def test_classes_are_of_their_module(module):
    """A class that holds it, and is not named there at all."""
    thing = Thing()
    module.kept = [type("Kept", (), {"thing": thing, "__module__": module.__name__})]
    assert holder_of(thing) == "holding.inner"


def test_what_runs_holds_nothing():
    """A local variable, or a function's cell, is nobody's to share."""
    thing = Thing()

    def held() -> Thing:
        return thing

    assert holder_of(held()) is None


def test_the_cure_is_for_the_package():
    """Or for the program, which is started otherwise."""
    assert cure("holding.inner").endswith("--private holding")
    assert "simrank run" in cure("__main__")
