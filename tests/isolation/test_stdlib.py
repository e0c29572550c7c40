"""What is replaced in the standard library while a Context is entered, and what is refused."""

import builtins
import enum
import functools
import importlib
import io
import locale
import logging
import multiprocessing
import multiprocessing.process
import multiprocessing.synchronize
import os
import random
import signal
import sys
import threading
import time
import types
import warnings
from importlib.util import find_spec

import pytest

import simrank
import simrank.distributed as dist
from simrank import Context
from simrank.engine import Engine
from simrank.errors import ProcessExitedException, SpawnException, UnsupportedError
from simrank.isolation import stdlib
from simrank.multiprocessing.script import run_script
from simrank.ranks import lifecycle

# The programs here are users' programs; they keep names of their own.


class Scope(enum.Enum):
    """The visibility of a value that one rank assigns, and its mechanism.

    Attributes:
        DISPATCHED: The rank alone: each read and write goes to the running rank's value.
        SWAPPED: The rank alone: its value is in place during its turns and taken back after them.
        SHARED: All ranks, as threads of a process.
        REFUSED: None: the call raises `UnsupportedError`.
    """

    DISPATCHED = "the rank's own, dispatched"
    SWAPPED = "the rank's own, swapped"
    SHARED = "shared, as threads would"
    REFUSED = "refused"


_DISPATCHED, _SWAPPED = Scope.DISPATCHED, Scope.SWAPPED
_SHARED, _REFUSED = Scope.SHARED, Scope.REFUSED

# Attributes that a program sets, and functions (with parentheses) that set something.
TABLE = {
    "sys": {
        "argv": _DISPATCHED, "stdout": _DISPATCHED, "stderr": _DISPATCHED, "stdin": _SWAPPED,
        "excepthook": _DISPATCHED, "displayhook": _SWAPPED, "unraisablehook": _SWAPPED,
        "path": _SWAPPED, "path.append()": _SHARED, "setrecursionlimit()": _SHARED,
        "setswitchinterval()": _SHARED,
    },
    "builtins": {
        "print": _SWAPPED, "open": _SWAPPED, "input": _SWAPPED, "profile": _SWAPPED,
        "_": _SWAPPED,
    },
    "os": {
        "environ[]": _DISPATCHED, "chdir()": _DISPATCHED, "cpu_count": _SWAPPED,
        "getpid": _SWAPPED, "system": _SWAPPED, "umask()": _SHARED, "fork()": _REFUSED,
        "forkpty()": _REFUSED,
    },
    "logging": {
        "root.setLevel()": _DISPATCHED, "disable()": _DISPATCHED,
        "captureWarnings()": _DISPATCHED, "setLoggerClass()": _SWAPPED,
        "setLogRecordFactory()": _SWAPPED, "raiseExceptions": _SWAPPED, "lastResort": _SWAPPED,
        "basicConfig": _SWAPPED, "addLevelName()": _SHARED,
    },
    "warnings": {
        "simplefilter()": _DISPATCHED, "filters": _DISPATCHED, "showwarning": _DISPATCHED,
        "formatwarning": _SWAPPED, "warn": _SWAPPED,
    },
    "signal": {"signal()": _DISPATCHED, "pause()": _REFUSED, "sigwait()": _REFUSED},
    "threading": {
        "excepthook": _DISPATCHED, "settrace()": _SWAPPED, "setprofile()": _SWAPPED,
        "Thread": _SWAPPED,
    },
    "multiprocessing": {
        "set_start_method()": _DISPATCHED, "Process": _SWAPPED, "cpu_count": _SWAPPED,
    },
    "random": {"seed()": _DISPATCHED, "random": _SWAPPED, "shuffle": _SWAPPED},
    "locale": {"setlocale()": _SHARED, "getpreferredencoding": _SWAPPED},
    "tempfile": {"tempdir": _SWAPPED, "mkdtemp": _SWAPPED},
    "time": {"time": _SWAPPED, "sleep": _SWAPPED},
}  # fmt: skip


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


# ---- the table of replaceable names holds: own, shared as threads would, or refused ----

# ruff: noqa: PLW0108 - what these names are is asked in a rank


