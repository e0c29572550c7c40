"""Frames that pytest shows of failures on simulated ranks: the suite's, not libraries'.

`--full-trace` shows all of them, as it does for pytest's own.
"""

from __future__ import annotations

import sys
import unittest
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from _pytest._code.code import ReprFileLocation

from simrank.engine.callsite import is_simranks
from simrank.errors import SpawnException
from simrank.multiprocessing.tracebacks import is_folded
from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    Excinfo = pytest.ExceptionInfo[BaseException]


def users_frames(excinfo: Excinfo) -> Any:
    """Return the traceback without frames of torch and simrank; all of it if no other is there."""
    own = _without_libraries(excinfo.traceback)
    return own or excinfo.traceback


@contextmanager
def folded(item: pytest.Item, excinfo: Excinfo) -> Iterator[None]:
    """While a report is made: hide frames of torch and simrank from it.

    A failure that has nothing to do with simulated ranks is shown as ever.
    """
    if item.config.getoption("fulltrace", False) or not _hides_frames(excinfo.value):
        yield
        return
    shown: Any = item
    given, original = excinfo.traceback, shown._traceback_filter
    error = excinfo.value
    cause, is_suppressed = error.__cause__, error.__suppress_context__
    if isinstance(error, SpawnException):  # Its text has the report and the frames of its cause.
        error.__cause__, error.__suppress_context__ = None, True
    excinfo.traceback = _without_libraries(given)

    def of_users(each: Excinfo) -> Any:
        each.traceback = _without_libraries(each.traceback)
        if not each.traceback:
            return each.traceback
        kept = _without_libraries(original(each))  # It cuts the whole traceback.
        return type(kept)([*kept[:-1], *(last.with_repr_style(None) for last in kept[-1:])])

    shown._traceback_filter = of_users
    try:
        yield
    finally:
        del shown._traceback_filter
        excinfo.traceback = given
        error.__cause__, error.__suppress_context__ = cause, is_suppressed


def name_the_test(report: pytest.TestReport, item: pytest.Item, excinfo: Excinfo) -> None:
    """Locate a failure without frames of the suite at the test itself."""
    if not _hides_frames(excinfo.value):
        return
    shown: Any = report.longrepr
    chain = getattr(shown, "chain", ())
    if not chain or chain[-1][1] is not None:
        return
    path, line, _ = item.location
    place = ReprFileLocation(path, (line or 0) + 1, excinfo.exconly(tryshort=True))
    chain[-1][0].extraline = _TO_SHOW
    shown.chain[-1] = (chain[-1][0], place, chain[-1][2])
    shown.reprcrash = place


def _without_libraries(traceback: Any) -> Any:
    kept = [entry for entry in traceback if not is_folded(entry.frame.code.raw.co_filename)]
    of_pytest = [e for e in kept if e.frame.f_globals.get("__name__", "").startswith(_CALLERS)]
    return type(traceback)([] if len(of_pytest) == len(kept) else kept)


def _hides_frames(error: BaseException) -> bool:
    """Whether frames of an error are hidden: not of skips, and of failures that show none."""
    is_text = isinstance(error, pytest.fail.Exception) and not error.pytrace
    return not is_text and not isinstance(error, _OUTCOMES) and _is_of_ranks(error)


def _is_of_ranks(error: BaseException) -> bool:
    """Return whether a rank raised an exception, or one of its causes passed through simrank."""
    if rank_program() is not None:
        return True
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        pending += [each.__cause__, each.__context__]
        trace = each.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if is_simranks(file) and file not in _OF_PLUGIN:
                return True
            trace = trace.tb_next
    return False


_OUTCOMES = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)
_CALLERS = ("_pytest.", "pluggy.")
_TO_SHOW = "(--full-trace shows the frames of torch and simrank)"
_OF_PLUGIN = frozenset(
    str(getattr(sys.modules.get(name), "__file__", ""))
    for name in ("simrank.pytest_plugin", __name__)
)
