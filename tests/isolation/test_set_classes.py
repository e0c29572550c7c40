"""Classes whose attributes a code sets are read from it before it runs."""

import collections
import textwrap
import types
import unittest.mock

import pytest

from simrank.isolation import set_classes


def found_in(text, monkeypatch, **names):
    """Return the names of the classes with which watchers are called."""
    found = []
    monkeypatch.setattr(set_classes, "watchers", [found.append])
    set_classes.look(compile(textwrap.dedent(text), "program", "exec"), names)
    return [kind.__name__ for kind in found]


@pytest.mark.parametrize(
    "text",
    [
        "import collections; collections.ChainMap.get = 1",
        "from collections import Counter, ChainMap\nChainMap.get = 1",
        "import collections as c\ndef f():\n    def g():\n        c.ChainMap.get = 1",
        "import concurrent.futures, collections\nif collections:\n    collections.ChainMap.x = 1",
        "given.ChainMap.get = 1",
    ],
)
def test_a_chain_of_names_that_ends_in_a_class_is_found(text, monkeypatch):
    """Of imports, of the module's names, and within functions."""
    assert found_in(text, monkeypatch, given=collections) == ["ChainMap"]


def test_a_module_within_a_package_is_followed(monkeypatch):
    """Three ways to import one."""
    assert unittest.mock.Mock
    text = """
        import unittest.mock
        import unittest.mock as of_tests
        from unittest import mock
        unittest.mock.Mock.a = of_tests.MagicMock.b = 1
        mock.NonCallableMock.c = 2
    """
    assert found_in(text, monkeypatch) == ["Mock", "MagicMock", "NonCallableMock"]


@pytest.mark.parametrize(
    "text",
    [
        "def f(self):\n    self.a.b = 1",
        "import collections\ncollections.later = 1",
        "def f(kind):\n    kind.get = 1",
        "import collections\ncollections.nothing.get = 1",
        "import collections\ncollections.ChainMap().get = 1",
    ],
)
def test_what_is_no_class_is_not(text, monkeypatch):
    """Objects, modules, arguments and what is not there."""
    assert found_in(text, monkeypatch) == []


def test_nothing_is_computed_for_it(monkeypatch):
    """A module that makes names as they are asked for is not asked."""
    given = types.ModuleType("given")
    given.__getattr__ = lambda name: collections.ChainMap
    assert given.Any is collections.ChainMap
    assert found_in("given.Any.x = 1", monkeypatch, given=given) == []
