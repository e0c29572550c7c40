"""What is replaced in the standard library while a Context is entered, and what is refused."""

# The programs here are users' programs; they keep names of their own.

import importlib
import multiprocessing.process
import multiprocessing.synchronize
import sys
import threading
import time
import types
from importlib.util import find_spec

import pytest

from simrank import Context
from simrank.engine import Engine
from simrank.errors import ProcessExitedException, SpawnException, UnsupportedError
from simrank.isolation import stdlib
from simrank.ranks import lifecycle


def make_module(name, **names):
    """Return a module that looks as if it were loaded from a file."""
    module = types.ModuleType(name)
    module.__file__ = names.pop("file", f"/home/me/{name}.py")
    vars(module).update(names)
    return module


@pytest.fixture(name="module", params=["/home/me/program.py", None])
def fixture_module(request, monkeypatch):
    """Return a program's module, from a file or `__main__` without one."""
    name = "program" if request.param else "__main__"
    module = make_module(name, nap=time.sleep, Mutex=threading.Lock, other=print)
    module.__file__ = request.param
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_names_that_a_program_bound_are_replaced_and_restored(module):
    """Whatever they are called there; everything else is left alone."""
    before = module.nap, module.Mutex
    with lifecycle.entered(Engine()):
        assert module.nap is time.sleep is not before[0]
        assert module.Mutex is threading.Lock is not before[1]
        assert module.other is print

    assert (module.nap, module.Mutex) == before


def test_a_module_imported_within_is_restored_too(monkeypatch):
    """It bound the stand-in, and gets the original at the last exit."""
    with lifecycle.entered(Engine()):
        module = make_module("late", nap=time.sleep)
        monkeypatch.setitem(sys.modules, "late", module)
        assert module.nap is time.sleep

    assert module.nap is time.sleep


def test_installed_packages_keep_their_names(monkeypatch):
    """Their own use of the clock is no program's."""
    file = "/usr/lib/python3/site-packages/package/__init__.py"
    module = make_module("package", nap=time.sleep, file=file)
    monkeypatch.setitem(sys.modules, "package", module)
    with lifecycle.entered(Engine()):
        assert module.nap is not time.sleep


def test_entering_counts():
    """Two engines may be entered in any order; the last exit restores."""
    original, one, two = time.sleep, Engine(), Engine()
    lifecycle.enter(one)
    lifecycle.enter(two)
    lifecycle.leave(one)
    assert time.sleep is not original
    lifecycle.leave(two)

    assert time.sleep is original


@pytest.mark.parametrize(
    ("what", "name"),
    [
        (
            lambda: multiprocessing.process.BaseProcess().start(),
            r"multiprocessing\.process\.BaseProcess\.start",
        ),
        (
            lambda: multiprocessing.synchronize.Lock(ctx=multiprocessing.get_context()),
            r"multiprocessing\.synchronize\.SemLock",
        ),
        (lambda: threading.Timer(1, print).start(), r"threading\.Thread\.start"),
    ],
)
def test_what_would_wait_for_real_is_refused_by_name_in_a_rank(what, name):
    """A rank gets an error instead of a hang."""
    if "BaseProcess" in name:
        process = object.__new__(multiprocessing.process.BaseProcess)

        def what():
            process.start()

    with pytest.raises(SpawnException, match=name) as caught, Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(lambda _rank: what(), nprocs=1)

    assert type(caught.value.errors[0]) is UnsupportedError


def test_a_rank_that_is_killed_within_a_nested_spawn_leaves_nothing_replaced():
    """It never comes back to leave its block; later programs sleep for real again."""
    before = time.sleep, threading.Lock

    def parent(rank, ctx):
        ctx.multiprocessing.spawn(lambda _: time.sleep(1), nprocs=1)

    def kill(ctx):
        processes = ctx.multiprocessing.spawn(parent, (ctx,), nprocs=1, join=False)
        ctx.wait(ctx.timer(1000))
        processes.processes[0].kill()
        with pytest.raises(ProcessExitedException):
            processes.join()

    with Context("hgx_h100") as ctx:
        kill(ctx)
    assert (time.sleep, threading.Lock) == before


def test_a_rank_that_is_killed_within_a_context_of_its_own_leaves_nothing_replaced():
    """The blocks that it has entered count as left when the last of the others is."""
    before = time.sleep, threading.Lock

    def program(rank, ctx):
        with Context("hgx_h100"):
            ctx.multiprocessing.processes[0].kill()

    with Context("hgx_h100") as ctx:
        started = ctx.multiprocessing.spawn(program, (ctx,), nprocs=1, join=False)
        ctx.multiprocessing.processes = started.processes
        with pytest.raises(ProcessExitedException):
            started.join()
    assert (time.sleep, threading.Lock) == before


def test_names_of_the_program_that_hold_what_all_hold_are_left_alone(monkeypatch):
    """A stand-in for something that was False, None or a number stands for nobody else's."""

    class Owner:
        flag, nothing, number, text = False, None, 7, "word"

    module = make_module("with_constants", flag=False, nothing=None, number=7, text="word")
    replaced = [(Owner, name, object()) for name in ("flag", "nothing", "number", "text")]
    monkeypatch.setattr(stdlib, "_patches", lambda: replaced)
    monkeypatch.setitem(sys.modules, "with_constants", module)
    with Context("hgx_h100"):
        assert Owner.flag is replaced[0][2]
        assert (module.flag, module.nothing, module.number, module.text) == (False, None, 7, "word")
    assert (module.flag, module.nothing, module.number, module.text) == (False, None, 7, "word")
    assert Owner.flag is False


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_a_library_that_is_not_installed_is_said_to_be_missing():
    """And nothing about how to import it."""
    with (
        Context("hgx_h100") as context,
        pytest.raises(SpawnException, match="ModuleNotFoundError: No module named 'torch'"),
    ):
        context.multiprocessing.spawn(lambda _: importlib.import_module("torch"), nprocs=1)
