"""The roots of the tree of errors, and how reports show ranks, lines and times.

An exception that pickles but does not unpickle makes `multiprocessing.Pool` wait forever, so an
error is rebuilt from its text and attributes, not by calling its constructor, and what a
program's own exceptions cannot do is replaced by what can be told of them.
"""

from __future__ import annotations

import pickle
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


# ---- lines of programs as reports show them: `train.py:41`, or `In [3], line 4` in a notebook ----

_CELL_OF_IPYTHON = re.compile(r"<ipython-input-(\d+)-")
_CELL_OF_KERNEL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$")


def place_text(file: str, line: int) -> str:
    """Return `train.py:41`; `In [3], line 4` where the file is a cell of a notebook."""
    cell = cell_text(file)
    return f"{file.rpartition('/')[2]}:{line}" if cell is None else f"{cell}, line {line}"


def cell_text(file: str) -> str | None:
    """Return `In [3]` for the file of a notebook's cell; None for any other file.

    Source: `IPython.core.compilerop.CachingCompiler`, IPython 7.21 to 9: it numbers cells by file.
    """
    in_terminal = _CELL_OF_IPYTHON.match(file)
    if in_terminal is None and _CELL_OF_KERNEL.search(file) is None:
        return None
    in_name = "?" if in_terminal is None else in_terminal[1]
    return f"In [{_numbers_of_cells().get(file, in_name)}]"


def _numbers_of_cells() -> dict[str, int]:
    """Return IPython's number of each file of a cell; empty outside of IPython."""
    running: Any = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if running is None else running()
    found: dict[str, int] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return found


# ---- pickling of errors for other processes, with all their attributes ----

_Error = TypeVar("_Error", bound=BaseException)


class Travels(BaseException):
    """An exception that can be pickled and copied, with its attributes and notes."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text and what of the attributes can be pickled; the rest as its text."""
        attributes = {name: _travelling(value) for name, value in vars(self).items()}
        return _remade, (type(self), self.args, attributes)

    def __copy__(self) -> Self:
        """Return an equal error that shares the attributes."""
        return _remade(type(self), self.args, vars(self))


def _remade(kind: type[_Error], args: tuple[object, ...], held: dict[str, Any]) -> _Error:
    error = kind.__new__(kind, *args)
    error.args = args
    if isinstance(error, SystemExit):  # Which only its constructor takes from the arguments.
        SystemExit.__init__(error, *args)
    vars(error).update(held)
    return error


def remade(error: BaseException) -> bytes | None:
    """Return an exception pickled so that its constructor is not called; None if that fails too."""
    attributes = {name: _travelling(value) for name, value in vars(error).items()}
    try:
        data = pickle.dumps((type(error), tuple(map(_travelling, error.args)), attributes))
        made_again(data)
    except Exception:  # noqa: BLE001 - a program's own classes may raise anything
        return None
    return data


def made_again(data: bytes) -> BaseException:
    """Return the exception that `remade` has pickled."""
    kind, args, attributes = pickle.loads(data)
    error: BaseException = _remade(kind, args, attributes)
    return error


def _travelling(value: object) -> object:
    """Return the value, or what stands for it in another process."""
    if isinstance(value, dict):
        return {key: _travelling(held) for key, held in value.items()}
    if isinstance(value, list | tuple) and any(isinstance(held, BaseException) for held in value):
        return type(value)(_travelling(held) for held in value)
    if isinstance(value, Travels) or _survives(value):
        return value
    if isinstance(value, BaseException):
        return RuntimeError(f"{type(value).__name__}: {text_of(value)}")
    return text_of(value)


def _survives(value: object) -> bool:
    try:
        return type(pickle.loads(pickle.dumps(value))) is type(value)
    except Exception:  # noqa: BLE001 - a program's own classes may raise anything
        return False


def add_note(error: BaseException, note: str) -> None:
    """Add a note once, where the error takes one: a program's own class may refuse."""
    with suppress(Exception):  # Reports name rank and time all the same.
        if note not in getattr(error, "__notes__", ()):
            BaseException.add_note(error, note)


