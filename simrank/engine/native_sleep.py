"""Threads that have the turn and sleep where the engine cannot see it: in a native call.

A rank on a thread that waits for a native lock, whose holder waits for its turn, would stop the
process in silence. The hub, which sleeps meanwhile, wakes now and then and looks: if the thread
sleeps in a lock, the whole process has used no processor for a while, and no debugger is there,
the rank is given up and the run ends with a report. So does a run whose rank has not been awake
for a minute in another call of the system, such as the poll of a C library: other ranks cannot
answer it. Waits for child processes and for a terminal may take longer. A run that was
interrupted, or whose time limit has passed, ends while a rank sleeps in anything native.

This is the wall clock, which simulated code never reads; what it ends could not go on.
"""

from __future__ import annotations

import os
import platform
from _thread import LockType, RLock
from dataclasses import asdict, replace
from pathlib import Path
from time import process_time
from types import ModuleType
from typing import TYPE_CHECKING, Any

from simrank.engine.callsite import attributes_of, in_debugger, is_real
from simrank.engine.collector import frame_of_thread
from simrank.engine.report import states_at
from simrank.errors import RankState, SimulationError, states_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from simrank.engine.interface import EngineInterface
    from simrank.engine.task import Task

_PATIENCE = 20  # Assumed: so many looks, 0.1 s apart, show a process that does nothing at all.
_PATIENCE_WHEN_ENDING = 5
_BUSY_S = 0.01  # Assumed: what the looks themselves, and idle threads, use of a processor per look.
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())  # Linux's system call of locks.
_BARE = (LockType, type(RLock()))
# Assumed: so many looks, as many as a socket may wait for; a server elsewhere has answered by then.
_PATIENCE_OF_CALLS = 600
_WAITS_FOR_CHILD = {"x86_64": ("61", "247"), "aarch64": ("260", "95")}.get(platform.machine(), ())
_READ = {"x86_64": "0", "aarch64": "63"}.get(platform.machine())
_REAL = "simrank.isolation.blocking_calls"  # Its waits last as long as the program says.
_LOCKSTEP = "simrank.engine.lockstep"
_MAX_FRAMES, _MAX_PARTS = 50, 16
_TO_FIX = {
    "lock": "make the lock while a Context is entered, or give it back before waiting for other "
    "ranks",
    "call": "talk to other ranks with torch.distributed, multiprocessing or zmq, or give the call "
    "a time limit of less than a minute",
}


class NativeWaitError(SimulationError):
    """A rank sleeps in a native lock or call, and with it the whole simulation.

    Args:
        kind: "lock", or "call": another call of the system.

    Attributes:
        time_ps: Simulated time in picoseconds.
        rank: Whose thread sleeps.
        waits: Sets of ranks in the same state.
        seed: The seed that replays it.
    """

    def __init__(
        self,
        time_ps: int,
        rank: int | None,
        waits: Sequence[RankState],
        *,
        seed: int = 0,
        kind: str = "lock",
    ) -> None:
        self.time_ps = time_ps
        self.rank = rank
        self.waits = tuple(waits)
        self.seed = seed
        first = f"hang (suspected) at t={time_ps / 1e6:.3f} us: a rank sleeps in a native {kind}"
        super().__init__("\n".join([first, *states_text(self.waits), f"  to fix: {_TO_FIX[kind]}"]))

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        waits = [asdict(state) for state in self.waits]
        return {**super().to_json(), "rank": self.rank, "seed": self.seed, "waits": waits}


class Sleepers:
    """Looks whether the thread that has the turn sleeps natively.

    Attributes:
        overdue: What ends the run if the thread sleeps in anything; None: only a lock ends it.
    """

    def __init__(self) -> None:
        self.overdue: BaseException | None = None
        self._place: tuple[Task, object, int] | None = None
        self._last_s = 0.0
        self._num_looks = 0
        self._asleep: tuple[object, ...] | None = None  # Where, and how often it has been awake.
        self._num_asleep = 0
        self._sleeps_in_call = False

    def look(self, task: Task) -> bool:
        """Look at the thread of a task; return whether it has slept for so long as to be given up.

        Called again and again while it has the turn, at equal distances of wall-clock time.
        """
        now_s, before_s = process_time(), self._last_s
        self._last_s = now_s
        call = _call_of(task)
        if self._never_returns(task, call):
            return True
        is_idle = now_s - before_s <= _BUSY_S and (call is not None or self.overdue is not None)
        place = _place_of(task) if is_idle else None
        if place is None or place != self._place:
            self._place, self._num_looks = place, 0
            return False
        self._num_looks += 1
        if self.overdue is not None:
            return self._num_looks >= _PATIENCE_WHEN_ENDING
        return (
            self._num_looks >= _PATIENCE
            and _is_in_lock(call)
            and not in_debugger(frame_of_thread(task.carrier.thread_id))
        )

    def _never_returns(self, task: Task, call: str | None) -> bool:
        """Return whether a thread has slept in one call of the system for a minute."""
        asleep = None if call is None else (task, call, _num_awake(task))
        if call is None or asleep != self._asleep:
            self._asleep, self._num_asleep = asleep, 0
            return False
        self._num_asleep += 1
        self._sleeps_in_call = False
        if self._num_asleep >= _PATIENCE_OF_CALLS and not _may_take_long(call):
            frame = frame_of_thread(task.carrier.thread_id)
            self._sleeps_in_call = (
                frame is not None
                and not _is_of_hub(frame)
                and not _waits_for_real(frame)
                and not in_debugger(frame)
            )
        return self._sleeps_in_call

    def error(self, engine: EngineInterface, task: Task) -> BaseException:
        """Return the error that ends the run, with the likely holders of a lock."""
        if self.overdue is not None:
            error, self.overdue = self.overdue, None
            return error
        frame = frame_of_thread(task.carrier.thread_id)
        kind = "call" if self._sleeps_in_call else "lock"
        if self._sleeps_in_call:
            text = f"has slept in a call of a C library for {_PATIENCE_OF_CALLS / 10:g} s"
        else:
            text = f"sleeps in a native lock{_holder_text(engine, task, frame)}"
        states = [
            replace(state, state=text) if state.state.endswith("running") else state
            for state in states_at(engine, frame)
        ]
        return NativeWaitError(engine.now_ps, task.rank, states, seed=engine.seed, kind=kind)


