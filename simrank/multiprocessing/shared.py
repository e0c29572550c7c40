"""multiprocessing's queues, locks, managers, values for ranks: waits of the engine.

A rank that waits on one of them goes back to the hub and is resumed in simulated time; one that can
never be served is part of the deadlock report. Everything lives in this process: values are passed,
not copied, and spawn hands what is made here to its ranks as it is. What ranks that have modules
for themselves put into queues is copied, and is of the receiver's classes. A manager copies all.

The descriptors are real and both ends are in this process, so a native read would wait forever.
"""

from __future__ import annotations

import functools
import queue
import threading  # noqa: TID251 - its classes are engine waits in a rank (see `isolation.stdlib`)
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

from simrank.engine import limits
from simrank.engine.choices import Act
from simrank.errors import UnsupportedError
from simrank.isolation.locks import LOCKS, ReentrantLock, note_read, note_write, reach_value
from simrank.isolation.locks import Lock as ThreadLock
from simrank.isolation.private_modules import private_modules, reference
from simrank.multiprocessing.arguments import (
    is_immutable,
    pickle_by_reference,
    unpickle_references,
)
from simrank.multiprocessing.turns import is_long, searching_task, take_turn
from simrank.ranks.current import numbered, rank_program

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from simrank.multiprocessing.arguments import Refer

# ---- values sent between ranks through queues and pipes; pickled if modules are private ----

# Functions and classes of modules that the sender executed for itself are found by their names.
BY_NAME: Refer = partial(reference, frozenset())


class _Parcel(NamedTuple):
    pickled: bytes
    table: list[Any]


def packed(value: Any) -> Any:  # noqa: ANN401 - anything
    """Return a copy for `received`, as a pipe would make it."""
    return _Parcel(*pickle_by_reference(value, BY_NAME))


def sent(value: Any) -> Any:  # noqa: ANN401 - anything
    """Return a value for a queue: pickled if the sending rank has modules for itself.

    The receiver unpickles it with its own modules, and gets objects of its own classes.
    """
    program = rank_program()
    own = None if program is None else private_modules(program)
    if own is None or not own.has_any or is_immutable(value, BY_NAME):
        return value
    try:
        return packed(value)
    except RecursionError:  # As with arguments.
        return value


def text_of(item: Any) -> bytes | str | None:  # noqa: ANN401 - as above
    """Return a text that is equal for equal values; None: there is none that is sure to be."""
    if type(item) is _Parcel:
        return None if item.table else item.pickled
    return repr(item) if type(item) in (int, float, bool, str, bytes, type(None)) else None


def received(item: Any) -> Any:  # noqa: ANN401 - a value, or a parcel
    """Return the value that `sent` was given, as the running program has it."""
    return unpickle_references(*item) if type(item) is _Parcel else item


# ---- multiprocessing's queues, locks, managers and values for ranks, as waits of the engine ----


class SharedBarrier(threading.Barrier):
    """As multiprocessing.Barrier."""

    @property
    def n_waiting(self) -> int:
        """The number of those that wait."""
        self._look()
        return super().n_waiting

    @property
    def broken(self) -> bool:
        """Whether it is broken."""
        self._look()
        return super().broken

    def _look(self) -> None:
        task = searching_task()
        if task is not None:  # Its lock has all that it does.
            lock = vars(vars(self)["_cond"])["_lock"]
            limits.reach(task, LOCKS, id(lock), lock, act=Act.READ)


Barrier = SharedBarrier


class ProcessLock(ThreadLock):
    """As multiprocessing.Lock."""

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take it; a limit is not below zero."""
        return super().acquire(block, -1 if timeout is None or not block else max(timeout, 0))


Lock = ProcessLock


class RLock(ReentrantLock):
    """As multiprocessing.RLock."""

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take it; a limit is not below zero."""
        return super().acquire(block, -1 if timeout is None or not block else max(timeout, 0))


