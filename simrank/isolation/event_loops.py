"""asyncio in ranks: own loops per rank, whose waits are waits of the engine (rule E7).

A thread has one running loop and one pair of hooks for asynchronous generators; ranks that
share the thread exchange these at every switch while one of them runs a loop.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.engine import NamedWait, limits
from simrank.engine.task import SwitchObserver
from simrank.errors import UnsupportedError
from simrank.ranks.current import current_program, running_task
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from simrank.engine import EngineInterface, Task


_MAX_TURNS = 1000  # assumed: so many turns without a wait are a program that polls (E8)
_KEY = "asyncio loop"


def _unsupported_files() -> UnsupportedError:
    """Return the error that refuses what a loop would wait for outside of simulated time."""
    return UnsupportedError(
        "asyncio with sockets, pipes or subprocesses inside a simulated rank is not supported: "
        "it would wait for real ones"
    )


class _Selector(selectors.BaseSelector):
    """Waits in simulated time; there are no files or sockets to wait for."""

    def __init__(self, engine: EngineInterface) -> None:
        self._engine = engine
        self._num_turns = 0
        self.idle: NamedWait | None = None

    def select(self, timeout: float | None = None) -> list[Any]:
        """Wait until something is called from outside, or for `timeout` simulated seconds."""
        if timeout is not None and timeout <= 0:
            self._num_turns += 1
            if self._num_turns > _MAX_TURNS:
                limits.poll(self._engine, "an asyncio event loop that never waits")
            return []
        self._num_turns = 0
        self.idle = NamedWait("an asyncio event loop that has nothing to run")
        try:
            if timeout is None:
                self._engine.wait(self.idle)
            else:
                self._engine.wait_at_most(self.idle, math.ceil(timeout * PS_PER_S))
        finally:
            self.idle = None
        return []

    def register(self, fileobj: object, events: int, data: object = None) -> selectors.SelectorKey:
        """Refuse by name.

        Raises:
            UnsupportedError: Always.
        """
        del fileobj, events, data
        raise _unsupported_files()

    def unregister(self, fileobj: object) -> selectors.SelectorKey:
        """Know no file."""
        raise KeyError(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return no files."""
        return {}


class RankLoop(asyncio.SelectorEventLoop):
    """An event loop of a rank: timers run in simulated time."""

    run_in_executor: Any  # Set below: typeshed's signature cannot be written in Python 3.11.

    def __init__(self) -> None:
        task = running_task()
        assert task is not None, "made for ranks alone"
        self._task = task
        self._rank_selector = _Selector(task.engine)
        super().__init__(self._rank_selector)

    def time(self) -> float:
        """Return the rank's host clock in seconds; reading it costs nothing."""
        return self._task.clock_ps / PS_PER_S

    def run_forever(self) -> None:
        """Run until `stop()`; other ranks run while this one waits."""
        if self._task.carrier.thread_id is not None:  # No other loop runs on its thread.
            super().run_forever()
            return
        running = _running(self._task.engine)
        running.enter(self._task, self)
        try:
            super().run_forever()
        finally:
            running.exit(self._task)

    async def _make_subprocess_transport(self, *_args: Any, **_options: Any) -> Any:  # noqa: ANN401
        """Refuse before a child process is started: Python 3.12 watches it only afterwards.

        Raises:
            UnsupportedError: Always.
        """
        raise _unsupported_files()

    def _make_self_pipe(self) -> None:
        """Need no pipe: what calls from outside completes a handle."""

    def _close_self_pipe(self) -> None:
        """Do nothing: there is no pipe."""

    def _write_to_self(self) -> None:
        idle = self._rank_selector.idle
        if idle is not None and not idle.complete:
            idle.finish(self._task.engine)


def _run_in_executor(self: RankLoop, executor: Any, func: Any, *args: Any) -> Any:  # noqa: ANN401
    """Use threads of the rank, where it may have some; `asyncio.to_thread` comes here too.

    Raises:
        UnsupportedError: The rank is a greenlet.
    """
    if self._task.carrier.thread_id is not None:
        return asyncio.SelectorEventLoop.run_in_executor(self, executor, func, *args)
    raise UnsupportedError(
        f"asyncio's run_in_executor and to_thread ({getattr(func, '__name__', func)}) inside a "
        "simulated rank are not supported: it would wait for real threads\n"
        '  to fix: call the function itself, or let the ranks be threads: Context(carrier="thread")'
        " or simrank run --carrier thread"
    )


RankLoop.run_in_executor = _run_in_executor


class _Running(SwitchObserver):
    """Loops by task: an observer that swaps them at every switch."""

    def __init__(self) -> None:
        self._loops: dict[Task, RankLoop] = {}

    def enter(self, task: Task, loop: RankLoop) -> None:
        """Note that a task runs a loop from now on."""
        if not self._loops:
            task.engine.observers.append(self)
        self._loops[task] = loop

    def exit(self, task: Task) -> None:
        """Note that it has stopped."""
        del self._loops[task]
        if not self._loops:
            task.engine.observers.remove(self)

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Give the thread the loop of the task that is about to run."""
        del time_ps
        loop = self._loops.get(task)
        asyncio.events._set_running_loop(loop)  # noqa: SLF001 - as loops themselves do
        if loop is None:
            sys.set_asyncgen_hooks(None, None)
        else:
            first, last = loop._asyncgen_firstiter_hook, loop._asyncgen_finalizer_hook  # type: ignore[attr-defined]  # noqa: SLF001
            sys.set_asyncgen_hooks(first, last)


_by_engine: WeakKeyDictionary[EngineInterface, _Running] = WeakKeyDictionary()


def _running(engine: EngineInterface) -> _Running:
    running = _by_engine.get(engine)
    if running is None:
        running = _by_engine[engine] = _Running()
    return running


def patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of asyncio's policy: owner, name and replacement."""
    events: Any = asyncio.events
    name = "BaseDefaultEventLoopPolicy"
    policy = getattr(events, name, None) or getattr(events, f"_{name}")
    return [
        (policy, "new_event_loop", _new(policy.new_event_loop)),
        (policy, "get_event_loop", _get(policy.get_event_loop)),
        (policy, "set_event_loop", _set(policy.set_event_loop)),
    ]


def _new(original: Callable[..., Any]) -> Callable[..., Any]:
    def new_event_loop(self: object) -> Any:  # noqa: ANN401 - a policy
        return original(self) if running_task() is None else RankLoop()

    return new_event_loop


def _get(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_event_loop(self: object) -> Any:  # noqa: ANN401 - a policy
        program = current_program()
        if running_task() is None or program is None:
            return original(self)
        # As in the main thread of a process: the first to ask makes one, until one was set.
        if _KEY not in program.local:
            program.local[_KEY] = RankLoop()
        if program.local[_KEY] is None:
            raise RuntimeError("There is no current event loop in this rank")
        return program.local[_KEY]

    return get_event_loop


def _set(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_event_loop(self: object, loop: object) -> None:
        program = current_program()
        if running_task() is None or program is None:
            original(self, loop)
        else:
            program.local[_KEY] = loop

    return set_event_loop
