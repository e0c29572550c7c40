"""Outcomes of a body on its ranks: one failure for all, simulated or real."""

from __future__ import annotations

import inspect
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from simrank.errors import ranks_text
from simrank.errors.base import text_of
from simrank.suites.frames import users_frames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
