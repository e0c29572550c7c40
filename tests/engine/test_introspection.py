"""Objects are inspected by their real types: no code of a program runs."""

import importlib.util
import sys
import types
from unittest import mock

import pytest

from simrank.engine.introspection import attributes_of, is_real, module_text


class Flags:
    """A proxy that claims to be a class, and refuses everything else."""

    __class__ = property(lambda self: type)

    def __getattribute__(self, name):  # noqa: D105
        if name == "__class__":
            return type
        raise AssertionError(f"{name} was asked for")

    def __eq__(self, other):  # noqa: D105
        raise AssertionError("compared")

    def __bool__(self):  # noqa: D105
        raise AssertionError("asked for a truth value")

    __hash__ = None


class Forwarding:
    """A proxy whose `__dict__` is that of another object."""

    __dict__ = property(lambda self: pytest.fail("asked for __dict__"))


def test_a_proxy_has_its_real_type():
    """`isinstance` believes what `__class__` says."""
    assert isinstance(Flags(), type)
    assert not is_real(Flags(), (type, types.ModuleType))
    assert not is_real(mock.Mock(spec=types.ModuleType("m")), types.ModuleType)


def test_attributes_are_those_that_python_stores():
    """Modules, classes and objects have some; what is computed is left alone."""
    assert attributes_of(types.ModuleType("m"))["__name__"] == "m"
    assert attributes_of(Forwarding)["__doc__"] == Forwarding.__doc__
    assert attributes_of(types.SimpleNamespace(a=1)) == {"a": 1}
    assert attributes_of(Forwarding()) == {}
    assert attributes_of(3) == {}
    assert attributes_of(Flags()) == {}


def test_a_lazy_module_is_not_imported(tmp_path, monkeypatch):
    """Asking one for its file would execute it."""
    path = tmp_path / "lazy_part.py"
    path.write_text("raise AssertionError('executed')")
    spec = importlib.util.spec_from_file_location("lazy_part", path)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazy_part", module)
    spec.loader.exec_module(module)
    assert module_text(module, "__file__") == str(path)
    assert module_text(Flags(), "__file__") is None