class Semaphore(threading.Semaphore):
    """As multiprocessing.Semaphore.

    Args:
        value: How many can take it at once.
    """

    def __init__(self, value: int = 1) -> None:
        super().__init__(value)
        self.made_as = numbered()

    def _shown(self) -> Hashable:
        """Return its state, for a search."""
        return self.made_as, self._value

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take one; a limit is not below zero."""
        limit = None if timeout is None or not block else max(timeout, 0)
        task = searching_task()
        if task is None:
            return super().acquire(block, limit)
        waits = is_long(block, limit)
        taken: bool = take_turn(
            task, self, self._shown, Act.ACQUIRE if waits else Act.UPDATE,
            partial(super().acquire, False),
            given="acquire", is_ready=(lambda: self._value > 0) if waits else None,
            is_vain=None if waits else (lambda: self._value == 0), timeout=limit,
        )  # fmt: skip
        return taken

    __enter__ = acquire  # As its base class has it.

    def release(self, n: int = 1) -> None:
        """Give some back."""
        task, release = searching_task(), partial(super().release, n)
        if task is None:
            release()
        else:
            take_turn(task, self, self._shown, Act.RELEASE, release, given=("release", n))

    def get_value(self) -> int:
        """Return the current value of the counter."""
        task = searching_task()
        if task is not None:
            take_turn(task, self, self._shown, Act.READ, int, given="value")
        return self._value


class BoundedSemaphore(Semaphore, threading.BoundedSemaphore):
    """As multiprocessing.BoundedSemaphore."""


class SharedEvent(threading.Event):
    """As multiprocessing.Event."""

    def __init__(self) -> None:
        super().__init__()
        self.made_as = numbered()

    def _shown(self) -> Hashable:
        """Return its state, for a search."""
        return self.made_as, self._is_set()

    def is_set(self) -> bool:
        """Return whether it is set."""
        task = searching_task()
        if task is None:
            return super().is_set()
        is_set: bool = take_turn(task, self, self._shown, Act.READ, self._is_set, given="is_set")
        return is_set

    def _is_set(self) -> bool:
        return bool(vars(self)["_flag"])  # A call of `is_set` is a look.

    def set(self) -> None:
        """Set it: those that wait go on."""
        self._write(super().set, "set")

    def clear(self) -> None:
        """Clear it."""
        self._write(super().clear, "clear")

    def _write(self, write: Callable[[], None], name: str) -> None:
        task = searching_task()
        if task is None:
            write()
        else:
            take_turn(task, self, self._shown, Act.WRITE, write, given=name)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; return whether it is."""
        task = searching_task()
        if task is None:
            return super().wait(timeout)
        waits = is_long(True, timeout)
        found: bool = take_turn(
            task, self, self._shown, Act.AWAIT if waits else Act.READ, self._is_set, given="wait",
            is_ready=self._is_set if waits else None, is_vain=lambda: not self._is_set(),
            timeout=timeout,
        )  # fmt: skip
        return found


Event = SharedEvent


_METHODS = ("spawn", "fork", "forkserver", None)
# C type codes and ctypes names -> the Python type whose zero a fresh value has.
_FLOAT_CODES = ("f", "d", "c_float", "c_double")


class Condition(threading.Condition):
    """As multiprocessing.Condition.

    Args:
        lock: The lock under it; default: a reentrant one. Python's own knows threads, not ranks.
    """

    def __init__(self, lock: object = None) -> None:
        under: Any = RLock() if lock is None else lock
        super().__init__(under)


class Queue(queue.Queue[Any]):
    """As multiprocessing.Queue; nothing needs to be flushed, so closing it does nothing.

    Args:
        maxsize: How many items there is room for; 0: any number.
    """

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self.made_as = numbered()

    def _shown(self) -> Hashable:
        """Return its state, for a search."""
        items = [text_of(item) for item in self.queue]
        return None if None in items else (self.made_as, self.unfinished_tasks, *items)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:  # noqa: ANN401
        """Put an item in."""
        given, task = sent(item), searching_task()
        if task is None:
            super().put(given, block, timeout)
            return
        waits, put = is_long(block, timeout), partial(super().put, given, False)

        def is_full() -> bool:
            return 0 < self.maxsize <= len(self.queue)

        take_turn(
            task, self, self._shown, Act.WRITE if waits else Act.UPDATE, put,
            given=None if text_of(given) is None else ("put", text_of(given)),
            is_ready=(lambda: not is_full()) if waits else None,
            is_vain=None if waits else is_full, timeout=timeout if block else None,
        )  # fmt: skip

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401
        """Take the first item out."""
        task = searching_task()
        if task is None:
            return received(super().get(block, timeout))
        waits = is_long(block, timeout)
        item = take_turn(
            task, self, self._shown, Act.UPDATE, partial(super().get, False), given="get",
            is_ready=(lambda: bool(self.queue)) if waits else None,
            is_vain=None if waits else (lambda: not self.queue),
            timeout=timeout if block else None,
        )  # fmt: skip
        return received(item)

    def qsize(self) -> int:
        """Return the number of items."""
        size: int = self._look(super().qsize)
        return size

    def empty(self) -> bool:
        """Return whether there is no item."""
        is_empty: bool = self._look(super().empty)
        return is_empty

    def full(self) -> bool:
        """Return whether there is no room."""
        is_full: bool = self._look(super().full)
        return is_full

    def _look(self, look: Callable[[], Any]) -> Any:  # noqa: ANN401 - the result
        task = searching_task()
        if task is None:
            return look()
        return take_turn(task, self, self._shown, Act.READ, look, given="look")

    def task_done(self) -> None:
        """Note that an item has been dealt with."""
        task, done = searching_task(), super().task_done
        if task is None:
            done()
        else:
            take_turn(task, self, self._shown, Act.WRITE, done, given="task_done")

    def join(self) -> None:
        """Wait until all items have been dealt with."""
        task, join = searching_task(), super().join
        if task is None:
            join()
        else:
            take_turn(
                task, self, self._shown, Act.AWAIT, join, given="join",
                is_ready=lambda: not self.unfinished_tasks,
            )  # fmt: skip

    def close(self) -> None:
        """Do nothing: no thread feeds a pipe."""

    def join_thread(self) -> None:
        """Do nothing: no thread feeds a pipe."""

    def cancel_join_thread(self) -> None:
        """Do nothing: no thread feeds a pipe."""


