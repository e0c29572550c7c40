"""The clocks of the standard library as a rank sees them: simulated time (rule E7).

Every function here finds the running task. In a task it answers from the engine: reading a clock is
charged as a poll (E8), sleeping lets simulated time pass. Anywhere else it is the function it
stands for.
"""

from __future__ import annotations

import copyreg
import datetime as dt
import functools
import sys
import time
from typing import TYPE_CHECKING, Any

from simrank.engine import interrupts, limits
from simrank.isolation.diagnostics import LiveModule
from simrank.ranks.current import running_task
from simrank.units import PS_PER_NS, PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from simrank.engine import Task
    from simrank.isolation.ledger import Ledger

# assumed: `time.time()` of simulated time 0 is 2026-01-01 00:00 UTC, so that runs can be compared.
EPOCH_S = 1_767_225_600


def _read_ps(task: Task, name: str) -> int:
    if task.engine.choices is not None:
        return task.engine.choices.clock_ps(task)
    limits.poll(task.engine, name, reads_clock=True)
    delays = task.engine.delays
    return task.clock_ps if delays is None else task.clock_ps * delays.clock_scale


def quiet_monotonic() -> float:
    """Return `time.monotonic()` without a yield, for code that holds a lock: threading, queue."""
    task = running_task()
    return _monotonic() if task is None else task.clock_ps / PS_PER_S


_monotonic = time.monotonic
_sleep = time.sleep  # noqa: TID251 - for all callers except ranks


@interrupts.may_be_left
@functools.wraps(_sleep)
def sleep(seconds: float) -> None:
    """Advance simulated time in a task; sleep in real time elsewhere."""
    task = running_task()
    if task is None:
        _sleep(seconds)
        return
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    delay_ps = round(seconds * PS_PER_S)
    if (
        delay_ps < limits.POLL_PS and task.engine.choices is None
    ):  # Else a loop around it would stop time.
        limits.poll(task.engine, f"time.sleep({seconds:g})")
    else:
        limits.host_sleep(task.engine, task, delay_ps, f"time.sleep({seconds:g})")


def _clock(name: str, offset_s: int, *, is_ns: bool) -> Callable[[], float]:
    """Return the replacement of `time.<name>`, in seconds or whole nanoseconds."""
    original: Callable[[], float] = getattr(time, name)
    what = f"time.{name}()"

    @functools.wraps(original)
    def read() -> float:
        task = running_task()
        if task is None:
            return original()
        now_ps = _read_ps(task, what)
        value: float = (
            now_ps // PS_PER_NS + offset_s * 10**9 if is_ns else now_ps / PS_PER_S + offset_s
        )
        choices = task.engine.choices
        return value if choices is None else choices.clock(task, what, value)

    return read


def _calendar(name: str, position: int) -> Callable[..., Any]:
    """Return the replacement of a function of `time` whose default argument is the time.

    Args:
        name: Its name.
        position: Which argument is the time; without it a rank gets simulated UTC.
    """
    original: Callable[..., Any] = getattr(time, name)

    @functools.wraps(original)
    def convert(*args: object) -> Any:  # noqa: ANN401 - the original's
        task = running_task()
        given = args[position] if len(args) > position else None
        if task is None or given is not None:
            return original(*args)
        now_s = _read_ps(task, f"time.{name}()") / PS_PER_S + EPOCH_S
        broken_down = _gmtime(now_s)
        if name in ("gmtime", "localtime"):
            return broken_down
        text = _asctime(broken_down) if name == "ctime" else original(*args[:position], broken_down)
        if task.engine.choices is not None:
            task.engine.choices.note_text(text)
        return text

    return convert


_gmtime, _asctime = time.gmtime, time.asctime
_CLOCKS = ("perf_counter", "monotonic", "process_time", "thread_time")

TIME_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sleep": sleep,
    **{name: _calendar(name, 0) for name in ("localtime", "gmtime", "ctime")},
    "strftime": _calendar("strftime", 1),
    "time": _clock("time", EPOCH_S, is_ns=False),
    "time_ns": _clock("time_ns", EPOCH_S, is_ns=True),
    **{name: _clock(name, 0, is_ns=False) for name in _CLOCKS if hasattr(time, name)},
    **{
        f"{name}_ns": _clock(f"{name}_ns", 0, is_ns=True) for name in _CLOCKS if hasattr(time, name)
    },
}


