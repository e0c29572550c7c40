"""Torch ranks that share a module are told so where it matters: processes have their own."""

# ruff: noqa: PLW0603 - global statements are what this is about
import sys

import pytest
import torch.distributed as dist

import simrank
from simrank.errors import SimrankError, SpawnException

LIBRARY = """
import torch

group = None
calls = 0
cache = None
made = dict.fromkeys([0])
registered = None


def set_group(rank):
    global group
    group = [rank]


def check_group(rank):
    assert group == [rank]


def set_made(rank):
    global made
    made = [rank]


def make_once(rank):
    global made
    assert type(made) is dict, "made before"
    made = [rank]


def initialize(rank):
    global group
    assert group is None, "initialized before"
    group = [rank]


def count(rank):
    global calls
    calls += 1


def fill(rank):
    global cache
    if cache is None:
        cache = {"of": rank}


def register(rank):
    global registered
    registered = torch.float32
"""

state = None


@pytest.fixture
def library(tmp_path, monkeypatch):
    """An installed package that uses torch."""
    folder = tmp_path / "site-packages" / "sharedlib"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder.parent))
    yield
    sys.modules.pop("sharedlib", None)


def call(rank, name):
    """Call a function of the package on every rank."""
    dist.init_process_group("gloo")
    import sharedlib

    getattr(sharedlib, name)(rank)
    dist.barrier()
    if name == "set_group":
        sharedlib.check_group(rank)


def first_of_cache():
    """Name a key of the package: changes under it count."""
    import sharedlib

    return sharedlib.cache["of"]


def run(name, **settings):
    """Run three ranks that call a function of the package."""
    with simrank.Context(**settings) as ctx:
        ctx.multiprocessing.spawn(call, (name,), nprocs=3)
    return ctx.findings


@pytest.mark.parametrize("settings", [{}, {"strict": True}], ids=["default", "strict"])
@pytest.mark.parametrize("name", ["set_group", "initialize", "count", "fill"])
def test_what_ranks_set_in_a_package_is_their_own(library, name, settings):
    """As if each had imported it; a rank imports it first here, and sets it in the same turn."""
    assert not run(name, **settings)
    sharedlib = sys.modules["sharedlib"]
    assert (sharedlib.group, sharedlib.calls, sharedlib.cache) == (None, 0, None)


def test_what_may_have_come_with_the_import_is_a_finding(library):
    """It names the ranks, the line and the setting that gives each rank its own."""
    (found,) = run("set_made")
    assert "ranks 0-2: set sharedlib.made" in found
    assert "at test_module_globals.py:" in found
    assert '[tool.simrank] private = ["sharedlib"]' in found


@pytest.mark.parametrize("name", ["set_group", "initialize"])
def test_ranks_of_a_private_package_have_their_own(library, name):
    """That is the cure."""
    assert not run(name, private=["sharedlib"])


class Own:
    """Something of the program's own, with an attribute that is called as a name of the package."""

    calls = 0

    def called(self):
        self.calls = 1


@pytest.mark.parametrize("name", ["count", "fill", "register"])
def test_what_processes_would_do_alike_is_none(library, name):
    """A counter, a cache that is filled once, the same object."""
    assert not run(name)


def test_a_failure_tells_what_another_rank_had_set_where_it_raised(library):
    """A package that wants to be initialized once, with what its import has made."""
    with pytest.raises(SpawnException, match="made before") as raised:
        run("make_once")
    (note,) = raised.value.__notes__
    assert "rank 0: set sharedlib.made" in note
    assert "--private sharedlib" in note


def set_own(rank):
    """Set a global of the program's own module."""
    global state
    dist.init_process_group("gloo")
    state = rank
    dist.barrier()


def test_numbers_count_in_modules_of_the_program():
    """Each rank would read its own."""
    with (
        pytest.raises(SimrankError, match=r"set .*test_module_globals\.state"),
        simrank.Context() as c,
    ):
        c.multiprocessing.spawn(set_own, nprocs=2)
