"""Names of modules that several ranks set are found under strict: processes have their own."""

import sys
import types
from contextlib import suppress
from types import ModuleType
from unittest import mock

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import SimrankError
from simrank.isolation.package_changes import holder_of
from simrank.isolation.package_state import cure

# ruff: noqa: PLW0603 - global statements are what this is about


counter = 0
flag = False
cached = None
patched = "original"


def counts(rank):
    """Set a global to what the rank makes of it."""
    global counter
    dist.init_process_group("gloo")
    counter += 1
    dist.barrier()


def raises_a_flag(rank):
    """Set a global to the same on every rank."""
    global flag
    dist.init_process_group("gloo")
    flag = True
    dist.barrier()


def fills_a_cache(rank):
    """Set a global once; the other ranks find it set."""
    global cached
    dist.init_process_group("gloo")
    if cached is None:
        cached = [1, 2, 3]
    dist.barrier()


def patches(rank):
    """Patch a global for a block, in which others run."""
    dist.init_process_group("gloo")
    with mock.patch(f"{__name__}.patched", f"by rank {rank}"):
        dist.barrier()
        assert patched == f"by rank {rank}"


def sets_an_attribute(rank):
    """Set an attribute of another module."""
    import own_config as config

    dist.init_process_group("gloo")
    config.verbose = rank
    dist.barrier()


def only_rank_0(rank):
    """Set a global on one rank."""
    global counter
    dist.init_process_group("gloo")
    if rank == 0:
        counter = 7
    dist.barrier()


@pytest.fixture(autouse=True)
def _fresh():
    global counter, flag, cached
    counter, flag, cached = 0, False, None


def findings(program, *args):
    """Return what strict finds in a program on three ranks; nothing is raised."""
    with suppress(SimrankError), simrank.Context(strict=True) as ctx:
        ctx.multiprocessing.spawn(program, args, nprocs=3)
    return ctx.findings


def test_a_global_that_ranks_set_to_different_values_is_found():
    """With the ranks, the module and a line of one of them."""
    with pytest.raises(SimrankError, match="ranks 0-2: set "), simrank.Context(strict=True) as ctx:
        ctx.multiprocessing.spawn(counts, nprocs=3)
    (finding,) = findings(counts)
    assert finding.startswith("  ranks 0-2: set ")
    assert ".counter, which they share: processes have their own; set before at" in finding
    assert "test_module_globals.py:" in finding


def test_so_is_an_attribute_of_another_module(monkeypatch, tmp_path):
    """A module of options that ranks write their own into."""
    config = types.ModuleType("own_config")
    config.__file__ = str(tmp_path / "own_config.py")
    config.verbose = None
    monkeypatch.setitem(sys.modules, "own_config", config)
    (finding,) = findings(sets_an_attribute)
    assert "own_config.verbose" in finding


@pytest.mark.parametrize("program", [raises_a_flag, fills_a_cache, patches, only_rank_0])
def test_what_does_no_harm_is_not(program):
    """The same value, a value set once, a patch, which is each rank's own."""
    assert findings(program) == []


def test_without_strict_nobody_looks_at_greenlets():
    """Switches are not slowed down."""
    with simrank.Context(carrier="greenlet") as ctx:
        ctx.multiprocessing.spawn(counts, nprocs=3)
    assert ctx.engine.observers == []
    assert ctx.findings == []


# ---- which module that ranks share holds an object ----


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
