"""Waits of the standard library and sockets: real ones in ranks, and rejected ones (E7).

While a rank waits for real the whole simulation stands still, no simulated time passes, and clocks,
sleeps and locks are real too: that is right for a child process, and for a server elsewhere. It can
never be right for another rank, which does not run meanwhile: a socket waits for a minute at most.

Helpers that look for a free port, and never serve on it, touch nothing real: they find the same
numbers in every run. A socket that goes on to listen, connect or send is bound for real then, at
the same number where the machine has it free.
"""

from __future__ import annotations

import _socket as socket  # The module that programs know may not be loaded.
import functools
import os
import select
import shlex
import struct
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from simrank.engine import interrupts, limits
from simrank.errors import UnsupportedError
from simrank.ranks.current import for_real, is_for_real, rank_program, running_task
from simrank.ranks.ports import node_of, ports_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from simrank.ranks.ports import Holder

    Patches = list[tuple[Any, str, Any]]


MAX_S = 60.0  # assumed: a server that takes longer to answer has gone
_PAUSE_S = 0.001
_real_sleep = time.sleep  # noqa: TID251 - for a child process that has not ended

# What every wait of the standard library does in a rank: it passes simulated time, or waits for
# real (sockets and selectors for a minute, the rest until its own time limit or the Context's), or
# is refused. Threads and multiprocessing's processes are refused on greenlets alone (`threads`).
SIMULATED, REAL, REFUSED = "simulated", "real", "refused"
WAITS = {
    SIMULATED: (
        "time.sleep", "threading.Lock", "threading.RLock", "threading.Condition", "threading.Event",
        "threading.Semaphore", "threading.BoundedSemaphore", "threading.Barrier", "queue.Queue",
        "queue.LifoQueue", "queue.PriorityQueue", "queue.SimpleQueue", "asyncio.run",
        "concurrent.futures.Future.result", "concurrent.futures.wait", "sched.scheduler.run",
        "select.select of nothing", "fcntl.flock", "fcntl.lockf", "_thread.allocate_lock",
        "multiprocessing.Lock", "multiprocessing.Queue",
    ),
    REAL: (
        "subprocess.run", "subprocess.Popen.wait", "subprocess.Popen.communicate",
        "subprocess.Popen.poll", "os.system", "os.popen", "os.waitpid", "os.read",
        "socket.socket", "select.select", "select.poll", "selectors.DefaultSelector",
        "signal.sigtimedwait",
    ),
    REFUSED: (
        "threading.Thread", "threading.Timer", "_thread.start_new_thread",
        "concurrent.futures.ThreadPoolExecutor", "concurrent.futures.ProcessPoolExecutor",
        "multiprocessing.Process", "multiprocessing.Pool", "os.fork",
        "os.forkpty", "signal.pause", "signal.sigwait", "signal.sigwaitinfo", "asyncio.to_thread",
        "asyncio.create_subprocess_exec",
    ),
}  # fmt: skip