class JoinableQueue(Queue):
    """As multiprocessing.JoinableQueue: `task_done` and `join`."""


class SimpleQueue(Queue):
    """As multiprocessing.SimpleQueue: unbounded, `get`, `put` and `empty`."""

    def __init__(self) -> None:
        super().__init__(0)


class Value:
    """A value that ranks share, as multiprocessing.Value.

    Args:
        typecode: As there: "i", "d", ...; decides what it is without a value.
        value: Its first value.
        lock: As there; ranks never run at the same time, so it only matters between waits.
    """

    def __init__(self, typecode: object, value: object = None, *, lock: object = True) -> None:
        self._value = _zero(typecode) if value is None else value
        self.made_as = numbered()
        self._lock = RLock() if isinstance(lock, bool) else lock

    @property
    def value(self) -> Any:  # noqa: ANN401 - any value
        """The value; a loop that reads it until it changes lets the other ranks run."""
        note_read(self, id(self), "a Value that no rank changes", self._shown)
        return self._value

    @value.setter
    def value(self, value: Any) -> None:  # noqa: ANN401 - likewise
        text = text_of(value)
        note_write(self, None if text is None else (self.made_as, text), self._shown)
        self._value = value

    def _shown(self) -> Hashable:
        text = text_of(self._value)
        return None if text is None else (self.made_as, text)

    def get_lock(self) -> Any:  # noqa: ANN401 - any value
        """Return the lock that guards it."""
        return self._lock


class Array:
    """An array that ranks share, as multiprocessing.Array.

    Args:
        typecode: As there.
        size_or_values: A length, or the values.
        lock: As there.
    """

    def __init__(
        self,
        typecode: object,
        size_or_values: int | Iterable[Any],
        *,
        lock: object = True,
    ) -> None:
        self.made_as = numbered()
        if isinstance(size_or_values, int):
            self._values = [_zero(typecode)] * size_or_values
        else:
            self._values = list(size_or_values)
        self._lock = RLock() if isinstance(lock, bool) else lock

    def get_lock(self) -> Any:  # noqa: ANN401 - any value
        """Return the lock that guards it."""
        return self._lock

    def __len__(self) -> int:
        """Return the length, which never changes."""
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - an element or a slice
        """Return an element or a slice."""
        note_read(
            self,
            (id(self), index if isinstance(index, int) else str(index)),
            "an Array that no rank changes",
            self._shown,
        )
        return self._values[index]

    def __setitem__(self, index: Any, value: Any) -> None:  # noqa: ANN401
        """Set an element, or as many as a slice has."""
        if isinstance(index, slice) and len(list(value)) != len(self._values[index]):
            raise ValueError("the length of an Array never changes")
        note_write(self, (self.made_as, repr(index), repr(value)), self._shown)
        self._values[index] = value

    def _shown(self) -> Hashable:
        return self.made_as, repr(self._values)

    def __iter__(self) -> Iterator[Any]:
        """Yield the elements."""
        note_read(self, id(self), "an Array that no rank changes", self._shown)
        return iter(self._values)


def _zero(typecode: object) -> int | float:
    return 0.0 if getattr(typecode, "__name__", typecode) in _FLOAT_CODES else 0


