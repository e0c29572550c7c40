"""A package's name that stands for it until a program asks for more."""

import importlib
import importlib.util
import inspect
import pkgutil
import sys

import pytest

from simrank.isolation.deferred_module import DeferredModule
from simrank.isolation.libraries import ImportWatcher

NAME = "outer.inner"


@pytest.fixture(name="deferred")
def fixture_deferred(tmp_path, monkeypatch):
    """Write a package with a module, put its name in its place, and forget both afterwards."""
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    (tmp_path / "outer" / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("from . import words\nvalue = 3\ndef answer(): return 4\n")
    (folder / "words.py").write_text("word = 'w'\n")
    (tmp_path / "outer" / "asks_less.py").write_text("from outer.inner import answer, part\n")
    (tmp_path / "outer" / "asks_more.py").write_text("from outer.inner import value, words\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    importlib.import_module("outer")
    made = DeferredModule(NAME, {"answer": lambda: 1}, {"part": lambda: "alone"})
    made.put()
    yield made
    for name in [*sys.modules]:
        if name.partition(".")[0] == "outer":
            del sys.modules[name]


def is_imported():
    """Return whether the package itself was executed."""
    return f"{NAME}.words" in sys.modules


def test_what_it_answers_imports_nothing(deferred):
    """By `import`, `from` and attributes; what looks at all modules does not import it either."""
    outer = importlib.import_module("outer")
    assert importlib.import_module(NAME) is outer.inner is deferred
    assert (outer.inner.answer(), outer.inner.part) == (1, "alone")
    assert importlib.util.find_spec(NAME).origin == outer.inner.__file__
    assert not hasattr(outer.inner, "__warningregistry__")
    assert importlib.import_module("outer.asks_less").part == "alone"
    assert next(pkgutil.iter_modules(outer.inner.__path__)).name == "words"
    assert importlib.util.find_spec(f"{NAME}.words") is not None
    assert inspect.getmodule(is_imported).__name__ == __name__
    assert not is_imported()


def test_any_other_attribute_imports_the_package_also_for_who_kept_the_name(deferred):
    """The answers are the package's own then."""
    assert deferred.value == 3
    assert is_imported()
    assert importlib.import_module("outer").inner is sys.modules[NAME] is not deferred
    assert deferred.answer() == 4
    with pytest.raises(AttributeError):
        _ = deferred.part


def test_a_module_of_the_package_imports_it(deferred):
    """As Python imports a package before its modules."""
    assert importlib.import_module(f"{NAME}.words").word == "w"
    assert sys.modules[NAME] is not deferred
    assert sys.modules[NAME].words.word == "w"


def test_a_name_that_it_does_not_answer_is_imported_from_the_package(deferred):
    """By `from`, names and modules alike."""
    names = importlib.import_module("outer.asks_more")
    assert (names.value, names.words.word) == (3, "w")
    assert sys.modules[NAME] is not deferred


def test_an_attribute_is_set_on_the_package(deferred):
    """A name that is there before is no place for values."""
    deferred.value = 5
    assert sys.modules[NAME].value == deferred.value == 5
    assert "words" in dir(deferred)


def test_what_waits_for_the_package_is_called_as_it_is_imported(deferred):
    """The name in its place is not taken for it."""
    seen = []
    watcher = ImportWatcher({NAME: None}, lambda module, is_late: seen.append((module, is_late)))
    watcher.watch()
    try:
        assert not seen
        assert deferred.value == 3
    finally:
        watcher.stop()
    assert seen == [(sys.modules[NAME], True)]


def test_a_name_that_is_taken_back_leaves_nothing(deferred):
    """At the end of a Context; the package can be imported then."""
    deferred.remove()
    assert NAME not in sys.modules
    assert not hasattr(importlib.import_module("outer"), "inner")
    deferred.remove()
    assert importlib.import_module(NAME).value == 3