@functools.lru_cache(maxsize=32)
def waiting_for_real(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the original with real clocks and locks in a rank."""

    @functools.wraps(original)
    def call(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - the original's
        if running_task() is None:
            return original(*args, **kwargs)
        with for_real():
            return original(*args, **kwargs)

    interrupts.may_be_left(call)
    return call


@functools.lru_cache(maxsize=32)
def refuse(original: Callable[..., Any], name: str, to_fix: str) -> Callable[..., Any]:
    """Return a function that raises in a rank: its wait could never end there."""

    @functools.wraps(original)
    def refused(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - the original's
        if running_task() is not None:
            raise UnsupportedError(
                f"{name} inside a simulated rank: it would wait for real threads, processes or "
                f"signals\n  to fix: {to_fix}"
            )
        return original(*args, **kwargs)

    interrupts.may_be_left(refused)
    return refused


# ---- child processes ----


def of_subprocess(module: ModuleType) -> Patches:
    """Return patches for what waits for a child process."""
    popen: Any = module.__dict__["Popen"]
    return [
        (popen, "__init__", _with_own_environment(waiting_for_real(popen.__init__))),
        *((popen, n, waiting_for_real(getattr(popen, n))) for n in ("send_signal", "__exit__")),
        *(
            (popen, n, _wait_child(waiting_for_real(getattr(popen, n))))
            for n in ("wait", "communicate")
        ),
        (popen, "poll", _poll_child(popen.poll)),
    ]


def answer_command(command: Sequence[str]) -> str | None:
    """Return the output of a command that is simulated; a library may put another in its place."""
    del command
    return None


@functools.lru_cache(maxsize=32)
def _with_own_environment(original: Callable[..., None]) -> Callable[..., None]:
    """Pass the rank's `os.environ` to a child process; print what is simulated in its place."""

    @functools.wraps(original)
    def start(self: object, *args: object, **kwargs: object) -> None:
        if running_task() is not None:
            if len(args) <= _ENV and kwargs.get("env") is None:
                kwargs["env"] = dict(os.environ)
            command, *others = args or (kwargs.pop("args", ()),)
            answer = answer_command(_words(command))
            if answer is not None:
                command = ["printf", "%s", answer]
                kwargs |= {"shell": False} if "shell" in kwargs else {}
            args = (command, *others)
        original(self, *args, **kwargs)

    interrupts.may_be_left(start)
    return start


def _words(command: object) -> Sequence[str]:
    """Return the words of a command line; none where a shell has to read it."""
    if isinstance(command, str):
        try:
            return shlex.split(command)
        except ValueError:
            return ()
    return [os.fsdecode(word) for word in command] if isinstance(command, list | tuple) else ()


_ENV = 10  # Where `env` stands among the positional arguments of `subprocess.Popen`.


@functools.lru_cache(maxsize=32)
def system_of(original: Callable[[str], int]) -> Callable[[str], int]:
    """Run a command of a rank as its child; the C library would take the process's environment."""

    @functools.wraps(original)
    def system(command: str) -> int:
        if running_task() is None:
            return original(command)
        import subprocess  # noqa: PLC0415 - its patches

        status = subprocess.call(command, shell=True)
        return -status if status < 0 else status << 8

    interrupts.may_be_left(system)
    return system


@functools.lru_cache(maxsize=32)
def _wait_child(original: Callable[..., Any]) -> Callable[..., Any]:
    """Name a limit in real time to a search of every timing."""

    @functools.wraps(original)
    def wait(self: object, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        task = running_task()
        if timeout is not None and task is not None:
            limits.pass_over(task.engine, "the time limit of a child process")
        return original(self, *args, timeout=timeout, **kwargs)

    interrupts.may_be_left(wait)
    return wait


@functools.lru_cache(maxsize=32)
def _poll_child(original: Callable[..., Any]) -> Callable[..., Any]:
    """Poll a child process in real time for a rank."""

    @functools.wraps(original)
    def poll(self: object) -> Any:  # noqa: ANN401 - the original's
        status = original(self)
        task = running_task()
        if status is None and task is not None and not is_for_real():
            _real_sleep(_PAUSE_S)
            task.engine.progress += 1  # The child goes on: this is no livelock.
            limits.poll(task.engine, "poll() of a child process")
        return status

    interrupts.may_be_left(poll)
    return poll


def of_shared_memory(module: ModuleType) -> Patches:
    """Return patches that tell a search of every timing of memory that processes share."""
    kind: Any = module.__dict__["SharedMemory"]
    return [(kind, "__init__", _sharing(kind.__init__))]


def of_shared_types(module: ModuleType) -> Patches:
    """Return the like for values without a lock."""
    names = ("RawValue", "RawArray")
    return [(module, name, _sharing(module.__dict__[name])) for name in names]


def _sharing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        task = running_task()
        if task is not None:
            limits.pass_over(task.engine, "memory that processes share")
        return original(*args, **kwargs)

    return make


# ---- sockets ----


def bounded_socket(module: ModuleType) -> Patches:
    """Return patches that bound what a socket waits."""
    kind: Any = module.__dict__["socket"]
    waits = ("accept", "connect", "recv", "recv_into")
    return [
        (kind, "__init__", _bounded(kind.__init__)),
        *((kind, name, _explained(getattr(kind, name))) for name in waits),
    ]


@functools.lru_cache(maxsize=32)
def _bounded(original: Callable[..., None]) -> Callable[..., None]:
    """Give a socket that a rank makes a time limit, if it has none."""

    @functools.wraps(original)
    def make(self: Any, *args: object, **kwargs: object) -> None:  # noqa: ANN401 - a socket
        original(self, *args, **kwargs)
        if running_task() is not None and self.gettimeout() is None:
            self.settimeout(MAX_S)

    return make


@functools.lru_cache(maxsize=32)
def _explained(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(self: Any, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - a socket; its own
        try:
            return original(self, *args, **kwargs)
        except TimeoutError as error:
            if running_task() is not None:
                error.add_note(_only_others("a socket"))
            raise

    interrupts.may_be_left(wait)
    return wait


def _only_others(what: str) -> str:
    return (
        f"simrank: {what} in a rank waits for real, for {MAX_S:g} s at most, and the simulation "
        "stands still: no other rank can answer\n"
        "  to fix: talk to other ranks with simrank.distributed or simrank.multiprocessing"
    )


def of_select() -> Patches:
    """Return patches for `select.select`."""
    original = select.select

    @functools.wraps(original)
    def select_(*args: Any) -> Any:  # noqa: ANN401 - the original's
        if running_task() is None:
            return original(*args)
        timeout = args[3] if len(args) > 3 else None
        if timeout is not None and not any(args[:3]):  # As programs sleep.
            time.sleep(timeout)  # noqa: TID251 - simulated
            return [], [], []
        return _at_most(functools.partial(original, *args[:3]), timeout)

    interrupts.may_be_left(select_)
    return [(select, "select", select_)]


def of_selectors(module: ModuleType) -> Patches:
    """Return patches for the selectors that this system has."""
    names = ("SelectSelector", "_PollLikeSelector", "EpollSelector", "DevpollSelector",
             "KqueueSelector")  # fmt: skip
    kinds: list[Any] = [module.__dict__[name] for name in names if name in module.__dict__]
    return [(kind, "select", _bounded_select(kind.select)) for kind in kinds]


@functools.lru_cache(maxsize=32)
def _bounded_select(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def select_(self: Any, timeout: float | None = None) -> Any:  # noqa: ANN401 - a selector
        if running_task() is None:
            return original(self, timeout)
        if timeout is not None and not self.get_map():  # As programs sleep.
            time.sleep(max(timeout, 0))  # noqa: TID251 - simulated
            return []
        return _at_most(functools.partial(original, self), timeout)

    interrupts.may_be_left(select_)
    return select_


def _at_most(wait: Callable[[float], Any], timeout: float | None) -> Any:  # noqa: ANN401 - its answer
    """Wait for real: as long as the program says, or for a minute.

    Raises:
        UnsupportedError: It said no time, and nothing has come.
    """
    with for_real():
        found = wait(MAX_S if timeout is None else timeout)
    if timeout is None and not (any(found) if isinstance(found, tuple) else found):
        raise UnsupportedError(_only_others("select"))
    return found


interrupts.may_be_left(_at_most)

# ---- locks of files ----


def of_fcntl() -> Patches:
    """Return patches for the locks of files: ranks take turns as processes do."""
    if sys.platform == "win32":
        return []
    import fcntl  # noqa: PLC0415 - not everywhere

    return [(fcntl, name, _file_lock(getattr(fcntl, name), name)) for name in ("flock", "lockf")]


@functools.lru_cache(maxsize=32)
def _file_lock(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    import fcntl  # noqa: PLC0415 - not everywhere

    never_waits = fcntl.LOCK_NB | fcntl.LOCK_UN
    take = original if name == "flock" else _lock_of_rank(original)

    @functools.wraps(original)
    def lock(file: object, operation: int, *args: object) -> Any:  # noqa: ANN401 - the original's
        task = running_task()
        if task is None:
            return original(file, operation, *args)
        if task.engine.sees_shared:
            number: int = file if isinstance(file, int) else cast("Any", file).fileno()
            found = os.fstat(number)
            limits.reach(task, "file locks", f"{found.st_dev}:{found.st_ino}")
        if operation & never_waits:
            return take(file, operation, *args)
        while True:
            try:
                return take(file, operation | fcntl.LOCK_NB, *args)
            except BlockingIOError:
                limits.poll(task.engine, f"fcntl.{name}", rounds=limits.SLEEP_ROUNDS)

    interrupts.may_be_left(lock)
    return lock


def _lock_of_rank(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `lockf` with locks of the opened file: those of the process exclude no other rank."""
    import fcntl  # noqa: PLC0415 - not everywhere

    if not hasattr(fcntl, "F_OFD_SETLK"):
        return original
    kinds = {
        fcntl.LOCK_SH: fcntl.F_RDLCK,
        fcntl.LOCK_EX: fcntl.F_WRLCK,
        fcntl.LOCK_UN: fcntl.F_UNLCK,
    }

    def lockf(file: Any, operation: int, length: int = 0, start: int = 0, whence: int = 0) -> None:  # noqa: ANN401 - as the original
        kind = kinds.get(operation & ~fcntl.LOCK_NB)
        if kind is None:
            raise ValueError("unrecognized lockf argument")
        asked = struct.pack("hhqqi4x", kind, whence, start, length, 0)  # `struct flock` of Linux.
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, asked)

    return lockf


# ---- sockets that a rank binds: the port is one of its simulated host's ----

_KINDS = {socket.SOCK_STREAM: "tcp", socket.SOCK_DGRAM: "udp"}
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


class _Bound:
    """A socket that a rank has bound.

    Attributes:
        address: As given, with the simulated number.
        asked: The number as given; 0: any.
        holder: The port's.
        release: Gives the port back, once.
    """

    def __init__(self, address: tuple[Any, ...], asked: int, holder: Holder, release: Any) -> None:  # noqa: ANN401 - a finalizer
        self.address = address
        self.asked = asked
        self.holder = holder
        self.release = release


_waiting: WeakKeyDictionary[Any, _Bound] = WeakKeyDictionary()  # Not bound for real.
_bound: WeakKeyDictionary[Any, _Bound] = WeakKeyDictionary()


def of_socket(module: ModuleType) -> Patches:
    """Return patches that take simulated ports, and bound what a socket waits."""
    kind: Any = module.__dict__["socket"]
    own = [
        (kind, "bind", _bind(kind.bind)),
        (kind, "getsockname", _getsockname(kind.getsockname)),
        (kind, "close", _close(kind.close)),
    ]
    names = ("listen", "connect", "connect_ex", "sendto", "recvfrom", "recvfrom_into", "detach")
    first: dict[str, Any] = {name: getattr(kind, name) for name in names}
    bounded = bounded_socket(module)
    first |= {name: patch for _, name, patch in bounded if name in names}
    bind = kind.bind
    realised = [(kind, name, _realised(first[name], bind)) for name in names]
    return [*[each for each in bounded if each[1] not in names], *own, *realised]


@functools.lru_cache(maxsize=32)
def _bind(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def bind(self: Any, address: Any) -> None:  # noqa: ANN401 - a socket; its own
        program = rank_program()
        kind = _KINDS.get(self.type)
        if program is None or running_task() is None or self.family not in _FAMILIES or not kind:
            original(self, address)
            return
        host, asked, *rest = address
        ports, node = ports_of(program), node_of(program)
        flags = (socket.SO_REUSEADDR, getattr(socket, "SO_REUSEPORT", socket.SO_REUSEADDR))
        shares = any(self.getsockopt(socket.SOL_SOCKET, flag) for flag in flags)
        port, holder = ports.take(program, asked, "a socket", kind=kind, shares=shares)
        holder.listens = False
        release = weakref.finalize(self, ports.release, node, port, holder, kind)
        shown = (host or _ANY[self.family], port, *rest)
        _bound[self] = _waiting[self] = _Bound(shown, asked, holder, release)

    return bind


@functools.lru_cache(maxsize=32)
def _getsockname(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def getsockname(self: Any) -> Any:  # noqa: ANN401 - a socket; its own
        waiting = _waiting.get(self)
        if waiting is None:
            return original(self)
        return (*waiting.address, 0, 0)[: 4 if self.family == socket.AF_INET6 else 2]

    return getsockname


@functools.lru_cache(maxsize=32)
def _close(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def close(self: Any) -> None:  # noqa: ANN401 - a socket
        _waiting.pop(self, None)
        bound = _bound.pop(self, None)
        if bound is not None:
            bound.release()
        original(self)

    return close


@functools.lru_cache(maxsize=256)
def _realised(original: Callable[..., Any], bind: Callable[..., None]) -> Callable[..., Any]:
    """Bind a socket for real before it does what needs that."""

    @functools.wraps(original)
    def use(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a socket; its own
        waiting = _waiting.pop(self, None)
        if waiting is not None:
            try:
                bind(self, waiting.address)
            except OSError:
                if waiting.asked != 0:  # The number matters: another process has it.
                    raise
                bind(self, (waiting.address[0], 0, *waiting.address[2:]))
        if original.__name__ == "listen" and self in _bound:
            _bound[self].holder.listens = True
        return original(self, *args, **kwargs)

    return use
