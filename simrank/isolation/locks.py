"""Locks of the standard library, as a rank sees them: waits of the engine (rule E7).

`threading` and `queue` build conditions, events, semaphores, barriers and queues from two parts, a
lock and the lock a waiter sleeps on. While a Context is entered both are made here, so that a rank
that has to wait goes back to the hub, and a deadlock names the holders. On the hub such a wait
drives the engine. Other threads of the process find an ordinary lock.

Locks that the program's modules hold under a name of their own when the first Context is entered
are replaced too. One in a container or an object, or a C `SimpleQueue`, that was made before cannot
be seen: only a time limit ends a wait for it.

One read is no poll: a program may look at a counter as often as it likes. One that has read the
same things many times, and has done nothing else meanwhile, waits for another rank.
"""

from __future__ import annotations

import _thread
import functools
import math
import sys
from _thread import allocate_lock  # Contexts replace it in its module.
from collections import deque
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.engine import Handle, limits
from simrank.engine.callsite import (
    attributes_of,
    is_called_by_package,
    is_importing,
    is_installed,
    is_real,
    module_text,
)
from simrank.engine.choices import LONG_PS, Act
from simrank.engine.report import deadlock_error
from simrank.isolation.ledger import Ledger
from simrank.ranks.current import (
    current_engine,
    is_for_real,
    numbered,
    race_order,
    rank_program,
    running_task,
)
from simrank.ranks.program_modules import PerModule
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from simrank.engine import EngineInterface, Task


# ---- loops that read shared state until another rank changes it: such reads are polls (E8) ----

# Assumed: so many reads of what has been read already are a loop that waits. Locks are taken that
# often by programs that do not wait; they are accused later too, as one that sleeps is.
_MAX_READS, _MAX_LOCKS = 100, 1000

_State = tuple[int, int, int]


class _Spin:
    """Values read since the last other action.

    Attributes:
        seen: What has been read, by name.
        num_vain: How often something was read that had been read already.
        state: The reader, and what shows that something else has happened.
    """

    __slots__ = ("num_vain", "seen", "state")

    def __init__(self) -> None:
        self.seen: set[Hashable] = set()
        self.num_vain = 0
        self.state: _State | None = None

    def is_over(self, state: _State, key: Hashable, most: int) -> bool:
        """Count a read; return whether it is one too many."""
        if state != self.state:
            self.state, self.num_vain = state, 0
            self.seen.clear()
        if key not in self.seen:
            self.seen.add(key)
            return False
        self.num_vain += 1
        if self.num_vain <= most:
            return False
        self.num_vain = 0
        return True


_reads, _locks = _Spin(), _Spin()
LOCKS, VALUES = "locks and queues", "shared values"  # Kinds of shared objects, for reports.


def note_read(
    owner: object, key: Hashable, what: str, state: Callable[[], Hashable] | None = None
) -> None:
    """Count a read of something shared.

    Args:
        owner: The value; None: the read is on time.
        key: Tells it from others.
        what: Names it in reports.
        state: As in `Choices.reach`.
    """
    engine = current_engine()
    if engine is None:
        return
    if engine.sees_shared:
        reach_value(owner, Act.READ, key[1:] if isinstance(key, tuple) else None, state)
    task = engine.current_task()
    if (
        engine.choices is None
        and _reads.is_over(_state(engine, task), key, _MAX_READS)
        and _may_poll(engine, task)
    ):
        limits.poll(engine, what)
    if (races := race_order()) is not None:  # It is behind what others did before they changed it.
        races.met(races.conditions)


def reach_value(
    owner: object,
    act: Act = Act.UPDATE,
    part: Hashable = None,
    state: Callable[[], Hashable] | None = None,
) -> None:
    """Delay a rank's call on a shared value, or choose its turn.

    Args:
        owner: The value; None: the call is on time.
        act: As in `Choices.reach`.
        part: What is read of it, or all that a change gives.
        state: As in `Choices.reach`.
    """
    engine = current_engine()
    if owner is not None and engine is not None and engine.sees_shared:
        task = engine.current_task()
        if task is not None:
            limits.reach(task, VALUES, id(owner), owner, act=act, state=state, given=part)


