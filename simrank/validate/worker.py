"""The main program of a worker: it waits for a request, runs it, answers, and waits again.

A worker without process groups runs each request in a fork of itself, which has nothing of the
requests before; one with groups keeps its process and resets it (`reset`). Reading starts at
`main`. By then standard output is the pool's pipe, the channel is open,
and torch has not been imported.
"""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import faulthandler
import os
import pickle
import resource
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.errors import BodyError
from simrank.validate import pickling
from simrank.validate.channel import Frame, FrameKind, WorkerChannel
from simrank.validate.current_call import Page, WorkerCalls
from simrank.validate.reset import Baseline, seed
from simrank.validate.this_worker import Worker, set_worker

if TYPE_CHECKING:
    from collections.abc import Callable

# Its stacks are written by C code, without the interpreter's lock: a rank in a loop, or in a C
# call.
# As they are before a case replaces them.
_WRITE, _EXIT, _STREAMS = os.write, os._exit, (sys.__stdout__, sys.__stderr__)
_C = ctypes.CDLL(None)
_LEAVE_S = 5.0  # Assumed: for functions that a case registered with atexit.
STACKS_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2 - 3) + 3


class Descendants(NamedTuple):
    """Functions for the descendants of a process.

    Attributes:
        adopt: Makes this process the parent of those whose parents end.
        follow: Ends this process with the one that forked it.
        end: Kills all children.
    """

    adopt: Callable[[], None]
    follow: Callable[[], None]
    end: Callable[[], None]


def main(config: dict[str, Any], descendants: Descendants) -> None:
    """Run as a worker until the pool ends it, or is gone.

    Args:
        config: As for `keeper.main`.
        descendants: The keeper's functions for processes that descend from this one.
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
    answered = os.pipe()  # A fork writes a byte once it has answered.
    os.set_blocking(answered[0], False)
    shares_modules = setup["shares_modules"]
    baseline = Baseline(shares_modules=shares_modules)
    forks = worker.backend is None and not shares_modules
    channel.send(Frame(FrameKind.READY, 0, pickle.dumps(os.getpid())))
    if forks:
        descendants.adopt()
    while (request := _next(channel)) is not None and request.kind == FrameKind.RUN:
        if forks and _has_one_thread():
            _answer_in_fork(worker, baseline, request, channel, answered, descendants)
        else:
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
    _flush()  # What imports printed: it is asked for before the first request.
    calls.stage("idle")


def _has_one_thread() -> bool:
    """Return whether a fork is safe: no other thread holds a lock that would never be released."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:  # No /proc: nothing tells of the threads of C libraries.
        return False


def _answer_in_fork(
    worker: Worker,
    baseline: Baseline,
    frame: Frame,
    channel: WorkerChannel,
    answered: tuple[int, int],
    descendants: Descendants,
) -> None:
    """Run a request in a fork of this process, which answers; end as it does if it does not.

    The modules of the function are imported here: later forks have them.
    """
    calls = worker.calls
    calls.stage("importing the request's modules")
    with suppress(BaseException):  # The fork raises it again, and answers with it.
        pickling.import_modules(pickle.loads(frame.body)[1])
    calls.watch_torch()
    _flush()
    child = os.fork()
    if child == 0:
        descendants.follow()
        calls.move_to(os.getpid())
        channel.send(_answer(worker, baseline, frame, in_fork=True))
        _WRITE(answered[1], b".")
        with suppress(BaseException):  # What the case registered.
            atexit._run_exitfuncs()  # noqa: SLF001 - as the interpreter does at its end
        _flush()
        _EXIT(0)
    status = _wait_for(child, answered[0])
    descendants.end()
    calls.move_to(os.getpid())
    try:
        os.read(answered[0], 1)
    except BlockingIOError:
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            _end_by(-code)
        os._exit(code)


def _wait_for(child: int, answered: int) -> int:
    """Wait for the end of a fork; once it has answered, in bounded time. Return its wait status."""
    with suppress(OSError):  # A kernel without such descriptors: nothing is bounded.
        ended = os.pidfd_open(child)
        ready, _, _ = select.select([ended, answered], [], [])
        if ended not in ready and not select.select([ended], [], [], _LEAVE_S)[0]:
            os.kill(child, signal.SIGKILL)
        os.close(ended)
    return os.waitpid(child, 0)[1]


def _end_by(number: int) -> None:
    """End this process by a signal, without a report of its own: the fork has written its."""
    faulthandler.disable()
    with suppress(OSError, ValueError):  # SIGKILL has no handler.
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), number)
    signal.pause()


def _answer(worker: Worker, baseline: Baseline, frame: Frame, *, in_fork: bool = False) -> Frame:
    """Run a request; every end of it but the process's own is an answer."""
    pid = os.getpid()
    context = contextvars.copy_context()  # What it sets there ends with it.
    failed: BaseException | None = None
    value: Any = None
    try:
        value = context.run(_run, worker, baseline, frame, in_fork=in_fork)
    except BaseException as error:  # noqa: BLE001 - reported, with its traceback
        failed = error
    left = baseline.restore_code()  # What follows calls it.
    _end_fork(pid, failed)
    try:
        kind, body = FrameKind.RETURNED, pickling.result(value)
    except BaseException as error:  # noqa: BLE001 - likewise
        failed = failed or error
    if failed is not None:
        kind, body = FrameKind.RAISED, _raised(failed)
    calls = worker.calls
    calls.stage("answered" if kind == FrameKind.RETURNED else "raised")
    _flush()
    state = {
        "counts": calls.counts,
        "members": calls.members,
        "is_whole": worker.are_groups_whole(),
        "left": [] if in_fork else [*left, *baseline.restore()],
    }
    _flush()
    return Frame(kind, frame.request, pickle.dumps((state, body)))


def _flush() -> None:
    """Write out what was printed, to streams of the case's own, too, and by C libraries."""
    streams: tuple[Any, ...] = (*_STREAMS, sys.stdout, sys.stderr)
    for stream in {id(each): each for each in streams}.values():
        with suppress(Exception):  # Closed, of None, or of the case's own making.
            stream.flush()
    _C.fflush(None)


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
    _flush()
    os._exit(code if isinstance(code, int) else 1)


def _run(worker: Worker, baseline: Baseline, frame: Frame, *, in_fork: bool) -> Any:  # noqa: ANN401 - its result
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
    if in_fork:
        seed()
    else:
        baseline.restore()  # What the modules of the function have changed.
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