class ManagedDict(dict[Any, Any]):
    """A dict that ranks share: spawn does not copy it."""


class ManagedList(list[Any]):
    """A list that ranks share: spawn does not copy it."""


class Namespace(SimpleNamespace):
    """Attributes that ranks share: spawn does not copy them."""

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - the user's
        """Return an attribute."""
        if not name.startswith("__"):
            note_read(self, (id(self), name), f"{name!r} of a Namespace that no rank changes")
        return super().__getattribute__(name)

    def __repr__(self) -> str:
        """Return the attributes."""
        note_read(self, (id(self), "repr"), "a Namespace that no rank changes")
        return super().__repr__()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute."""
        note_write(self)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute."""
        note_write(self)
        super().__delattr__(name)


# Of a dict and a list, what neither reads nor writes their items; all but the writers read.
_NEITHER = frozenset({"__class_getitem__", "__getattribute__", "__init__", "__new__", "__sizeof__",
                      "fromkeys"})  # fmt: skip
_WRITERS = (
    "__delitem__", "__iadd__", "__imul__", "__ior__", "__setitem__", "append", "clear", "extend",
    "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update",
)  # fmt: skip


def _copied(value: Any) -> Any:  # noqa: ANN401 - anything
    """Return a value as a manager hands it over: a list in a dict is changed by no rank."""
    if isinstance(value, KeysView | ValuesView | ItemsView):
        return _copied(list(value))
    if isinstance(value, Iterator):
        return map(_copied, value)
    return value if is_immutable(value, BY_NAME) else received(packed(value))


def _reads(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(self: object, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - the original's
        _note_read(self, original.__name__, args)
        return _copied(original(self, *args, **kwargs))

    return read


def _note_read(self: object, method: str, args: tuple[object, ...]) -> None:
    which = [each if isinstance(each, int | str) else id(each) for each in args]
    note_read(self, (id(self), method, *which), f"a {type(self).__name__} that no rank changes")


def _writes(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def write(self: object, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - the original's
        reach_value(self)
        try:
            result = original(self, *map(_copied, args), **_copied(kwargs))
        except Exception:  # A pop of what is not there yet, say.
            _note_read(self, original.__name__, args)
            raise
        note_write()
        return _copied(result)

    return write


for _kind in (ManagedDict, ManagedList):
    for _name, _method in vars(_kind.__mro__[1]).items():
        if callable(_method) and _name not in _NEITHER:
            setattr(_kind, _name, (_writes if _name in _WRITERS else _reads)(_method))


class SyncManager:
    """The result of `multiprocessing.Manager()`: containers that ranks share."""

    Queue, JoinableQueue, Event, Condition = Queue, JoinableQueue, Event, Condition
    Barrier, Semaphore, BoundedSemaphore = Barrier, Semaphore, BoundedSemaphore
    Lock, RLock, Value, Array = Lock, RLock, Value, Array
    Namespace = Namespace

    def dict(self, *args: object, **kwargs: object) -> ManagedDict:
        """Return a shared dict."""
        return ManagedDict(*map(_copied, args), **_copied(kwargs))

    def list(self, values: Iterable[Any] = ()) -> ManagedList:
        """Return a shared list."""
        return ManagedList(map(_copied, values))

    def start(self) -> None:
        """Do nothing: there is no server."""

    def shutdown(self) -> None:
        """Do nothing: there is no server."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: there is no server."""


def Manager() -> SyncManager:  # noqa: N802 - multiprocessing's name
    """Return a manager; ranks live in one process, so it needs no server."""
    return SyncManager()


def _refuse(name: str) -> Any:  # noqa: ANN401 - stands for a class
    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnsupportedError(
            f"multiprocessing.{name} would start a real process\n"
            "  to fix: use simrank.multiprocessing.spawn for ranks"
        )

    return refuse


Pool, Process = _refuse("Pool"), _refuse("Process")


def get_context(method: str | None = None) -> SimpleNamespace:
    """Return the names of this module under one object, as multiprocessing.get_context.

    Raises:
        ValueError: There is no such start method.
    """
    if method not in _METHODS:
        raise ValueError(f"cannot find context for {method!r}")
    names = (
        "Array", "Barrier", "BoundedSemaphore", "Condition", "Event", "JoinableQueue", "Lock",
        "Manager", "Pool", "Process", "Queue", "RLock", "Semaphore", "SimpleQueue", "Value",
    )  # fmt: skip
    return SimpleNamespace(**{name: globals()[name] for name in names})
