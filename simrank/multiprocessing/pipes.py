"""Pipes between a rank and its processes: a wait for the other end lets all ranks go on.

The descriptors are real and both ends are in this process, so a native read would wait forever.
"""

from __future__ import annotations

import functools
import itertools
import os
import select
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.engine import limits
from simrank.multiprocessing.arguments import IS_LOCAL
from simrank.multiprocessing.shared import packed, received
from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from simrank.engine import EngineInterface, Task

_select = select.select  # Before a Context replaces it.


def patches(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return the replacements for the waits of `multiprocessing.connection`."""
    kind: Any = module.__dict__["Connection"]
    return [
        (kind, "send", _send(kind.send)),
        (module, "Pipe", _pipe(module.__dict__["Pipe"])),
        (kind, "_recv", _with(kind._recv, _read)),  # noqa: SLF001 - where all methods read
        (kind, "_send", _with(kind._send, _write)),  # noqa: SLF001 - likewise
        (module, "wait", _wait(module.__dict__["wait"], kind)),
    ]


def _pipe(original: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """Mark pipes that a rank makes: both ends stay in this process."""

    @functools.wraps(original)
    def pipe(duplex: bool = True) -> tuple[Any, Any]:
        ends = original(duplex)
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
    def call(self: object, *args: Any) -> Any:  # noqa: ANN401 - the original's
        return (
            original(self, *args) if running_task() is None else original(self, args[0], function)
        )

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
    last_ps = None if timeout is None else _host_ps(task) + round(max(timeout, 0) * 1e12)
    while True:
        ready = _select(objects, [], [], 0)[0]
        if ready or (last_ps is not None and _host_ps(task) >= last_ps):
            return ready
        _let_others_go_on("poll() of a pipe")


def _host_ps(task: Task) -> int:
    return max(task.host_ps, task.engine.now_ps)