def note_write(
    owner: object = None, given: Hashable = None, state: Callable[[], Hashable] | None = None
) -> None:
    """Note that a rank has changed, or is about to change, what others may be reading.

    Args:
        owner: The value; None: the call is on time.
        given: All that the rank gives; None: unknown.
        state: As in `Choices.reach`.
    """
    engine = current_engine()
    if engine is not None:
        if engine.sees_shared:
            reach_value(owner, Act.WRITE, given, state)
        engine.progress += 1
    if (races := race_order()) is not None:
        races.meet(races.conditions)


def note_lock(key: Hashable, task: Task) -> None:
    """Count an uncontended lock that a task takes."""
    engine = task.engine
    if _locks.is_over(_state(engine, task), key, _MAX_LOCKS):
        limits.poll(engine, "a lock that it takes again and again", rounds=limits.LOCK_ROUNDS)


def _state(engine: EngineInterface, task: Task | None) -> _State:
    clock_ps = engine.now_ps if task is None else task.clock_ps
    return id(task), engine.progress, clock_ps  # The task itself would outlive its spawn here.


def _may_poll(engine: EngineInterface, task: Task | None) -> bool:
    """Whether the caller is a rank, or the main program while nothing else drives the engine."""
    return task is not None or (engine.is_hub() and not engine.is_driving)


# ---- locks of the standard library, as a rank sees them: waits of the engine (rule E7) ----


def make_lock() -> Lock | _thread.LockType:
    """Replace `threading.Lock`."""
    if is_for_real():
        return allocate_lock()
    return LibraryLock() if _is_made_at_import() else Lock()


def _is_made_at_import() -> bool:
    """Return whether a library makes a lock as it is imported: it outlives the Context."""
    code = sys._getframe(2).f_code  # noqa: SLF001 - the documented way to a caller
    return code.co_name == "<module>" and is_installed(code.co_filename)


def make_waiter() -> Lock | _thread.LockType:
    """Return the lock on which a waiter of `threading.Condition` sleeps."""
    return allocate_lock() if is_for_real() else Lock(is_waiter=True)


def make_reentrant_lock() -> ReentrantLock | _thread.RLock:
    """Replace `threading.RLock`."""
    if is_for_real():
        return _thread.RLock()
    return ReentrantLock(LibraryLock() if _is_made_at_import() else None)


def make_low_lock() -> Lock | _thread.LockType:
    """Replace `_thread.allocate_lock`; locks of imports stay Python's own.

    Not so where ranks are threads: on greenlets all ranks are one thread for it.
    """
    asks = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - the documented way
    task = running_task()
    if task is None or asks.startswith("simrank."):
        return allocate_lock()
    if asks.startswith(("_frozen_importlib", "importlib")):
        # A rank that waits in the midst of an import must not stop other importers.
        return allocate_lock() if task.carrier.thread_id is None else LibraryLock()
    return make_lock()


def of_globals(value: object) -> object:
    """Return the replacement of a lock that a program's module made at its top, or None.

    A bare lock would stop the whole process, a reentrant one does not know ranks apart.
    """
    if type(value) is _LOCK:
        return Lock(value)
    if type(value) is _REENTRANT_LOCK and not value._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
        return ReentrantLock()
    return None


def make_property_lock() -> PropertyLock | _thread.RLock:
    """Replace `RLock` in `functools`."""
    return _thread.RLock() if is_for_real() else PropertyLock()


def of_library(value: object) -> object:
    """Return the replacement of a lock that a library made at import, or None."""
    if type(value) is _LOCK:
        return LibraryLock(value)
    if type(value) is _REENTRANT_LOCK and not value._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
        return ReentrantLock(LibraryLock())
    return None


_KEY = "locks of cached properties"  # In `Program.local`.
BARE = _LOCK, _REENTRANT_LOCK = type(allocate_lock()), type(_thread.RLock())


def catch_up(task: Task | None) -> None:
    """Wait until simulated time reaches the rank's host clock, before ranks interact (E8).

    Not in the midst of an import: another rank that imports the same module would get half of it.
    """
    if task is None or task.num_quiet or task.host_ps <= task.engine.now_ps:
        return
    if not is_importing():
        task.engine.sleep(0)


class LockWait(Handle):
    """A wait for a lock, for reports."""

    __slots__ = ("_lock", "engine")

    def __init__(self, lock: Lock, engine: EngineInterface) -> None:
        super().__init__()
        self._lock = lock
        self.engine = engine

    def describe(self) -> str:
        """Return the text that names its holder."""
        return self._lock.describe()