ENTRIES = [(module, name) for module, names in TABLE.items() for name in names]
CARRIERS = ["thread", "greenlet"]
VALUES = {
    "sys.argv": ["new"],
    "sys.stdin": io.StringIO("new"),
    "sys.stdout": io.StringIO(),
    "sys.stderr": io.StringIO(),
    "sys.path": [*sys.path, "new"],
    "logging.raiseExceptions": "new",
    "logging.lastResort": logging.NullHandler(),
    "warnings.filters": [],
    "tempfile.tempdir": "new",
}


class Logger(logging.Logger):
    pass


def umask():
    found = os.umask(0o22)
    os.umask(found)
    return found


# How to set something with a function or in place, how to look at it, and how to undo it.
CALLS = {
    "sys.path.append()": (lambda: sys.path.append("new"), lambda: "new" in sys.path, sys.path.pop),
    "sys.setrecursionlimit()": (
        lambda: sys.setrecursionlimit(1234),
        sys.getrecursionlimit,
        functools.partial(sys.setrecursionlimit, sys.getrecursionlimit()),
    ),
    "sys.setswitchinterval()": (
        lambda: sys.setswitchinterval(0.5),
        sys.getswitchinterval,
        functools.partial(sys.setswitchinterval, sys.getswitchinterval()),
    ),
    "os.environ[]": (
        lambda: os.environ.update(SIMRANK_NEW="1"), lambda: os.environ.get("SIMRANK_NEW"), None,
    ),
    "os.chdir()": (lambda: os.chdir("/"), os.getcwd, None),
    "os.umask()": (
        lambda: os.umask(0o77), umask, functools.partial(os.umask, os.umask(0o22)),
    ),
    "os.fork()": (lambda: os.fork(), None, None),
    "os.forkpty()": (lambda: os.forkpty(), None, None),
    "logging.root.setLevel()": (
        lambda: logging.root.setLevel(3), lambda: logging.root.level, None,
    ),
    "logging.disable()": (lambda: logging.disable(7), lambda: logging.root.manager.disable, None),
    "logging.captureWarnings()": (
        lambda: logging.captureWarnings(True), lambda: warnings.showwarning.__module__, None,
    ),
    "logging.setLoggerClass()": (
        lambda: logging.setLoggerClass(Logger), logging.getLoggerClass, None,
    ),
    "logging.setLogRecordFactory()": (
        lambda: logging.setLogRecordFactory(dict), logging.getLogRecordFactory, None,
    ),
    "logging.addLevelName()": (
        lambda: logging.addLevelName(77, "NEW"), lambda: logging.getLevelName(77),
        lambda: logging._levelToName.pop(77),
    ),
    "warnings.simplefilter()": (
        lambda: warnings.simplefilter("ignore", ResourceWarning),
        lambda: next(iter(warnings.filters))[:3],
        None,
    ),
    "signal.signal()": (
        lambda: signal.signal(signal.SIGUSR1, print),
        lambda: signal.getsignal(signal.SIGUSR1),
        None,
    ),
    "signal.pause()": (lambda: signal.pause(), None, None),
    "signal.sigwait()": (lambda: signal.sigwait([signal.SIGUSR1]), None, None),
    "threading.settrace()": (lambda: threading.settrace(print), threading.gettrace, None),
    "threading.setprofile()": (lambda: threading.setprofile(print), threading.getprofile, None),
    "multiprocessing.set_start_method()": (
        lambda: multiprocessing.set_start_method("forkserver", force=True),
        multiprocessing.get_start_method,
        None,
    ),
    "random.seed()": (lambda: random.seed(5), lambda: hash(random.getstate()), None),
    "locale.setlocale()": (
        lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8"),
        lambda: locale.setlocale(locale.LC_NUMERIC),
        lambda: locale.setlocale(locale.LC_NUMERIC, "C"),
    ),
}  # fmt: skip


