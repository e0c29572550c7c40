"""Errors of ranks as text: the report, then the frames of the program, not of libraries."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

from simrank.engine.callsite import is_simranks
from simrank.errors import CollectiveMismatchError, ProcessException, SimrankError, SpawnException
from simrank.errors.base import cell_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_CALLERS = ("simrank.", "importlib")
_ALL_FRAMES = "SIMRANK_FULL_TRACEBACK"
_to_show = ["--full-traceback"]
_FOLDED = ("/site-packages/torch/", "/dist-packages/torch/")
_MAX_ALSO = 8  # Ranks that are named beside the one whose error is shown.
# Set by `simrank run --full-traceback`, and by a variable for programs that Python itself runs.
shows_all_frames = [_ALL_FRAMES in os.environ]


def users_traceback(error: BaseException, *, report_first: bool = False) -> str:
    """Return the traceback from the user's function on, without the frames that called it.

    Frames of torch and simrank below it are counted, not shown.

    Args:
        error: The exception.
        report_first: Whether its text and notes stand before the frames, not after them.
    """
    start: TracebackType | None = error.__traceback__
    while start is not None and start.tb_frame.f_globals.get("__name__", "").startswith(_CALLERS):
        start = start.tb_next
    shown = traceback.TracebackException(type(error), error, start)
    if not shows_all_frames[0]:
        _fold(shown, set())
    lines = list(shown.format())
    if not report_first:
        return "".join(lines)
    report = list(shown.format_exception_only())
    if lines[-len(report) :] == report:  # Not so of an ExceptionGroup, whose lines are indented.
        lines = lines[: -len(report)]
    return "".join([*report, *lines])


def spawn_text(errors: Mapping[int, BaseException], *, report_first: bool = False) -> str:
    """Return the text of a SpawnException, as torch writes it.

    The text of simrank's own errors, which are reports, always stands before the frames.

    Args:
        errors: What each rank raised; the first one is shown.
        report_first: Whether the text of the program's own errors stands there, too.
    """
    rank, error = next(iter(errors.items()))
    is_first = report_first or isinstance(error, SimrankError)
    text = users_traceback(error, report_first=is_first)
    header = f"Process {rank} terminated with the following error"
    if isinstance(error, CollectiveMismatchError):  # It need not be this rank's fault.
        others_called = any(rank not in variant.ranks for variant in error.variants)
        header = f"Process {rank} met ranks that call something else" if others_called else header
    text = f"-- {header}:\n{text}"
    if len(errors) > 1:
        others = [f"{r} ({type(e).__name__})" for r, e in list(errors.items())[1 : _MAX_ALSO + 1]]
        more = ", ..." * (len(errors) > _MAX_ALSO + 1)
        text += f"\nalso raised on rank {', '.join(others)}{more}"
    return text


def failure_text(error: BaseException) -> str:
    """Return the text of a failed run for a command: the report, frames, notes."""
    text = str(error)
    first = error.errors.get(error.error_index) if isinstance(error, SpawnException) else None
    if isinstance(error, SpawnException) and first is not None and first.__traceback__ is not None:
        text = spawn_text(error.errors, report_first=True).rstrip("\n")
    elif isinstance(error, ProcessException):
        text = text.lstrip("\n")
    return "\n".join([text, *getattr(error, "__notes__", ())])


def show_reports_first() -> None:
    """Make Python print a final exception as commands do: the report before the frames.

    Only where nothing else prints it, and only errors of simrank and of spawn.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_report


def _print_report(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    if shows_all_frames[0] or not isinstance(error, SimrankError | ProcessException):
        sys.__excepthook__(kind, error, frames)
        return
    _to_show[0] = f"{_ALL_FRAMES}=1"
    shown = traceback.TracebackException(type(error), error, frames)
    shown.__cause__ = shown.__context__ = None  # Its text is in the report.
    _fold(shown, set())
    num_lines = len(list(shown.format_exception_only()))
    own = "".join(list(shown.format())[:-num_lines])
    sys.stderr.write(f"{failure_text(error)}\n{own}")


def is_folded(filename: str) -> bool:
    """Whether frames of a file are counted in place of being shown: torch's and simrank's own."""
    return is_simranks(filename) or any(part in filename for part in _FOLDED)


class _Folded(traceback.StackSummary):
    """Return frames as text, with runs of frames of torch and simrank as their number."""

    def format(self, **_: object) -> list[str]:
        """Return the lines."""
        lines: list[str] = []
        num_hidden = 0
        for frame in [*self, None]:
            if frame is not None and is_folded(frame.filename):
                num_hidden += 1
                continue
            if num_hidden:
                lines.append(
                    f"  ... {num_hidden} frames of torch and simrank ({_to_show[0]} shows them)\n"
                )
                num_hidden = 0
            if frame is not None:
                lines.append(self._text_of(frame))
        return lines

    def _text_of(self, frame: traceback.FrameSummary) -> str:
        """Return the lines of a frame; the cell of a notebook stands before its file."""
        text = self.format_frame_summary(frame)
        cell = cell_text(frame.filename)
        return text if cell is None else text.replace("File ", f"{cell}, File ", 1)


def _fold(shown: traceback.TracebackException, seen: set[int]) -> None:
    """Fold the frames of an error and of its causes."""
    seen.add(id(shown))
    shown.stack = _Folded(shown.stack)
    for other in (shown.__cause__, shown.__context__):
        if other is not None and id(other) not in seen:
            _fold(other, seen)