def _clock_by_id(name: str) -> Callable[[int], float]:
    """Return the replacement of `time.clock_gettime` and its like."""
    original: Callable[[int], float] = getattr(time, name)
    unit = 10**9 if name.endswith("_ns") else 1

    @functools.wraps(original)
    def read(clock: int) -> float:
        task = running_task()
        if task is None:
            return original(clock)
        offset_s = EPOCH_S if clock in _REALTIME else 0
        now_ps = _read_ps(task, f"time.{name}()")
        if unit == 1:
            return now_ps / PS_PER_S + offset_s
        return now_ps // PS_PER_NS + offset_s * unit

    return read


_REALTIME = {getattr(time, name, None) for name in ("CLOCK_REALTIME", "CLOCK_TAI")}
for _name in ("clock_gettime", "clock_gettime_ns"):
    if hasattr(time, _name):
        TIME_FUNCTIONS[_name] = _clock_by_id(_name)

_Datetime = dt.datetime
_Date = dt.date


class _StandsFor(type):
    """Lets a patch make objects of the original, all of which are its instances.

    Classes derived from one are as others are.
    """

    original: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any value
        return type.__call__(cls.original if "original" in vars(cls) else cls, *args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        if "original" in vars(cls):
            return isinstance(instance, cls.original)
        return type.__instancecheck__(cls, instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        if "original" in vars(cls):
            return issubclass(subclass, cls.original)
        return type.__subclasscheck__(cls, subclass)


class Date(_Date, metaclass=_StandsFor):
    """Replaces `datetime.date`; its results are plain dates."""

    __slots__ = ()
    original = _Date

    @classmethod
    def today(cls) -> Any:  # noqa: ANN401, D102 - as the original
        return _Date.today() if running_task() is None else Datetime.now().date()


class Datetime(_Datetime, metaclass=_StandsFor):
    """Replaces `datetime.datetime`; its results are plain datetimes."""

    __slots__ = ()
    original = _Datetime

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:  # noqa: ANN401, D102 - as the original
        task = running_task()
        if task is None:
            return _Datetime.now(tz)
        now_s = _read_ps(task, "datetime.now()") / PS_PER_S + EPOCH_S
        # Local time of a simulated cluster is UTC, wherever the simulation runs.
        utc = _Datetime.fromtimestamp(now_s, dt.UTC)
        return utc.replace(tzinfo=None) if tz is None else utc.astimezone(tz)

    @classmethod
    def utcnow(cls) -> Any:  # noqa: ANN401, D102 - as the original
        return cls.now(dt.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:  # noqa: ANN401, D102 - as the original
        return cls.now()


Datetime.__name__ = Datetime.__qualname__ = "datetime"
Date.__name__ = Date.__qualname__ = "date"
Datetime.__module__ = Date.__module__ = "datetime"


# Where the innermost Python frame is while a module in C is being imported.
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


def _asked(name: str) -> Any:  # noqa: ANN401 - a property
    """Return the replacement of a class, or the original for a caller in C.

    Such a module (pandas' of timestamps) derives classes in C from it, which the interpreter cannot
    do from a class in Python.
    """

    def get(module: ModuleType) -> type:
        found: type = vars(module)[name]
        asking = sys._getframe(1).f_code.co_filename  # noqa: SLF001 - the documented way to a caller
        return getattr(found, "original", found) if asking == _IMPORT_SYSTEM else found

    return property(get, lambda module, value: vars(module).__setitem__(name, value))


class _Dates(LiveModule):
    """The module `datetime` while a Context is entered."""

    date, datetime = _asked("date"), _asked("datetime")


def install(ledger: Ledger) -> None:
    """Keep the original classes of `datetime` for modules in C."""
    ledger.replace(dt, "__class__", _Dates, home=__name__)


def _reduced(value: dt.date) -> tuple[Any, ...]:
    """Pickle a date by the name that its class has now: that of the patch, within a Context."""
    return getattr(dt, type(value).__name__), value.__reduce_ex__(2)[1]


for _original in (_Date, _Datetime):  # Outside of Contexts that is what they do anyway.
    copyreg.pickle(_original, _reduced)
