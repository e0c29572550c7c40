"""The wall-clock watchdog: reports ranks that compute for long, and enforces limits (E8).

A thread looks now and then at what the thread does that has its turn; runs without one pay nothing.
It ends a run only if the user set a limit, and counts no time that is spent in a debugger.
"""

from __future__ import annotations

import _thread
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any

from simrank.engine import interrupts
from simrank.engine.callsite import in_debugger, site_of_frame
from simrank.engine.collector import frame_of_thread
from simrank.engine.lockstep import raise_in
from simrank.engine.report import states_at
from simrank.engine.task import SwitchObserver
from simrank.errors import RankAborted, RankState, SimulationError, states_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from simrank.engine.loop import Engine
    from simrank.engine.task import Task

_LOOKS = 4  # Assumed: so many within the shorter limit are exact enough.
_MAX_INTERVAL_S = 1.0
_PATIENCE_S = 0.5  # Assumed: a rank that has not come back to the hub by then has to be stopped.


class TimeLimitError(SimulationError):
    """The simulation took more wall-clock time than its user allows.

    Attributes:
        time_ps: Simulated time that it had reached, in picoseconds.
        limit_s: The limit, in wall-clock seconds.
        waits: Sets of ranks in the same state, with source lines.
        seed: The seed that replays it.
    """

    def __init__(
        self, time_ps: int, limit_s: float, waits: Sequence[RankState], *, seed: int = 0
    ) -> None:
        self.time_ps = time_ps
        self.limit_s = limit_s
        self.waits = tuple(waits)
        self.seed = seed
        first = f"the limit of {limit_s:g} s of wall-clock time passed at t={time_ps / 1e6:.3f} us"
        super().__init__("\n".join([first, *states_text(self.waits)]))

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        waits = [asdict(state) for state in self.waits]
        return {**super().to_json(), "limit_s": self.limit_s, "seed": self.seed, "waits": waits}


class StoppedByWatchdog(RankAborted):
    """Raised in a rank that computes when the limit has passed.

    Attributes:
        limit: What the run raises.
    """

    limit: TimeLimitError

    def __init__(self) -> None:  # The interpreter makes it, from the class alone.
        super().__init__(None)