class Lock:
    """Replacement of `_thread.lock`: waits of ranks are the engine's.

    The task that waited longest gets it on release.
    """

    __slots__ = (
        "__weakref__", "_holder", "_is_waiter", "_num_calls", "_order", "_real", "_waits",
        "made_as",
    )  # fmt: skip

    def __init__(self, real: _thread.LockType | None = None, *, is_waiter: bool = False) -> None:
        self._real = allocate_lock() if real is None else real
        self._waits: deque[LockWait] = deque()
        self._holder: Task | int | None = None
        self._is_waiter = is_waiter
        self.made_as = None if is_waiter else numbered()
        self._num_calls = 0  # Of threads, which the next owner follows.
        self._order: dict[int, int] = {}  # The clock of its last owner, for race checks.

    def describe(self) -> str:
        """Return the awaited lock, in the user's words."""
        holder = self._holder
        if self._is_waiter:
            return "a notification of a Condition, Event, Semaphore or Queue"
        if holder is None or isinstance(holder, int):
            return "a lock held by the main program"
        ended = ", which has ended" if holder.finished else ""
        return f"a lock held by {holder.name}{ended}"

    def locked(self) -> bool:
        """Return whether it is held."""
        return self._real.locked()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; in a rank a wait passes simulated time, as does a vain try."""
        taken = self._acquire(blocking, timeout)
        if self._num_calls and taken and (task := running_task()) is not None:
            task.num_calls_seen = max(task.num_calls_seen, self._num_calls)
        if taken and self._order and (races := race_order()) is not None:
            races.met(self._order)
        return taken

    def _acquire(self, blocking: bool, timeout: float) -> bool:
        if not blocking or timeout != -1:
            _check_arguments(blocking, timeout)
        task = running_task()
        catch_up(task)
        if task is not None and not self._is_waiter:
            if task.engine.sees_shared:
                self._take_turn(task, blocking, timeout)
            if task.engine.choices is None:
                note_lock(id(self), task)
        if self._real.acquire(False):
            self._holder = _thread.get_ident() if task is None else task
            return True
        if task is not None and not blocking and task.engine.choices is None:
            limits.poll(task.engine, "acquire of a lock")
            if self._real.acquire(False):
                self._holder = task
                return True
        if not blocking:
            return False
        if task is not None:
            return self._wait(task.engine, task, timeout)
        return self._wait_outside(timeout)

    def _take_turn(self, task: Task, blocking: bool, timeout: float) -> None:
        """Delay a rank's call, or choose its turn, in a search of orders."""
        is_shared = not is_called_by_package()  # Its locks are those of one process.
        # With a short limit it may come back without it.
        waits = blocking and not 0 <= timeout * PS_PER_S < LONG_PS
        if waits and timeout >= 0 and task.engine.choices is not None:
            task.engine.choices.note_long_limit()
        limits.reach(
            task, LOCKS, id(self) if is_shared else None, self,
            act=Act.ACQUIRE if waits else Act.UPDATE, is_ready=self._is_free if waits else None,
            is_vain=None if waits else self._real.locked, state=self._shown, given=self.made_as,
        )  # fmt: skip

    def _shown(self) -> Hashable:
        holder = getattr(self._holder, "name", "")
        return self.made_as, self._real.locked(), holder, len(self._waits)

    def _is_free(self) -> bool:
        return not self._real.locked()

    def _wait(self, engine: EngineInterface, task: Task | None, timeout: float) -> bool:
        if self._is_waiter and (races := race_order()) is not None:
            races.meet(races.conditions)  # The condition's own lock may not be seen.
        wait = LockWait(self, engine)
        self._waits.append(wait)
        try:
            if timeout < 0:
                engine.wait(wait)
            else:
                # Rounded up: a small rest of a wait must end.
                engine.wait_at_most(wait, math.ceil(timeout * PS_PER_S))
        except BaseException:
            self._give_up(wait)
            raise
        if not wait.complete:
            self._give_up(wait)
            return False
        self._holder = _thread.get_ident() if task is None else task
        return True

    def _give_up(self, wait: LockWait) -> None:
        if wait in self._waits:
            self._waits.remove(wait)
        else:  # It was handed over at the same time.
            self._hand_over()

    def _wait_outside(self, timeout: float) -> bool:
        """Wait on the hub, which drives, or in a thread that has nothing to do with ranks."""
        engine = current_engine()
        is_ranks = not isinstance(self._holder, int | None) and not is_for_real() and timeout < 0
        if is_ranks and engine is not None and engine.is_driving and engine.is_hub():
            raise deadlock_error(engine, self.describe())  # No rank runs while it waits.
        is_hubs = isinstance(self._holder, int) and self._holder != _thread.get_ident()
        is_real = engine is None or is_hubs or is_for_real()
        if is_real or engine is None or engine.is_driving or not engine.is_hub():
            taken = self._real.acquire(True, timeout)
            if taken:
                self._holder = _thread.get_ident()
            return taken
        if timeout < 0 and engine.is_empty:
            raise deadlock_error(engine, self.describe())
        return self._wait(engine, None, timeout)

    def release(self) -> None:
        """Release it to the next waiter.

        Raises:
            RuntimeError: It is not held.
        """
        if not self._real.locked():
            raise RuntimeError("release unlocked lock")
        if (races := race_order()) is not None:
            if self._is_waiter:
                races.met(races.conditions)
            races.meet(self._order)
        task = running_task()
        if task is not None:
            self._num_calls = task.engine.num_thread_calls
        catch_up(task)  # The others see it at the time that this rank's clock shows.
        if task is None or not task.engine.sees_shared or self._is_waiter:
            self._hand_over()
            return
        # It is held for longer.
        limits.reach(
            task, LOCKS, id(self), self, act=Act.RELEASE, state=self._shown, given=self.made_as
        )
        self._hand_over()
        limits.reach(task, LOCKS)  # What the rank does next is late.

    def _hand_over(self) -> None:
        self._holder = None
        if self._waits:
            wait = self._waits.popleft()
            wait.finish(wait.engine)
        else:
            self._real.release()

    def __enter__(self) -> bool:
        """Take it."""
        return self.acquire()

    def __exit__(self, *raised: object) -> None:
        """Release it."""
        self.release()

    # What threading.Condition and forks ask of a lock.

    def _is_owned(self) -> bool:
        return self._real.locked()

    def _release_save(self) -> None:
        self.release()

    def _acquire_restore(self, _: object) -> None:
        self.acquire()

    def _at_fork_reinit(self) -> None:
        self._real = allocate_lock()
        self._waits.clear()
        self._holder = None