def text_of(value: object) -> str:
    """Return the text of a program's object, whose `__str__` may raise."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a program's own `__str__`
        return f"<its text failed with {type(error).__name__}>"


# ---- the roots of the tree of errors, and how reports show ranks, lines and times ----

MAX_REPORT_LINES = 16


def us_text(time_ps: int) -> str:
    """Return a time as reports show it; `units` is on this floor and may not be imported."""
    return f"{time_ps / 1_000_000:.3f} us"


class SimrankError(Travels, Exception):
    """Base of every error that simrank raises."""


_MAX_PROBLEMS = 50  # Assumed: of a text; the first ones are fixed before more are read.
_MAX_SHOWN = 500  # Assumed: no text of which one wants to see more is longer.


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong in a configuration.

    Attributes:
        file: The file as the user named it, or "command line".
        line: 1-based line, or None where there is no line.
        key_path: The key as the user would write it, for example `links[0].bandwidth`.
        expected: What would have been accepted.
        got: What was found.
        to_fix: A sentence that says what to write, or None where that is not certain.
    """

    file: str
    line: int | None
    key_path: str
    expected: str
    got: str
    to_fix: str | None = None

    def __str__(self) -> str:
        """Return `file:line: key.path: expected X, got Y`."""
        file = _shown(self.file)
        where = file if self.line is None else f"{file}:{self.line}"
        key = f" {_shown(self.key_path)}:" if self.key_path else ""
        text = f"{where}:{key} expected {self.expected}, got {_shown(self.got)}"
        return text if self.to_fix is None else f"{text}\n  to fix: {self.to_fix}"


def _shown(text: str) -> str:
    """Return a user's text on one line of limited length."""
    if len(text) > _MAX_SHOWN:
        text = f"{text[: _MAX_SHOWN // 2]} ... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class ConfigError(SimrankError):
    """A configuration is wrong; the command line exits with status 2.

    Attributes:
        problems: Every problem that was found, in file order.
    """

    def __init__(self, *problems: ConfigProblem) -> None:
        self.problems = problems
        lines = [str(problem) for problem in problems[:_MAX_PROBLEMS]]
        if len(problems) > _MAX_PROBLEMS:
            lines.append(f"and {len(problems) - _MAX_PROBLEMS} more problems")
        super().__init__("\n".join(lines))


class ScheduleError(ConfigError):
    """An algorithm would wait forever, or does not compute its collective.

    Attributes:
        places: Where its parts stand, one line of text for each.
    """

    def __init__(self, what: str, *places: str) -> None:
        super().__init__()
        self.places = places
        self.args = ("\n".join([what, *(f"  {place}" for place in _few(places))]),)


def _few(places: tuple[str, ...]) -> tuple[str, ...]:
    """Return as many lines as a report may have."""
    room = MAX_REPORT_LINES - 1
    if len(places) <= room:
        return places
    return (*places[: room - 1], f"and {len(places) - room + 1} more")


class UnsupportedError(SimrankError):
    """A feature that simrank refuses rather than getting it quietly wrong."""


class FlightRecordError(SimrankError, ValueError):
    """Files are no flight records, or ask for more than plain data."""


class FoldingError(UnsupportedError):
    """Ranks are folded that do not do the same, or do something that replicas cannot."""


class HubError(SimrankError):
    """A task tried to drive the engine; only the hub, the main greenlet, may."""

    def __init__(self) -> None:
        super().__init__(
            "only the hub (the main greenlet) may drive the engine; this was called from a task\n"
            "  to fix: inside a rank call ctx.wait(handle), which goes back to the hub"
        )


class NoRankError(SimrankError):
    """A call that belongs to a rank was made outside one, or outside a Context."""


class UninitializedValueError(SimrankError):
    """A value was read that the run does not have.

    Attributes:
        created_at: `file.py:line` where the tensor was made, or None.
        lost: Whether it had values once, and what it was computed from has none.
    """

    def __init__(self, what: str, created_at: str | None, *, lost: bool = False) -> None:
        self.created_at = created_at
        self.lost = lost
        made = "" if created_at is None else f" (made at {created_at})"
        reason = (
            "it depends on what has no values in a shape-only run, or on a call that failed"
            if lost
            else "the Context is shape-only (data=False)\n"
            "  to fix: run with data=True, or read only tensors of up to 64 KiB"
        )
        super().__init__(f"{what}{made} has no values: {reason}")