class Watchdog(SwitchObserver):
    """Watchdog of one engine; as an observer it sees whether the hub still gets its turn.

    Args:
        engine: What it watches, from the thread that runs it.
        watchdog_s: Wall-clock seconds after which a rank that did not come back to the engine is
            told of, in the log `simrank`; again after twice that, and so on. None: never.
        limit_s: Wall-clock seconds that the engine may run in all. None: without limit.
    """

    def __init__(self, engine: Engine, watchdog_s: float | None, limit_s: float | None) -> None:
        import logging  # noqa: PLC0415 - needed with a watchdog only

        for name, value in (("watchdog_s", watchdog_s), ("time_limit_s", limit_s)):
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value}: expected seconds above 0, or None")
        self._engine = engine
        self._watchdog_s, self._limit_s = watchdog_s, limit_s
        self._log = logging.getLogger("simrank")
        self._hub_id = _thread.get_ident()
        self._guard, self._stop = _thread.allocate_lock(), _thread.allocate_lock()
        self._num_switches = 0
        self._seen: tuple[int, int, int] | None = None
        self._last_s = self._spent_s = self._stuck_s = 0.0
        self._unsure_s = 0.0  # Of what is spent: perhaps in a debugger, if the next look sees one.
        self._tell_at_s = self._interrupt_at_s = 0.0
        self._is_due = False
        self._error: TimeLimitError | None = None

    # ---- what the engine shows ----

    def on_task_switch(self, task: Task, time_ps: int) -> None:  # noqa: ARG002 - as the protocol
        """Note that the hub has its turn; there the limit is raised."""
        self._num_switches += 1
        if self._is_due and task.thrown is None:  # Not while others are being ended.
            error, self._error, self._is_due = self._error, None, False
            self._engine.turns.sleepers.overdue = None
            raise error or self._limit_error(None)

    # ---- the thread ----

    def start(self) -> None:
        """Start to watch."""
        limits = [limit for limit in (self._watchdog_s, self._limit_s) if limit is not None]
        interval_s = min(min(limits) / _LOOKS, _MAX_INTERVAL_S)
        self._hub_id = _thread.get_ident()
        self._last_s = perf_counter()
        self._stop = _thread.allocate_lock()
        self._stop.acquire()
        self._engine.observers.append(self)
        _thread.start_new_thread(self._watch, (self._stop, interval_s))

    def stop(self) -> None:
        """Stop to watch; nothing is raised or told afterwards."""
        with self._guard:
            if self._stop.locked():
                self._stop.release()
        self._engine.turns.sleepers.overdue = None
        if self in self._engine.observers:
            self._engine.observers.remove(self)

    def _watch(self, stop: _thread.LockType, interval_s: float) -> None:
        while not stop.acquire(timeout=interval_s):
            with self._guard:
                if stop.locked():
                    self.look(perf_counter())

    def look(self, now_s: float) -> None:
        """Inspect the thread that has the turn.

        Args:
            now_s: Wall-clock seconds since any fixed moment.
        """
        elapsed_s, self._last_s = now_s - self._last_s, now_s
        engine = self._engine
        if not engine.is_driving:
            self._seen = None
            return
        seen = (self._num_switches, engine.now_ps, engine.progress)
        frame = None
        if seen != self._seen:
            # No frame: what it holds would live for longer than in another run.
            self._seen, self._stuck_s, self._unsure_s = seen, 0.0, elapsed_s
            self._tell_at_s, self._interrupt_at_s = self._watchdog_s or 0.0, _PATIENCE_S
        else:
            frame = frame_of_thread(self._thread_id())
            unsure_s, self._unsure_s = self._unsure_s, 0.0
            if frame is None or in_debugger(frame):
                self._seen = None
                self._spent_s -= unsure_s
                return
            self._stuck_s += elapsed_s
        self._spent_s += elapsed_s
        if frame is not None and self._watchdog_s is not None and self._stuck_s >= self._tell_at_s:
            self._tell_at_s *= 2
            self._tell(frame)
        if self._limit_s is not None and self._spent_s >= self._limit_s:
            self._is_due = True
            # Again and again if the rank swallows it.
            if frame is not None and self._stuck_s >= self._interrupt_at_s:
                self._interrupt_at_s = self._stuck_s + _PATIENCE_S
                self._interrupt(frame)

    def _thread_id(self) -> int:
        task = self._engine.running
        return (None if task is None else task.carrier.thread_id) or self._hub_id

    def _tell(self, frame: FrameType) -> None:
        task = self._engine.running
        site = site_of_frame(frame)
        site_text = "" if site is None else "{}:{}".format(*site.line())
        self._log.warning(
            "%s has computed for %.1f s without a wait, at t=%.3f us%s",
            "the main program" if task is None else task.name,
            self._stuck_s,
            self._engine.now_ps / 1e6,
            site_text and f", at {site_text}",
        )

    def _interrupt(self, frame: FrameType) -> None:
        """Raise in the thread that computes and does not come back to the hub."""
        task = self._engine.running
        if self._error is None:
            self._error = self._limit_error(frame)
        kind: type[BaseException]
        if task is not None and task.group is not None:
            kind = type("RankAborted", (StoppedByWatchdog,), {"limit": self._error})
        else:
            facts = (self._error.time_ps, self._error.limit_s, self._error.waits)
            start = {"__init__": lambda error: TimeLimitError.__init__(error, *facts)}
            kind = type("TimeLimitError", (TimeLimitError,), start)
        if task is not None and task.carrier.thread_id is not None:
            self._engine.turns.sleepers.overdue = self._error  # If it sleeps, nothing reaches it.
        raise_in(self._thread_id(), kind)
        interrupts.nudge(self._thread_id())  # Out of a lock, a pipe or a file that it waits for.

    def _limit_error(self, frame: FrameType | None) -> TimeLimitError:
        """Build the error; `frame` is where a rank computes, if one does."""
        engine, limit_s = self._engine, self._limit_s
        assert limit_s is not None, "without a limit nothing is ended"
        states = states_at(engine, frame)
        return TimeLimitError(engine.now_ps, limit_s, states, seed=engine.seed)