def recipe(module_name, name):
    """Return what replaces, what looks, and what undoes."""
    call = CALLS.get(f"{module_name}.{name}")
    if call is not None:
        return call
    module = importlib.import_module(module_name)
    value = VALUES.get(f"{module_name}.{name}")
    if value is None:
        original = getattr(module, name, None)
        value = functools.partial(original) if callable(original) else object()
    return lambda: setattr(module, name, value), lambda: getattr(module, name, None), None


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(("module_name", "name"), ENTRIES)
def test_a_replaced_name_counts_for_whom_the_table_says(module_name, name, carrier):
    """Rank 0 replaces it; then both look, twice."""
    scope = TABLE[module_name][name]
    seen = {0: [], 1: []}

    def program(rank):
        replace, look, _ = recipe(module_name, name)
        dist.init_process_group("gloo")
        if scope is Scope.REFUSED:
            with pytest.raises(UnsupportedError):
                replace()
            return
        before = look()
        dist.barrier()
        if rank == 0:
            replace()
        for _ in range(2):
            dist.barrier()
            seen[rank].append(look() is not before and look() != before)

    undo = recipe(module_name, name)[2]
    look = recipe(module_name, name)[1]
    outside = None if look is None else look()
    try:
        with simrank.Context("hgx_h100", carrier=carrier) as context:
            context.multiprocessing.spawn(program, nprocs=2, share_args=True)
    finally:
        if undo is not None:
            undo()
    if scope is not Scope.REFUSED:
        rank_0, rank_1 = [True, True], [scope is Scope.SHARED] * 2
        assert seen == {0: rank_0, 1: rank_1}
    if scope in (Scope.DISPATCHED, Scope.SWAPPED):
        assert look() == outside


ATTRIBUTES = [entry for entry in ENTRIES if not entry[1].endswith((")", "]"))]


@pytest.mark.parametrize(("module_name", "name"), ATTRIBUTES)
def test_a_swapped_value_lies_in_the_module_and_a_dispatched_one_does_not(module_name, name):
    """Only during the turns of the rank that set it."""
    module, lies_there = importlib.import_module(module_name), []

    def program(rank):
        replace, look, _ = recipe(module_name, name)
        dist.init_process_group("gloo")
        if rank == 0:
            replace()
            lies_there.append(vars(module).get(name) is look())

    with simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, nprocs=2, share_args=True)
    assert lies_there == [TABLE[module_name][name] is Scope.SWAPPED]


TEE = """
import sys

class Tee:
    def __init__(self):
        self.out, self.text = sys.{name}, ""
    def write(self, text):
        self.text += text
        return self.out.write(text)
    def flush(self):
        self.out.flush()

sys.stdout = tee = Tee()
print("hello")
assert tee.text == "hello\\n"
assert sys.stdout is tee
sys.stdout = tee.out
print("again")
assert tee.text == "hello\\n"
"""


@pytest.mark.parametrize("name", ["stdout", "__stdout__"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_tee_writes_to_the_stream_it_replaces(name, num_ranks, tmp_path, capsys):
    """Whatever name it took it from."""
    (tmp_path / "program.py").write_text(TEE.format(name=name))
    with simrank.Context("hgx_h100") as context:
        run_script(context.program, str(tmp_path / "program.py"), [], num_ranks)
    assert capsys.readouterr().out == "hello\nagain\n" * num_ranks


def test_a_name_that_a_rank_replaces_in_builtins_counts_in_its_functions():
    """Only the first rank prints, as many vision programs have it."""
    printed = []

    def program(rank):
        def only_first(*words):
            if rank == 0:
                printed.append(words)

        builtins.print = only_first
        dist.init_process_group("gloo")
        dist.barrier()
        print("metric of", rank)  # noqa: T201

    before = builtins.print
    with simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, nprocs=3, share_args=True)
    assert printed == [("metric of", 0)]
    assert builtins.print is before


def test_a_rank_may_bind_another_list_of_arguments():
    """A launcher hands on what it does not know itself."""
    seen = {}

    def program(rank):
        sys.argv = sys.argv[1:]
        sys.argv.append(str(rank))
        dist.init_process_group("gloo")
        dist.barrier()
        seen[rank] = sys.argv

    before = list(sys.argv)
    with simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, nprocs=2, share_args=True)
    assert seen == {rank: [*before[1:], str(rank)] for rank in range(2)}
    assert sys.argv == before


def test_a_failure_with_replaced_names_leaves_the_originals():
    """The hub goes on with the program's own."""

    def program(rank):
        builtins.print = None
        os.cpu_count = None
        raise KeyError("broken")

    before = builtins.print, os.cpu_count
    with pytest.raises(SpawnException, match="broken"), simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, nprocs=2, share_args=True)
    assert (builtins.print, os.cpu_count) == before
