"""The main program of a worker: it waits for a request, runs it, answers, and waits again.

Reading starts at `main`. By then standard output is the pool's pipe, the channel is open,
and torch has not been imported.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from simrank.errors import BodyError
from simrank.validate import pickling
from simrank.validate.channel import Frame, FrameKind, WorkerChannel
from simrank.validate.current_call import Page, WorkerCalls
from simrank.validate.reset import Baseline
from simrank.validate.this_worker import Worker, set_worker

if TYPE_CHECKING:
    from collections.abc import Callable

# Its stacks are written by C code, without the interpreter's lock: a rank in a loop, or in a C
# call.
STACKS_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2 - 3) + 3


def main(config: dict[str, Any]) -> None:
    """Run as a worker until the pool ends it, or is gone.

    Args:
        config: As for `keeper.main`.
    """
    for fd in config["worker_fds"]:
        os.set_inheritable(fd, False)
    stacks = config["stacks"]
    faulthandler.enable(stacks)
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)
    page = Page(config["page"])
    channel = WorkerChannel(socket.socket(fileno=config["channel"]))
    frame = channel.receive()
    setup = pickle.loads(frame.body)
    calls = WorkerCalls(page, setup["rank"])
    worker = Worker(setup["rank"], setup["num_workers"], setup["backend"], calls)
    set_worker(worker)
    try:
        _prepare(worker, setup, config["listener"])
    except BaseException as error:  # noqa: BLE001 - reported to the pool, which raises it
        channel.send(Frame(FrameKind.REFUSED, 0, _raised(error)))
        return
    baseline = Baseline()
    channel.send(Frame(FrameKind.READY, 0, pickle.dumps(os.getpid())))
    while (request := _next(channel)) is not None and request.kind == FrameKind.RUN:
        channel.send(_answer(worker, baseline, request))
    calls.stage("ending")
    worker.leave()


def _next(channel: WorkerChannel) -> Frame | None:
    try:
        return channel.receive()
    except EOFError:  # The keeper ends this process; what is left to do is to leave.
        return None


def _prepare(worker: Worker, setup: dict[str, Any], listener: int | None) -> None:
    """Import modules, make process groups, and run a first collective."""
    calls = worker.calls
    calls.stage("preparing")
    os.chdir(setup["folder"])
    import multiprocessing.process as mp_process  # noqa: PLC0415 - kept off the first page

    mp_process.current_process().authkey = setup["authkey"]
    for name in setup["preload"]:
        calls.stage(f"importing {name}")
        __import__(name)
        calls.watch_torch()
    if worker.backend is not None:
        worker.join(setup, listener)
    elif listener is not None:
        os.close(listener)
    calls.stage("unpacking the reset hook")
    worker.reset = pickling.unpacked(setup["reset"])
    calls.watch_torch()
    calls.stage("idle")


def _answer(worker: Worker, baseline: Baseline, frame: Frame) -> Frame:
    """Run a request; every end of it but the process's own is an answer."""
    pid = os.getpid()
    try:
        value = _run(worker, baseline, frame)
        _end_fork(pid)
        kind, body = FrameKind.RETURNED, pickling.result(value)
    except BaseException as error:  # noqa: BLE001 - reported, with its traceback
        _end_fork(pid, error)
        kind, body = FrameKind.RAISED, _raised(error)
    calls = worker.calls
    calls.stage("answered" if kind == FrameKind.RETURNED else "raised")
    _flush()
    state = {
        "counts": calls.counts,
        "members": calls.members,
        "is_whole": worker.are_groups_whole(),
        "left": baseline.restore(),
    }
    _flush()
    return Frame(kind, frame.request, pickle.dumps((state, body)))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # The case closed it, or its descriptor.
            stream.flush()


def _end_fork(pid: int, error: BaseException | None = None) -> None:
    """End this process if it is a fork that a case made; its parent answers.

    Otherwise there would be two workers of one rank, on one channel.

    Args:
        pid: The worker's.
        error: What the case raised in this process.
    """
    if os.getpid() == pid:
        return
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code or 0
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _run(worker: Worker, baseline: Baseline, frame: Frame) -> Any:  # noqa: ANN401 - its result
    calls = worker.calls
    calls.begin()
    worker.request = frame.request
    calls.stage("unpacking the request")
    active, parcel = pickle.loads(frame.body)
    fn, args = pickling.unpacked(parcel)
    calls.watch_torch()
    worker.activate(active)
    calls.stage("resetting")
    baseline.look()
    baseline.restore()
    worker.drop_groups()
    if worker.reset is not None:
        worker.reset()
    calls.stage("running")
    call: Callable[..., Any] = fn
    limit = sys.getrecursionlimit()
    try:
        return call(*args)
    finally:
        sys.setrecursionlimit(limit)  # Before the answer is made, which needs frames.


def _raised(error: BaseException) -> bytes:
    """Return an exception as plain data: pickled if it can be, its text, its traceback."""
    cause = error.__cause__ if isinstance(error, BodyError) else None
    shown = traceback.TracebackException.from_exception(cause or error)
    own = os.path.dirname(__file__)
    while len(shown.stack) > 1 and shown.stack[0].filename.startswith(own):
        del shown.stack[0]
    last = "".join(shown.format_exception_only()).strip()
    return pickle.dumps((pickling.failure(error), last, "".join(shown.format())))
