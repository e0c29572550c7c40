"""Outcomes of a body on its ranks: one failure for all, with the suite's frames."""

from __future__ import annotations

import inspect
import sys
import unittest
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from _pytest._code.code import ReprFileLocation

from simrank.engine.callsite import is_simranks
from simrank.errors import SpawnException, ranks_text
from simrank.errors.base import text_of
from simrank.multiprocessing.tracebacks import is_folded
from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Excinfo = pytest.ExceptionInfo[BaseException]


# ---- frames that pytest shows of failures on simulated ranks: the suite's, not libraries' ----
# `--full-trace` shows all of them, as it does for pytest's own.


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


# ---- one failure for all ranks, simulated or real ----


class Reported(NamedTuple):
    """The failure of a rank.

    Attributes:
        error: The exception, with its frames where it was raised in this process.
        kind: Its type's name.
        text: Its text.
        place: The innermost file and line.
        shown: What pytest shows of it.
    """

    error: BaseException
    kind: str
    text: str
    place: str
    shown: str


def finish(result: object) -> None:
    """Run the coroutine of an `async def`; raise for a body that has not run.

    Raises:
        Failed: The body is a generator, of which nothing runs by itself.
    """
    if inspect.iscoroutine(result):
        import asyncio  # noqa: PLC0415 - few tests need it

        result = asyncio.run(result)
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        pytest.fail("the body of a test marked with ranks may not yield: nothing of it has run")
    if result is not None:
        text = f"a test returned {type(result).__name__}: did you mean assert instead of return?"
        warnings.warn(pytest.PytestReturnNotNoneWarning(text), stacklevel=2)


def reported(error: BaseException) -> Reported:
    """Return the report of an exception, from the user's frames on."""
    excinfo = pytest.ExceptionInfo.from_exception(error)
    last = users_frames(excinfo)[-1]
    shown = str(excinfo.getrepr(style="long", tbfilter=users_frames))
    place = f"{last.path}:{last.lineno}"
    return Reported(error, type(error).__name__, text_of(error), place, shown)


def raise_by_rank(
    failures: Mapping[int, Reported],
    where: str,
    expected: tuple[type[BaseException], ...],
    end: Sequence[str] = (),
) -> None:
    """Raise one failure that shows the ranks' exceptions, equal ones once.

    What `xfail` expects is raised as it is, and so are skips if there is nothing else.

    Args:
        failures: By rank.
        where: Behind the number of ranks: a time, or a place.
        expected: What `xfail(raises=...)` names.
        end: Lines behind the failures.
    """
    __tracebackhide__ = True
    errors = {rank: failure.error for rank, failure in failures.items()}
    for error in errors.values():
        if isinstance(error, _refusals()):
            raise error
    skips = skip_exceptions()
    outcomes = [error for error in errors.values() if isinstance(error, skips)]
    if len(outcomes) == len(errors):
        raise outcomes[0]
    if expected and all(isinstance(error, expected) for error in errors.values()):
        raise next(iter(errors.values()))
    groups: dict[tuple[str, str, str], list[int]] = {}
    for rank, failure in failures.items():
        if not isinstance(failure.error, skips):
            groups.setdefault((failure.kind, failure.text, failure.place), []).append(rank)
    parts = []
    for ranks in groups.values():
        word = "rank" if len(ranks) == 1 else "ranks"
        parts.append(f"on {word} {ranks_text(ranks)}:\n{failures[ranks[0]].shown}")
    first = next(iter(groups.values()))[0]
    cause = failures[first]
    line = f"rank {first}: {cause.kind}: {cause.text}".partition("\n")[0]
    head = f"{sum(map(len, groups.values()))} rank(s) failed{where}: {line}"
    parts += ["\n".join(end)] if end else []
    failed = pytest.fail.Exception("\n\n".join([head, *parts]), pytrace=False)
    raise failed.with_traceback(cause.error.__traceback__)  # Where `--pdb` looks: a rank's frames.


def expected_by(item: pytest.Item) -> tuple[type[BaseException], ...]:
    """Return the exceptions of `xfail(raises=...)`."""
    found: list[type[BaseException]] = []
    for marker in item.iter_markers("xfail"):
        raises = marker.kwargs.get("raises") or ()
        found += raises if isinstance(raises, tuple) else [raises]
    return tuple(found)


def skip_exceptions() -> tuple[type[BaseException], ...]:
    """Return the exceptions that pytest counts as a skip."""
    unittest = sys.modules.get("unittest")
    own = (pytest.skip.Exception, pytest.xfail.Exception)
    return own if unittest is None else (*own, unittest.SkipTest)


def _refusals() -> tuple[type[BaseException], ...]:
    """Return the exceptions that are not failures: `pytest.exit`, Hypothesis' bad examples."""
    errors: Any = sys.modules.get("hypothesis.errors")
    own = (pytest.exit.Exception,)
    return own if errors is None else (*own, errors.UnsatisfiedAssumption, errors.StopTest)
