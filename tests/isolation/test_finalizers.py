"""Finalizers of what ranks' own modules define, in garbage that another rank finds."""

import gc
import importlib
import os
import sys
import textwrap
import time

import pytest

import simrank
from simrank.errors import SpawnException
from simrank.isolation import finalizers
from simrank.multiprocessing.script import run_script

AT_ITS_PACE = [gc.collect]  # Nobody rebinds it there.
SOURCE = """
    import os

    class Thing:
        def __init__(self, died):
            self.me, self.rank, self.died = self, os.environ["RANK"], died

        def __del__(self):
            self.died.append((self.rank, os.environ.get("RANK")))
            try:
                import with_things
            except ImportError as error:
                self.died.append((self.rank, f"no {error.name}"))
"""


@pytest.fixture(name="package")
def fixture_package(tmp_path, monkeypatch):
    """Write a module, and forget it afterwards."""
    (tmp_path / "with_things.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(tmp_path)
    yield "with_things"
    sys.modules.pop("with_things", None)


def run(program):
    """Run a program on three threads, of which each has the module for itself."""
    with simrank.Context("hgx_h100", carrier="thread", private=["with_things"]) as ctx:
        ctx.multiprocessing.spawn(program, (), 3, share_args=True)
    assert not any(each.__module__.startswith("simrank") for each in gc.callbacks)
    assert not finalizers._kept


def test_garbage_that_another_rank_finds_dies_in_its_own_ranks_turn(package):
    """As its rank looks for garbage itself, or returns."""
    died = []

    def program(rank):
        importlib.import_module(package).Thing(died)
        time.sleep(1)
        if rank == 1:
            gc.collect()
            assert died == [("1", "1")]
        time.sleep(1)
        if rank == 0:
            gc.collect()
            assert died == [("1", "1"), ("0", "0")]
        time.sleep(1)

    run(program)
    assert died == [("1", "1"), ("0", "0"), ("2", "2")]


def test_garbage_that_python_finds_at_its_own_pace_dies_as_its_rank_returns(package):
    """Whoever runs then: ranks that do the same see the same. What nobody holds dies at once."""
    died, lines = [], []

    def program(rank):
        module = importlib.import_module(package)
        module.Thing(died)
        if rank == 2:
            AT_ITS_PACE[0]()
        time.sleep(1)
        lines.append(len(died))
        thing = module.Thing([])
        thing.me, thing.died = None, lines
        del thing
        time.sleep(1)

    run(program)
    assert sorted(lines, key=str) == sorted([0, 0, 0, *died], key=str)
    assert sorted(died) == [(str(rank), str(rank)) for rank in range(3)]


def test_garbage_that_nobody_has_found_dies_as_its_rank_returns(package):
    """As at a process's exit, where Python looks once more; other ranks find nothing of it."""
    died = []

    def program(rank):
        if rank == 0:
            importlib.import_module(package).Thing(died)
            return
        time.sleep(rank)
        gc.collect()

    gc.disable()  # Else it may find it first.
    try:
        run(program)
    finally:
        gc.enable()
    assert died == [("0", "0")]


def test_what_a_rank_holds_as_it_returns_dies_in_its_name_and_imports_nothing(package):
    """Whoever finds it: another rank, or the main program, which has modules of its own."""
    died, held = [], {}

    def program(rank):
        held[rank] = importlib.import_module(package).Thing(died)
        time.sleep(rank)
        if rank == 1:
            held.pop(0)
            gc.collect()
            assert died == [("0", "0"), ("0", "no with_things")]

    with simrank.Context("hgx_h100", carrier="thread", private=[package]) as ctx:
        ctx.multiprocessing.spawn(program, (), 3, share_args=True)
        held.clear()
        gc.collect()
    each = sorted(died[at : at + 2] for at in range(0, len(died), 2))  # Python's own order.
    assert each == [[(str(r), str(r)), (str(r), "no with_things")] for r in range(3)]
    assert package not in sys.modules


def test_garbage_of_a_rank_that_is_ended_is_not_called(package):
    """A process that is killed calls nothing."""
    died = []

    def program(rank):
        importlib.import_module(package).Thing(died)
        time.sleep(1)
        if rank == 1:
            gc.collect()
            raise ValueError("bad batch")
        time.sleep(9)

    with pytest.raises(SpawnException, match="bad batch"):
        run(program)
    assert died == [("1", "1")]


def test_what_a_finalizer_raises_is_reported_as_ever(package, monkeypatch):
    """By Python's hook, in the rank's turn; the others' are called all the same."""
    reported, died = [], []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda found: reported.append((found.exc_value, os.environ["RANK"]))
    )

    def program(rank):
        module = importlib.import_module(package)
        module.Thing(died if rank else None)
        module.Thing(died)
        time.sleep(1)
        if rank == 2:
            gc.collect()
        time.sleep(1)

    run(program)
    assert [(type(error), rank) for error, rank in reported] == [(AttributeError, "0")]
    assert sorted(died) == [("0", "0"), *[("1", "1")] * 2, *[("2", "2")] * 2]


SCRIPT_WITH_FILES = """
import csv, os

class Log:
    def __init__(self):
        self.itself, self.file = self, open(f"log{os.environ['RANK']}", "w")

plain = open(f"plain{os.environ['RANK']}", "w")
plain.write("plain")
log = Log()
log.file.write("deep")
rows = csv.writer(open(f"rows{os.environ['RANK']}", "w"))
rows.writerow([1, 2])
"""


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_files_that_a_script_leaves_open_are_written_as_its_rank_returns(tmp_path, monkeypatch):
    """Those that its globals lead to, also by cycles and by objects of C."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT_WITH_FILES)
    with simrank.Context("hgx_h100") as ctx:
        run_script(ctx.program, tmp_path / "script.py", [], 2)
    del ctx
    gc.collect()  # Unclosed files give a ResourceWarning, here and not in another test.
    assert not [each for each in gc.get_objects() if getattr(each, "name", "") == "plain0"]
    for rank in range(2):
        found = [(tmp_path / f"{name}{rank}").read_text() for name in ("plain", "log", "rows")]
        assert found == ["plain", "deep", "1,2\n"]