class UnknownValueError(UninitializedValueError):
    """A program reads a value of a torch tensor that a run without data does not have.

    Attributes:
        read_at: `file.py:line` that reads, or None.
        lost_by: The operator that left the tensor without values.
        created_at: `file.py:line` of that operator's call, or None.
    """

    def __init__(
        self, reader: str, tensor: str, read_at: str | None, lost: tuple[str, str | None]
    ) -> None:
        self.read_at, self.lost = read_at, True
        self.lost_by, self.created_at = lost
        at = "" if read_at is None else f" at {read_at}"
        made = "" if self.created_at is None else f" at {self.created_at}"
        SimrankError.__init__(
            self,
            f"{reader}{at} reads {tensor}, which has no values in a run without data: "
            f"they were lost in `{self.lost_by}`{made}\n"
            "  to fix: state a value, for all of them with --unknown 0 (Context(unknown=0)), for "
            f"this line with --unknown {read_at or 'train.py:12'}=0, for experts that a router "
            "chooses with --routing balanced, for one tensor with simrank.torch.assume(tensor, "
            "value); or run with data",
        )


class OutOfMemoryError(SimrankError):
    """An allocation does not fit in a device's memory.

    Attributes:
        requested_bytes: Size of the allocation that failed.
        free_bytes: What is free on the device.
        total_bytes: The device's memory.
        largest: The five largest live allocations as (bytes, `file.py:line`).
    """

    def __init__(
        self, device: int, sizes_bytes: tuple[int, int, int], largest: Sequence[tuple[int, str]]
    ) -> None:
        self.requested_bytes, self.free_bytes, self.total_bytes = sizes_bytes
        self.largest = tuple(largest)
        lines = [
            f"out of memory on device {device}: requested {self.requested_bytes} bytes, "
            f"{self.free_bytes} free of {self.total_bytes}"
        ]
        lines += [f"  {size} bytes allocated at {where}" for size, where in self.largest]
        super().__init__("\n".join(lines))


class SimulationError(SimrankError):
    """Something went wrong at a simulated time.

    Attributes:
        time_ps: Simulated time in picoseconds.
    """

    time_ps: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        return {"kind": type(self).__name__, "time_ps": self.time_ps, "text": str(self)}


@dataclass(frozen=True, slots=True)
class RankState:
    """A set of ranks in the same state.

    Attributes:
        ranks: Global ranks, ascending; -1 stands for a greenlet that is no rank. None at all:
            work in flight.
        state: What they do, for example `all_reduce #7 on group 'tp0'`.
        file: The user's file, or None.
        line: The line in it, or None.
        waits: False if they have ended.
    """

    ranks: tuple[int, ...]
    state: str
    file: str | None = None
    line: int | None = None
    waits: bool = True

    def __str__(self) -> str:
        """Return `ranks 0-2, 5: state at file.py:41`."""
        if not self.ranks:
            who = "in flight"
        elif self.ranks == (-1,):
            who = "a greenlet"
        else:
            who = who_text(self.ranks)
        return f"{who}: {self.state}{at_text(self.file, self.line)}"


def at_text(file: str | None, line: int | None) -> str:
    """Return ` at file.py:41`, or nothing where there is no file."""
    return "" if file is None or line is None else f" at {place_text(file, line)}"


def who_text(ranks: Collection[int]) -> str:
    """Return ranks with their word, for example `rank 3` or `ranks 0-2, 5`."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as ranges, for example `0-2, 5`."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    start = 0
    for index, rank in enumerate(ordered):
        if index + 1 == len(ordered) or ordered[index + 1] != rank + 1:
            first = ordered[start]
            parts.append(str(first) if first == rank else f"{first}-{rank}")
            start = index + 1
    if len(parts) > _MAX_RANGES:
        parts[_MAX_RANGES:] = [f"... ({len(ordered)} ranks)"]
    return ", ".join(parts)


_MAX_RANGES = 12


def states_text(states: Sequence[RankState], max_lines: int = MAX_REPORT_LINES - 2) -> list[str]:
    """Return one indented line per state, at most `max_lines`, the rest counted."""
    lines = [f"  {state}" for state in states]
    if len(lines) > max_lines:
        rest = len(lines) - max_lines + 1
        lines[max_lines - 1 :] = [f"  and {rest} more sets of ranks"]
    return lines
