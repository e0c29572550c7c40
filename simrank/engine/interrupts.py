"""Signals while a Context is entered: Ctrl-C, time limits of tests, the program's handlers.

Python runs a signal's handler between any two instructions of the main thread, and what it raises
surfaces there: half-way through a Context's exit, or in one rank of eight that all turn in place.
While a Context is entered the handlers of the program are wrapped. What they raise

- waits while simrank's own code runs, which is not to be left half-way: a loop of the engine looks
  at its next wakeup, and everything else is tried again a millisecond later;
- is raised by the engine's loop if a rank runs, so that it ends the ranks all at once;
- says where the ranks are, as a note.
"""

from __future__ import annotations

import _thread
import signal
import threading  # noqa: TID251 - asked which thread is the main one
import time
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import getcurrent

from simrank.engine.bare_greenlets import driving
from simrank.engine.callsite import is_library, is_simranks
from simrank.engine.collector import frame_of_thread
from simrank.engine.lockstep import raised_after_turn
from simrank.engine.report import states_at
from simrank.errors import RankAborted, states_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from simrank.engine.interface import EngineInterface
    from simrank.engine.task import Task

    Handler = Callable[[int, FrameType | None], Any]

F = TypeVar("F", bound="Callable[..., Any]")

_RETRY_S = 0.001
_MAX_TRIES = 500  # assumed: code of simrank that takes longer is left half-way after all
# Does nothing by itself: it gets a thread out of a native wait, so that it looks at what is due.
_NUDGE = getattr(signal, "SIGURG", None)

_main_thread = threading.main_thread  # Ranks on threads are shown their own.
_set, _get = signal.signal, signal.getsignal
start_thread = _thread.start_new_thread  # Contexts replace it in its module.
_pause_s = time.sleep  # noqa: TID251 - a thread of its own waits, not a rank
_wrapped: dict[int, Handler] = {}
_given_back: dict[int, Any] = {}  # What the program had set before a rank set something else.
_due: dict[int, int] = {}  # Signals that wait -> how often they were tried.
_transparent: set[CodeType] = set()


def may_be_left(function: F) -> F:
    """Mark a function of simrank that waits in real time: signals interrupt it."""
    _transparent.add(function.__code__)
    return function


# ---- installing ----


def install() -> None:
    """Wrap the handlers that the program has set; only the main thread may, and gets signals."""
    if not _is_main_thread():
        return
    _due.clear()
    for number in _numbers():
        handler = _get(number)
        if callable(handler) and handler is not _on_signal:
            _wrapped[number] = handler
            _set(number, _on_signal)
    if _NUDGE is not None and _get(_NUDGE) is signal.SIG_DFL:
        _wrapped[_NUDGE] = _do_nothing
        _set(_NUDGE, _on_signal)


def restore() -> None:
    """Give the program its handlers back; Ctrl-C last, which comes at any instruction."""
    while _given_back:
        set_handler(*_given_back.popitem())
    for number in sorted(_wrapped, key=lambda number: number == signal.SIGINT):
        if _get(number) is _on_signal:
            handler = _wrapped[number]
            _set(number, signal.SIG_DFL if handler is _do_nothing else handler)
    _wrapped.clear()


def set_handler(number: int, handler: Any, *, is_ranks: bool = False) -> Any:  # noqa: ANN401
    """Replace `signal.signal`: wrap the program's handler.

    Args:
        number: As there.
        handler: As there.
        is_ranks: Whether a rank sets it, whose handler ends with the run.
    """
    before = get_handler(number)
    if is_ranks:
        _given_back.setdefault(number, before)
    if not callable(handler):
        _set(number, handler)
        _wrapped.pop(number, None)
    else:
        if _is_main_thread():  # Else it raises what it raises.
            _wrapped[number] = handler
        _set(number, _on_signal)
    return before


def get_handler(number: int) -> Any:  # noqa: ANN401 - as signal.getsignal
    """Replace `signal.getsignal`: return the program's handler."""
    handler = _get(number)
    if handler is not _on_signal:
        return handler
    wrapped = _wrapped[number]
    return signal.SIG_DFL if wrapped is _do_nothing else wrapped


def nudge(thread_id: int) -> None:
    """Wake a thread from a native wait, so that it raises a pending exception."""
    if _NUDGE in _wrapped:
        signal.pthread_kill(thread_id, _NUDGE)


def _numbers() -> list[int]:
    names = ("SIGINT", "SIGALRM", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def _is_main_thread() -> bool:
    return _thread.get_ident() == _main_thread().ident


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing."""


# ---- a signal ----


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Call the program's handler now or later; an exception that it raises ends the run."""
    tries = _due.pop(number, 0)
    if number == _NUDGE:
        return
    engine = driving[-1] if driving else None
    if tries < _MAX_TRIES and not _has_thread_turn(engine) and _is_in_midst(frame):
        _due[number] = tries + 1
        if engine is not None:
            engine.look_soon()
        start_thread(_try_again, (number,))
        return
    _deliver(number, frame, engine)


def _is_in_midst(frame: FrameType | None) -> bool:
    """Return whether code of simrank runs, or code of the standard library on its behalf."""
    while frame is not None and is_library(frame.f_code.co_filename):
        if is_simranks(frame.f_code.co_filename) and frame.f_code not in _transparent:
            return True
        frame = frame.f_back
    return False


def _has_thread_turn(engine: EngineInterface | None) -> bool:
    """Return whether the hub only waits for a rank on a thread of its own."""
    task = None if engine is None else engine.running
    return task is not None and task.carrier.has_turn


def _try_again(number: int) -> None:
    _pause_s(_RETRY_S)
    if number in _due:
        _thread.interrupt_main(signal.Signals(number))


def _deliver(number: int, frame: FrameType | None, engine: EngineInterface | None) -> None:
    try:
        _wrapped[number](number, frame)
    except BaseException as error:
        if engine is None:
            raise
        _annotate(error, engine, frame)
        _raise(error, engine)


def _raise(error: BaseException, engine: EngineInterface) -> None:
    task = engine.running
    if task is None or (task.group is not None and task.group.aborting):
        raise error  # On the hub, or in a rank that will not end.
    if not _has_thread_turn(engine):
        _raise_on_hub(error, engine, task)
        return
    raised_after_turn.append(error)
    raise RankAborted(task.rank)


def _raise_on_hub(error: BaseException, engine: EngineInterface, task: Task) -> None:
    """Leave a rank where it is, for the hub; it goes on from there, or is ended there."""
    if task.greenlet is not getcurrent():  # A bare greenlet has no way back.
        raise error
    engine.wake([task])
    engine.hub.throw(error)
    if task.thrown is not None:
        engine.unqueue(task)
        task.raise_thrown()


def raise_due(engine: EngineInterface) -> None:
    """Raise a deferred exception on the hub, between two wakeups."""
    while _due:
        number, _ = _due.popitem()
        _deliver(number, None, engine)


def _annotate(error: BaseException, engine: EngineInterface, frame: FrameType | None) -> None:
    """Add the states of the ranks to an exception, if there are ranks."""
    task = engine.running
    if task is not None and task.carrier.thread_id is not None:
        frame = frame_of_thread(task.carrier.thread_id)
    states = states_at(engine, frame)
    if states:
        first = f"simrank: interrupted at t={engine.now_ps / 1e6:.3f} us"
        error.add_note("\n".join([first, *states_text(states)]))