def _place_of(task: Task) -> tuple[Task, object, int] | None:
    """Return a thread's code and instruction; None: it runs no Python, or the hub of a Context.

    No frame leaves: what a frame holds lives as long as the frame itself, and this is the wall
    clock. A thread that went on meanwhile would free its tensors later than in another run.
    """
    frame = frame_of_thread(task.carrier.thread_id)
    if frame is None or _is_of_hub(frame):
        return None
    return task, frame.f_code, frame.f_lasti


def _is_of_hub(frame: FrameType) -> bool:
    """Return whether a frame is of the hub of a Context, which looks itself."""
    return frame.f_globals.get("__name__") == _LOCKSTEP


def _is_in_lock(call: str | None) -> bool:
    """Return whether a call of the system is that of locks (on Linux only)."""
    return call is not None and call.partition(" ")[0] == _FUTEX


def _call_of(task: Task) -> str | None:
    """Return the system call that a thread sleeps in, with its arguments; None: it runs."""
    call = _read_proc(task, "syscall")
    return None if call is None or call.startswith("running") else call


def _num_awake(task: Task) -> str:
    """Return a thread's counts of switches: how often it has been awake."""
    lines = (_read_proc(task, "status") or "").splitlines()
    return "".join(line for line in lines if "ctxt_switches" in line)


def _read_proc(task: Task, file: str) -> str | None:
    carrier: Any = task.carrier
    try:
        return Path(f"/proc/self/task/{carrier.thread.native_id}/{file}").read_text("ascii")
    except (OSError, AttributeError):
        return None


def _may_take_long(call: str) -> bool:
    """Return whether a call waits for a child process, or for a person at a terminal."""
    number, *words = call.split()
    if number == _READ:
        return os.isatty(int(words[0], 16))
    return number in _WAITS_FOR_CHILD


def _waits_for_real(frame: FrameType | None) -> bool:
    """Return whether a wait is one that simrank knows to be real."""
    while frame is not None and frame.f_globals.get("__name__") != _REAL:
        frame = frame.f_back
    return frame is not None


def _holder_text(engine: EngineInterface, task: Task, frame: FrameType | None) -> str:
    """Return `, which rank 0 seems to hold`, or nothing: native locks do not know their holders."""
    wanted = {id(lock) for lock in ([] if frame is None else _locks_near(frame))}
    for other in engine.tasks:
        held = other.carrier.frame
        for _ in range(_MAX_FRAMES):
            if other is task or held is None:
                break
            if not wanted.isdisjoint(id(lock) for lock in _locks_near(held)):
                return f", which {other.name} seems to hold"
            held = held.f_back
    return ""


def _locks_near(frame: FrameType) -> Iterator[object]:
    """Yield the locks among a frame's local names and their attributes."""
    names = frame.f_globals
    for value in [*frame.f_locals.values(), *(names.get(name) for name in frame.f_code.co_names)]:
        yield from _locks_in(value, 2)


def _locks_in(value: object, depth: int) -> Iterator[object]:
    if is_real(value, _BARE):
        yield value
    elif depth:
        parts: list[object] = []
        if type(value) is list or type(value) is tuple:
            parts = [*value[:_MAX_PARTS]]
        elif type(value) is dict:
            parts = [*value.values()][:_MAX_PARTS]
        elif not is_real(value, ModuleType):
            parts = [*attributes_of(value).values()]
            parts += attributes_of(type(value)).values()
        for part in parts:
            yield from _locks_in(part, depth - 1)
