"""What ranks have registered for their exit is called in their names, as processes do."""

import atexit
import io
import re
import sys
import tempfile
import weakref
from pathlib import Path

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import SpawnException


class Held:
    """Something that a finalizer is for."""


def spawn(program, nprocs=2, *, method=None):
    """Run a program on ranks that are threads, and end as processes."""
    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        if method is None:
            ctx.multiprocessing.spawn(program, nprocs=nprocs, share_args=True)
        else:
            ctx.multiprocessing.start_processes(
                program, nprocs=nprocs, start_method=method, share_args=True
            )


@pytest.mark.parametrize("leave", [lambda: None, lambda: sys.exit(0)], ids=["returns", "exits"])
def test_the_last_that_was_registered_comes_first(leave):
    """With arguments, before finalizers, and each rank waits for the others in one."""
    calls, held = [], []

    def program(rank):
        dist.init_process_group("gloo")
        held.append(Held())
        weakref.finalize(held[-1], lambda: calls.append((rank, "finalizer")))
        atexit.register(lambda: calls.append((rank, "first")))
        atexit.register(calls.append, (rank, "second"))
        atexit.register(dist.barrier)
        atexit.unregister(print)
        leave()

    spawn(program)
    names = ["second", "first", "finalizer"]
    assert sorted(calls, key=lambda call: call[0]) == [(r, n) for r in range(2) for n in names]


def test_one_may_register_another_and_one_may_be_taken_back():
    """As in Python: what is registered meanwhile comes next."""
    calls = []

    def never():
        calls.append("never")

    def program(rank):
        atexit.register(lambda: calls.append("last"))
        atexit.register(lambda: atexit.register(calls.append, "registered meanwhile"))
        atexit.register(never)
        atexit.unregister(never)

    spawn(program, 1)
    assert calls == ["registered meanwhile", "last"]


def test_an_error_in_one_is_printed_and_the_others_follow():
    """The rank has ended well."""
    calls, printed = [], io.StringIO()

    def program(rank):
        sys.stderr = printed
        atexit.register(calls.append, "after")
        atexit.register(lambda: 1 / 0)
        atexit.register(sys.exit, 3)

    spawn(program, 1)
    assert calls == ["after"]
    errors = re.findall(r"^\w+: .*", printed.getvalue(), re.MULTILINE)
    assert errors == ["SystemExit: 3", "ZeroDivisionError: division by zero"]
    assert printed.getvalue().count("Exception ignored in atexit callback") == 2


def test_a_rank_that_raises_calls_none_and_leaves_none_to_the_process():
    """Its peers end with it."""
    calls, held = [], [Held()]

    def program(rank):
        atexit.register(calls.append, "function")
        made = weakref.finalize(held[0], calls.append, "finalizer")
        held.append(made)
        raise RuntimeError("wrong")

    with pytest.raises(SpawnException, match="wrong"):
        spawn(program, 1)
    assert not held[1].atexit
    assert calls == []


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_a_temporary_folder_goes_with_its_rank():
    """Which forgets to clean it up; it lies in an object that outlives the rank."""
    folders = []

    def program(rank):
        folders.append(tempfile.TemporaryDirectory())

    spawn(program)
    assert len(folders) == 2
    assert not any(Path(folder.name).exists() for folder in folders)


def test_outside_of_ranks_the_process_keeps_them():
    """They are called as it ends."""
    before = atexit._ncallbacks()
    with simrank.Context("hgx_h100"):
        atexit.register(print)
    assert atexit._ncallbacks() == before + 1
    atexit.unregister(print)
