"""A module is looked at once, and again when it has other names."""

import gc
from types import ModuleType

from simrank.ranks.program_modules import PerModule


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


def test_nothing_is_kept_of_a_module_that_has_died():
    """Another may have its place in memory."""
    names = PerModule(lambda module: module.__name__)
    for number in range(3):
        assert names(ModuleType(f"module {number}")) == f"module {number}"
    gc.collect()
    assert names._known == {}
