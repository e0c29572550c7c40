"""Torch ranks that share a module are told so where it matters: processes have their own."""

# ruff: noqa: PLW0603 - global statements are what this is about
import sys

import pytest
import torch.distributed as dist

import simrank
from simrank.cli import main
from simrank.errors import SimrankError, SpawnException

LIBRARY = """
import torch

group = None
calls = 0
cache = None
registered = None


def set_group(rank):
    global group
    group = [rank]


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
    for name in ("sharedlib", "emptytop", "emptytop.inner"):
        sys.modules.pop(name, None)


def call(rank, name):
    """Call a function of the package on every rank."""
    dist.init_process_group("gloo")
    import sharedlib

    getattr(sharedlib, name)(rank)
    dist.barrier()


def run(name, **settings):
    """Run three ranks that call a function of the package."""
    with simrank.Context(**settings) as ctx:
        ctx.multiprocessing.spawn(call, (name,), nprocs=3)
    return ctx.findings


def test_objects_that_ranks_set_in_a_package_are_a_finding(library):
    """It names the ranks, the line and the setting that gives each rank its own."""
    (found,) = run("set_group")
    assert "ranks 0-2: set sharedlib.group" in found
    assert "at test_module_globals.py:" in found
    assert '[tool.simrank] private = ["sharedlib"]' in found


def test_under_strict_it_is_an_error(library):
    """A run that is right ends well otherwise."""
    with pytest.raises(SimrankError, match=r"ranks .-2: set sharedlib\.group"):
        run("set_group", strict=True)


@pytest.mark.parametrize("name", ["set_group", "initialize"])
def test_ranks_of_a_private_package_have_their_own(library, name):
    """That is the cure."""
    assert not run(name, private=["sharedlib"])


@pytest.mark.parametrize("name", ["count", "fill", "register"])
def test_what_processes_would_do_alike_is_none(library, name):
    """A counter, a cache that is filled once, the same object."""
    assert not run(name)


def test_a_failure_tells_what_another_rank_had_set_where_it_raised(library):
    """A package that wants to be initialized once."""
    with pytest.raises(SpawnException, match="initialized before") as raised:
        run("initialize")
    (note,) = raised.value.__notes__
    assert "rank 0: set sharedlib.group" in note
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


FLAGS = """
class Flag:
    def __init__(self, value):
        self.value = self.first = value


class Flags:
    num_reads = 0

    def __init__(self):
        self.__dict__["__held"] = {}

    def define(self, name, value):
        if vars(self)["__held"].setdefault(name, Flag(value)).first != value:
            raise ValueError(f"{name} is already defined")

    def __getattr__(self, name):
        Flags.num_reads += 1
        return vars(self)["__held"][name].value

    def __setattr__(self, name, value):
        vars(self)["__held"][name].value = value


flags = Flags()
"""
SCRIPT = """
import sys

import sharedlib
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
sharedlib.flags.define("shard", {first})
sharedlib.flags.shard = {then}
dist.barrier()
assert sharedlib.flags.shard < 2
dist.destroy_process_group()
"""


@pytest.fixture
def run_script(library, tmp_path, monkeypatch, capfd):
    """Run a script on two ranks with a package of flags; return the status and stderr."""
    (tmp_path / "site-packages" / "sharedlib" / "__init__.py").write_text(FLAGS)
    monkeypatch.chdir(tmp_path)

    def run_two(*options, first="-1", then="rank"):
        (tmp_path / "script.py").write_text(SCRIPT.format(first=first, then=then))
        with pytest.raises(SystemExit) as stop:
            main(["run", "--nproc-per-node", "2", *options, "script.py"])
        return stop.value.code or 0, capfd.readouterr().err

    return run_two


def test_what_ranks_write_into_objects_of_a_package_is_a_finding(run_script):
    """The place, the ranks, the line and the cure; counters of the package do not matter."""
    status, err = run_script()
    assert status == 0
    assert "ranks 0-1: set sharedlib.flags.__held['shard'].value, which they share" in err
    assert "set before at script.py:12" in err
    assert "--private sharedlib" in err


def test_the_cure_is_named_where_ranks_exit_with_a_code(run_script):
    """A program that finds the wrong value may end by itself."""
    status, err = run_script(then="rank\ndist.barrier()\nsys.exit(2)")
    assert status != 0
    assert "set sharedlib.flags.__held['shard'].value" in err
    assert "--private sharedlib" in err


def test_a_package_joins_by_any_module_that_imports_a_private_one(run_script, tmp_path):
    """Its top module is empty, and no other rank has met it."""
    package = tmp_path / "site-packages" / "emptytop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("import sharedlib\nflags = sharedlib.flags")
    then = "rank\nfrom emptytop.inner import flags\nassert flags is sharedlib.flags"
    assert run_script("--private", "sharedlib", then=then)[0] == 0


@pytest.mark.parametrize("options", [{"then": "1"}, {"then": "sharedlib.flags.shard"}])
def test_equal_writes_are_no_finding(run_script, options):
    """Each rank writes what the other has written."""
    assert "sharedlib" not in run_script(**options)[1]


def test_a_package_that_refuses_a_second_definition_is_named(run_script):
    """Its error has a note with the cure, and with it there is no error."""
    status, err = run_script(first="rank")
    assert status == 1
    assert "rank 1: sharedlib refused, as another rank had done the same in it" in err
    assert "--private sharedlib" in err
    status, err = run_script("--private", "sharedlib", first="rank")
    assert (status, "sharedlib" in err) == (0, False)
