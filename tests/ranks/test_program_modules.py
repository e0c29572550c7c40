"""Which modules are the program's own, however they came to be there."""

import gc
import sys
import types
from types import ModuleType

from simrank.ranks.program_modules import PerModule, own_modules


def test_a_module_is_found_whenever_it_comes_and_goes(monkeypatch, tmp_path):
    """Looked at is what is new, and what had no file when it was looked at."""
    (tmp_path / "of_this_test.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert own_modules() == own_modules()
    import of_this_test

    assert of_this_test in own_modules()
    monkeypatch.setitem(sys.modules, "of_this_test", types.ModuleType("of_this_test"))
    assert of_this_test not in own_modules()
    monkeypatch.setitem(sys.modules, "of_this_test", of_this_test)
    assert of_this_test in own_modules()
    monkeypatch.delitem(sys.modules, "of_this_test")
    assert of_this_test not in own_modules()


def test_a_name_that_was_a_stub_may_become_the_programs(monkeypatch, tmp_path):
    """The names are the same ones, in the same order."""
    stub, real = types.ModuleType("stub_of_this_test"), types.ModuleType("stub_of_this_test")
    real.__file__ = str(tmp_path / "stub_of_this_test.py")
    monkeypatch.setitem(sys.modules, "stub_of_this_test", stub)
    assert stub not in own_modules()
    monkeypatch.setitem(sys.modules, "stub_of_this_test", real)
    assert real in own_modules()


def test_a_script_takes_the_place_of_an_installed_one(monkeypatch):
    """As `python -m pytest` and `runpy` do."""
    installed, script = types.ModuleType("__main__"), types.ModuleType("__main__")
    installed.__file__ = types.__file__
    monkeypatch.setitem(sys.modules, "__main__", installed)
    assert installed not in own_modules()
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert script in own_modules()


def test_installed_modules_are_not_the_programs():
    """Nor are simrank's and the standard library's."""
    assert not {types, sys.modules["simrank"], sys.modules["numpy"]} & {*own_modules()}


def test_a_module_that_takes_an_installed_ones_name_is_the_programs(monkeypatch, tmp_path):
    """What was found of the other does not hold for it; nor for one at the same address."""
    for _ in range(3):
        for folder, is_own in (("site-packages", False), ("here", True)):
            module = types.ModuleType("taker_of_this_test")
            module.__file__ = str(tmp_path / folder / "taker_of_this_test.py")
            monkeypatch.setitem(sys.modules, "taker_of_this_test", module)
            assert (module in own_modules()) == is_own
            del module


# ---- a module is looked at once, and again when it has other names ----


def test_a_module_is_looked_at_once_until_it_has_more_names():
    """Or fewer; a module of the same name is another."""
    seen = []

    def look(module):
        seen.append(module.__name__)
        return len(vars(module))

    names = PerModule(look)
    module = ModuleType("first")
    assert names.known(module) is None
    size = names(module)
    assert [names(module), names.known(module)] == [size, size]
    module.more = 1
    assert names.known(module) is None
    assert names(module) == size + 1
    del module.more
    assert names(module) == size
    assert names.known(ModuleType("first")) is None
    assert seen == ["first"] * 3


def test_results_of_many_modules_are_found_at_once():
    """Those that hold still: of modules that are new, changed or of another name there is none."""
    names = PerModule(lambda module: module.__name__)
    modules = {name: ModuleType(name) for name in ("first", "second", "third")}
    for name in ("first", "second"):
        names(modules[name])
    modules["second"].more = 1
    modules["no module"] = None

    assert names.cached(modules) == {"first": "first"}
    assert names.cached({"alias": modules["first"]}) == {"alias": "first"}


def test_nothing_is_kept_of_a_module_that_has_died():
    """Another may have its place in memory."""
    names = PerModule(lambda module: module.__name__)
    for number in range(3):
        assert names(ModuleType(f"module {number}")) == f"module {number}"
    gc.collect()
    assert names._known == {}