class LibraryLock(Lock):
    """A lock of a library, which knows nothing of simulated time: a free one is taken at once."""

    __slots__ = ()

    def _acquire(self, blocking: bool, timeout: float) -> bool:
        if self._real.acquire(False):
            task = running_task()
            self._holder = _thread.get_ident() if task is None else task
            return True
        task = running_task()
        if blocking and task is not None and task.engine.choices is not None:
            return self._wait(task.engine, task, timeout)  # Real ranks have one each: no choice.
        return super()._acquire(blocking, timeout)

    def release(self) -> None:
        """Release it without a wait for the releaser's clock."""
        if not self._real.locked():
            raise RuntimeError("release unlocked lock")
        self._hand_over()


class ReentrantLock:
    """Replacement of `_thread.RLock`: reentrant for one rank or one thread."""

    __slots__ = ("__weakref__", "_count", "_lock", "_owner")

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = Lock() if lock is None else lock
        self._owner: Task | int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, once more if it is one's own."""
        me = _me()
        if self._owner == me:
            self._count += 1
            return True
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._owner, self._count = me, 1
        return taken

    def release(self) -> None:
        """Release it once.

        Raises:
            RuntimeError: The caller does not hold it.
        """
        if self._owner != _me():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        """Take it."""
        return self.acquire()

    def __exit__(self, *raised: object) -> None:
        """Release it once."""
        self.release()

    def _is_owned(self) -> bool:
        return self._owner == _me()

    def _recursion_count(self) -> int:
        return self._count if self._owner == _me() else 0

    def _release_save(self) -> tuple[int, Task | int | None]:
        state = self._count, self._owner
        self._count, self._owner = 0, None
        self._lock.release()
        return state

    def _acquire_restore(self, state: tuple[int, Task | int | None]) -> None:
        self._lock.acquire()
        self._count, self._owner = state

    def _at_fork_reinit(self) -> None:
        self._lock = Lock()
        self._owner, self._count = None, 0


