"""Lines of the user's program, read only when a report is built."""

import importlib
import importlib.util
import sys
import types
from functools import partial
from queue import Queue
from types import SimpleNamespace
from unittest import mock

import pytest

from simrank.engine import CallSite, Engine, SourceLine, callsite, user_site
from simrank.engine.callsite import attributes_of, is_real, module_text, site_of_frame, skip_package
from simrank.engine.watchdog import Watchdog


def test_the_site_is_the_users_line():
    """File and line of the call into simrank, not simrank's own."""
    site = user_site()
    line = sys._getframe().f_lineno - 1

    assert site.line() == SourceLine(__file__, line)
    assert str(site.line()) == f"test_callsite.py:{line}"


def test_the_site_of_a_statement_over_several_lines_is_the_calls_line():
    """Instructions know their own line."""
    first = sys._getframe().f_lineno
    pair = (
        1,
        user_site(),
    )

    assert pair[1].line().line == first + 3


def test_frames_of_simrank_and_of_the_standard_library_are_nobodys_program():
    """A wait inside `queue.Queue.get` is at the line that called it."""

    class Spy(Queue):
        def _put(self, item):
            self.site = user_site()
            super()._put(item)

    def outer():
        spied = Spy()
        original, Spy._put = Spy._put, lambda self, _: setattr(self, "site", queue_frame())
        spied.put(1)
        Spy._put = original
        return spied.site

    def queue_frame():
        frame = sys._getframe(2)
        assert frame.f_code.co_name == "put"
        return site_of_frame(frame)

    assert outer().code is outer.__code__


def test_without_a_users_frame_there_is_no_site():
    """None, not an error."""
    assert site_of_frame(None) is None


def test_an_unknown_instruction_resolves_to_the_first_line():
    """A site is never an error of its own."""
    code = Engine.step.__code__

    assert CallSite(code, 10**6).line() == SourceLine(code.co_filename, code.co_firstlineno)


LIBRARY = """
def call_back(function):
    return function()
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A package outside the standard library that calls back; nothing is skipped afterwards."""
    (tmp_path / "calling_back").mkdir()
    (tmp_path / "calling_back" / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(callsite, "_skipped", list(callsite._skipped))
    yield importlib.import_module("calling_back")
    callsite.is_library.cache_clear()
    del sys.modules["calling_back"]


def file_above(library):
    """Return whose frame a call through a package is put down to."""
    return library.call_back(lambda: site_of_frame(sys._getframe(1))).code.co_filename


def test_frames_of_a_package_are_the_users_until_it_is_skipped(library):
    """A layer that stands in for a library says so once, with one call."""
    assert file_above(library) == library.__file__

    skip_package("calling_back")
    skip_package("calling_back")

    assert file_above(library) == __file__


def test_frames_of_installed_packages_are_not_the_users(tmp_path, monkeypatch):
    """A wrapper of an installed package is stepped over, unless the program lives in it."""
    path = tmp_path / "site-packages" / "wrapping.py"
    path.parent.mkdir()
    path.write_text(LIBRARY)
    names = {}
    exec(compile(LIBRARY, str(path), "exec"), names)  # noqa: S102 - a frame of that file
    monkeypatch.setattr(callsite, "_programs", set())
    monkeypatch.setattr(callsite, "_library_files", set())
    found = [names["call_back"](lambda: site_of_frame(sys._getframe(1))).code.co_filename]
    callsite.note_program(names["call_back"].__code__)
    found.append(names["call_back"](lambda: site_of_frame(sys._getframe(1))).code.co_filename)
    callsite.is_installed.cache_clear()
    assert found == [__file__, str(path)]


def test_a_package_that_is_not_imported_may_be_skipped(library):
    """It has no frames yet; once it has, they are skipped."""
    module = sys.modules.pop("calling_back")
    skip_package("calling_back")
    sys.modules["calling_back"] = module

    assert file_above(library) == __file__


def test_the_watchdog_skips_the_same_packages(library):
    """It names the line that called into the package."""
    skip_package("calling_back")
    engine, reported = Engine(), []
    dog = Watchdog(engine, 1.0, None)
    dog._log = SimpleNamespace(warning=lambda text, *facts: reported.append(text % facts))
    lines = []

    def computing():
        for now_s in (0.0, 2.0):
            lines.append(sys._getframe().f_lineno + 1)
            library.call_back(partial(dog.look, now_s))

    engine.start_task(computing, "rank 0", 0)
    engine.run()

    assert reported[0].endswith(f"at {__file__}:{lines[0]}")


# ---- objects are inspected by their real types: no code of a program runs ----


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
