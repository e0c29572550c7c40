"""Pipes between a rank and its processes: a wait for the other end lets all ranks go on.

The descriptors are real and both ends are in this process, so a native read would wait forever.
In a search of every timing, messages are objects that ranks share: see `_Direction`.
"""

from __future__ import annotations

import functools
import itertools
import os
import select
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.engine import limits
from simrank.engine.choices import LONG_PS, Act
from simrank.multiprocessing.arguments import IS_LOCAL
from simrank.multiprocessing.shared import packed, received
from simrank.ranks.current import current_engine, running_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from simrank.engine import EngineInterface, Task

PIPES = "pipes"  # The kind of shared object, for reports.
_select = select.select  # Before a Context replaces it.


def of_connection(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return the replacements for the waits of `multiprocessing.connection`."""
    kind: Any = module.__dict__["Connection"]
    return [
        (kind, "send", _send(kind.send)),
        (module, "Pipe", _pipe(module.__dict__["Pipe"])),
        (kind, "_send_bytes", _in_turn(kind._send_bytes, _send_turn, _wrote)),  # noqa: SLF001 - by all methods
        (kind, "_recv_bytes", _in_turn(kind._recv_bytes, _receive_turn, _took)),  # noqa: SLF001 - likewise
        (kind, "_recv", _with(kind._recv, _read)),  # noqa: SLF001 - where all methods read
        (kind, "_send", _with(kind._send, _write)),  # noqa: SLF001 - likewise
        (module, "wait", _wait(module.__dict__["wait"], kind)),
    ]


def _pipe(original: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """Mark pipes that a rank makes: both ends stay in this process."""

    @functools.wraps(original)
    def pipe(duplex: bool = True) -> tuple[Any, Any]:
        ends = original(duplex)
        engine = current_engine()
        if engine is not None and engine.choices is not None:
            first, second = (_file_of(end) for end in ends)
            _peers.setdefault(engine, {}).update({first: second, second: first})
        if running_task() is not None:
            for end in ends:
                vars(end)[IS_LOCAL] = True
        return ends

    return pipe


class _Sent:
    """An object on its way through a pipe: its number is, and stands for it."""

    def __init__(self, engine: EngineInterface, value: object) -> None:
        parcels = _parcels.setdefault(engine, {})
        self._number = next(_numbers)
        parcels[self._number] = packed(value)

    def __reduce__(self) -> tuple[Callable[[int], Any], tuple[int]]:
        return _arrived, (self._number,)


_numbers = itertools.count(1)
_parcels: WeakKeyDictionary[EngineInterface, dict[int, Any]] = WeakKeyDictionary()


def _arrived(number: int) -> Any:  # noqa: ANN401 - anything
    """Return the object of a number, as the running rank has it."""
    task = running_task()
    assert task is not None, "a rank receives it"
    return received(_parcels[task.engine].pop(number))


def _send(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Send objects by reference to a copy: tensors share memory, as real ones do."""

    @functools.wraps(original)
    def send(self: Any, obj: Any) -> None:  # noqa: ANN401 - a connection, and anything
        task = running_task()
        if task is None or IS_LOCAL not in vars(self):
            original(self, obj)
        else:
            original(self, _Sent(task.engine, obj))

    return send


def _with(original: Callable[..., Any], function: Callable[[int, Any], Any]) -> Callable[..., Any]:
    """Return a method of a rank's connection that uses another function of the system."""

    @functools.wraps(original)
    def call(self: object, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        task = running_task()
        if task is None:
            return original(self, *args, **kwargs)
        limits.reach(task, PIPES)
        return original(self, args[0], function)

    return call


def _read(handle: int, size: int) -> bytes:
    while not _select([handle], [], [], 0)[0]:
        _let_others_go_on("recv() of a pipe")
    return os.read(handle, size)


def _write(handle: int, data: Any) -> int:  # noqa: ANN401 - any value
    while True:
        is_blocking = os.get_blocking(handle)
        os.set_blocking(handle, False)
        try:
            return os.write(handle, data)
        except BlockingIOError:
            pass
        finally:
            os.set_blocking(handle, is_blocking)
        _let_others_go_on("send() of a pipe")


def _let_others_go_on(what: str) -> None:
    task = running_task()
    assert task is not None, "a rank waits"
    limits.poll(task.engine, what, rounds=limits.SLEEP_ROUNDS)


def _wait(original: Callable[..., list[Any]], kind: type) -> Callable[..., list[Any]]:
    """Wait in simulated time for connections; for anything else as before."""

    @functools.wraps(original)
    def wait(object_list: Sequence[Any], timeout: float | None = None) -> list[Any]:
        objects, task = list(object_list), running_task()
        if task is None or any(type(each) is not kind for each in objects):
            return original(objects, timeout)
        return _ready(task, objects, timeout)

    return wait


def _ready(task: Task, objects: list[Any], timeout: float | None) -> list[Any]:
    """Return the connections that can be read without a wait, within a simulated time."""
    if task.engine.choices is not None and len(objects) == 1:
        return objects if _answers(task, objects[0], timeout) else []
    last_ps = None if timeout is None else _host_ps(task) + round(max(timeout, 0) * 1e12)
    while True:
        ready = _select(objects, [], [], 0)[0]
        if ready or (last_ps is not None and _host_ps(task) >= last_ps):
            return ready
        _let_others_go_on("poll() of a pipe")


def _host_ps(task: Task) -> int:
    return max(task.host_ps, task.engine.now_ps)


# ---- in a search of every timing ----

_File = tuple[int, int]
_peers: WeakKeyDictionary[EngineInterface, dict[_File, _File]] = WeakKeyDictionary()


class _Direction:
    """One direction of a pipe.

    Its messages are shared objects, each written once and awaited by one. Its two ends are as well:
    where several ranks use one, their order decides which of them has which message.

    Attributes:
        num_sent: Messages so far.
        num_written: Of them, those that are in the pipe.
        num_received: Reads so far.
        num_taken: Of them, those that have ended.
        num_seen: Messages whose arrival a poll has seen, by task.
    """

    def __init__(self) -> None:
        self.num_sent = self.num_written = self.num_received = self.num_taken = 0
        self.num_seen: dict[Task, int] = {}


_directions: WeakKeyDictionary[EngineInterface, dict[_File, _Direction]] = WeakKeyDictionary()


def _file_of(connection: Any) -> _File:  # noqa: ANN401 - a connection
    """Return the identity of the file of a connection, which its copies have too."""
    found = os.fstat(connection.fileno())
    return found.st_dev, found.st_ino


def _direction(task: Task, reader: _File) -> _Direction:
    return _directions.setdefault(task.engine, {}).setdefault(reader, _Direction())


def _in_turn(
    original: Callable[..., Any],
    turn: Callable[[Task, Any], None],
    after: Callable[[Task, Any], None] = lambda *_: None,
) -> Callable[..., Any]:
    """Return a method of a connection that waits for its turn in a search."""

    @functools.wraps(original)
    def call(self: object, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        task = running_task()
        if task is not None and task.engine.choices is not None:
            turn(task, self)
            try:
                return original(self, *args, **kwargs)
            finally:
                after(task, self)
        return original(self, *args, **kwargs)

    return call


def _send_turn(task: Task, connection: Any) -> None:  # noqa: ANN401 - a connection
    own = _file_of(connection)
    reader = _peers.get(task.engine, {}).get(own, own)
    direction = _direction(task, reader)
    limits.reach(task, PIPES, (reader, "entry"), direction)
    direction.num_sent = number = direction.num_sent + 1
    limits.reach(
        task, PIPES, (reader, number), direction, act=Act.WRITE,
        is_ready=lambda: direction.num_written == number - 1, asked=number,
    )  # fmt: skip


def _wrote(task: Task, connection: Any) -> None:  # noqa: ANN401 - a connection
    own = _file_of(connection)
    _direction(task, _peers.get(task.engine, {}).get(own, own)).num_written += 1


def _receive_turn(task: Task, connection: Any) -> None:  # noqa: ANN401 - a connection
    reader = _file_of(connection)
    direction = _direction(task, reader)
    limits.reach(task, PIPES, (reader, "exit"), direction)
    direction.num_received += 1
    _await(task, connection, reader, direction.num_received)


def _took(task: Task, connection: Any) -> None:  # noqa: ANN401 - a connection
    _direction(task, _file_of(connection)).num_taken += 1


def _await(task: Task, connection: Any, reader: _File, number: int) -> None:  # noqa: ANN401 - likewise
    def is_ready() -> bool:
        return direction.num_taken == number - 1 and bool(_select([connection], [], [], 0)[0])

    direction = _direction(task, reader)
    limits.reach(
        task, PIPES, (reader, number), direction, act=Act.AWAIT, is_ready=is_ready, asked=number
    )


def _answers(task: Task, connection: Any, timeout: float | None) -> bool:  # noqa: ANN401 - likewise
    """Answer a poll for the next message; without a limit, wait for it."""
    reader = _file_of(connection)
    direction = _direction(task, reader)
    number = direction.num_received + 1
    if timeout is None or timeout * 1e12 >= LONG_PS:
        _await(task, connection, reader, number)
        is_seen = True
    else:
        is_seen = limits.ask(
            task.engine,
            "poll() of a pipe",
            lambda: bool(_select([connection], [], [], 0)[0]),
            lambda: direction.num_seen.get(task, 0) >= number,
            direction,
        )
    if is_seen:
        direction.num_seen[task] = number
    return is_seen