class PropertyLock:
    """Replacement of the lock of `cached_property` (until Python 3.11).

    Each rank has its own, as each process has: its objects are not another rank's, and what one
    computes may wait for the others.
    """

    __slots__ = ("__weakref__", "_outside")

    def __init__(self) -> None:
        self._outside = ReentrantLock(LibraryLock())

    def _own(self) -> ReentrantLock:
        program = rank_program()
        if program is None:
            return self._outside
        own: WeakKeyDictionary[PropertyLock, ReentrantLock]
        own = program.local.setdefault(_KEY, WeakKeyDictionary())
        if self not in own:
            own[self] = ReentrantLock(LibraryLock())
        return own[self]

    def __enter__(self) -> bool:
        """Take it."""
        return self._own().acquire()

    def __exit__(self, *raised: object) -> None:
        """Release it once."""
        self._own().release()


def _me() -> Task | int:
    task = running_task()
    return _thread.get_ident() if task is None else task


def _check_arguments(blocking: bool, timeout: float) -> None:
    if not blocking and timeout != -1:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if timeout < 0 and timeout != -1:
        raise ValueError("timeout value must be a non-negative number")


# ---- Locks that libraries made when they were imported, before any Context ----
# A rank on a thread that is switched out while it holds a native lock (`logging._lock`, one of
# an installed package, one that is an attribute of a class) would block every other rank that
# wants it, and with them the whole process. While a Context whose ranks are threads is entered
# such locks are replaced by ones that are engine waits when another task has them, and nothing
# otherwise: taking a free one never yields, takes no time, and is visible to no other task.
#
# Found are names of modules, attributes of their classes, the locks of `cached_property` (until
# Python 3.11) and those of the handlers of `logging`. Others stay native; see
# `engine.lockstep`.

# Their locks are held for moments, without a wait, also by threads without a rank.
_OWN_BUSINESS = ("_thread", "threading", "importlib", "_frozen_importlib", "simrank", "greenlet",
                 "builtins", "sys")  # fmt: skip
_put = Ledger(__name__)


def install() -> None:
    """Replace the locks that are found, unless that has been done since the last `restore`."""
    if _put.entries:
        return
    patches: dict[int, Any] = {}
    for owner, name in _places():
        original = _lock_at(owner, name)
        if original is None:
            continue
        if id(original) not in patches:
            is_of_property = isinstance(owner, functools.cached_property)
            made = PropertyLock() if is_of_property else of_library(original)
            patches[id(original)] = made
        made = patches[id(original)]
        if made is not None:
            with suppress(AttributeError, TypeError):
                _put.replace(owner, name, made, yields=True)


restore = _put.restore


def _lock_at(owner: object, name: str) -> Any:  # noqa: ANN401 - a lock, or None
    value = attributes_of(owner).get(name)
    return value if type(value) in BARE else None


def _places() -> Iterator[tuple[Any, str]]:
    """Yield where locks are: owner and name."""
    modules = sys.modules.copy()
    cached = _places_in.cached(modules)
    for name, module in modules.items():
        places = cached.get(name)
        if places is None:
            places = _places_in(module) if is_real(module, ModuleType) else []
        if places and name.partition(".")[0] not in _OWN_BUSINESS:
            yield from places
    logging: Any = sys.modules.get("logging")
    for reference in [] if logging is None else list(logging._handlerList):  # noqa: SLF001 - all that live
        handler = reference()
        if handler is not None:
            yield handler, "lock"


def _find(module: ModuleType) -> Iterator[tuple[Any, str]]:
    is_lock: Callable[[object], bool] = BARE.__contains__
    home = module_text(module, "__name__")
    for name, value in list(attributes_of(module).items()):
        if is_lock(type(value)):
            yield module, name
        elif is_real(value, type) and value.__module__ == home:
            for attribute, held in list(attributes_of(value).items()):
                if is_lock(type(held)):
                    yield value, attribute
                elif type(held) is functools.cached_property and hasattr(held, "lock"):
                    yield held, "lock"


_places_in: PerModule[list[tuple[Any, str]]] = PerModule(lambda module: list(_find(module)))
