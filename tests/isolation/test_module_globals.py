"""Names of modules that several ranks set are found under strict: processes have their own."""

# ruff: noqa: PLW0603 - global statements are what this is about
import sys
import types
from contextlib import suppress
from unittest import mock

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import SimrankError

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
