"""The body of a marked test on simulated ranks: once, under many seeds, and with a timeline."""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from simrank.errors import SpawnException
from simrank.isolation.private_modules import own_copy
from simrank.multiprocessing.spawn import spawn_in
from simrank.suites.marker import RANK, asked, make_context
from simrank.suites.outcomes import expected_by, finish, raise_by_rank, reported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from simrank.context import Context
    from simrank.engine.delays import Delays
    from simrank.timings.run import TimingRun
    from simrank.timings.search import TimingEnd


def run(item: pytest.Function, body: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Run a marked test."""
    __tracebackhide__ = True
    num_ranks, _, options = asked(item)
    test = _Test(item, body, values, num_ranks)
    seeds = options.get("seeds")
    if options.get("every_timing"):
        _search_every_timing(test, options)
        return
    if seeds is not None:
        _search(test, options, int(seeds))
        return
    given: Any = values.get("ctx") or item.funcargs.get("ctx")  # Some fixture may have asked.
    is_given = hasattr(given, "multiprocessing")  # A fixture of the user's may have this name.
    test.run_traced(given if is_given else make_context(num_ranks, options))


class _Test:
    """A test's body, its fixtures' values and its ranks."""

    def __init__(
        self,
        item: pytest.Function,
        body: Callable[..., Any],
        values: Mapping[str, Any],
        num_ranks: int,
    ) -> None:
        self._body = body
        self._values = values
        self.num_ranks = num_ranks
        self._trace_path = _trace_path(item)
        self._expected = expected_by(item)

    def run_traced(self, context: Context) -> None:
        """Run a test in a Context, and write its timeline if requested."""
        __tracebackhide__ = True
        if self._trace_path is None:
            self.run(context)
            return
        from simrank.trace import Timeline  # noqa: PLC0415 - few runs need it

        timeline = Timeline()
        context.observe(timeline)
        try:
            self.run(context)
        finally:
            self._trace_path.parent.mkdir(parents=True, exist_ok=True)
            timeline.write(self._trace_path)

    def run(self, context: Context) -> None:
        """Run a test in a Context; failures are reported by rank."""
        __tracebackhide__ = True
        values = dict(self._values)
        if "ctx" in values:
            values["ctx"] = context

        def on_rank(rank: int) -> None:
            own = {name: rank if value is RANK else value for name, value in values.items()}
            finish(_own_body(self._body)(**own))

        vars(on_rank)["__wrapped__"] = self._body
        failure = None
        try:
            with context:
                spawn_in(context.program, on_rank, (), self.num_ranks, is_users=False)
        except SpawnException as error:
            failure = error
        if failure is not None:
            when = "" if failure.time_ps is None else f" at t={failure.time_ps / 1e6:.3f} us"
            failures = {rank: reported(error) for rank, error in failure.errors.items()}
            raise_by_rank(failures, when, self._expected)


def _own_body(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rank's own copy of a test's body, where its module goes with a private package."""
    test: Any = getattr(body, "__self__", None)
    if test is None or isinstance(test, type):
        own: Callable[..., Any] = own_copy(body)
        return own
    kind = own_copy(type(test))
    if kind is type(test):
        return body
    test = copy(test)  # With what its fixtures have set.
    test.__class__ = kind
    method: Callable[..., Any] = getattr(kind, body.__name__)  # unittest's have one that spawns.
    return partial(method, test)


def _search(test: _Test, options: Mapping[str, Any], num_seeds: int) -> None:
    """Run the test under many seeds of delays, after once without."""
    from simrank import explore  # noqa: PLC0415 - few tests need it

    __tracebackhide__ = True
    num_ranks = test.num_ranks
    context = make_context(num_ranks, options)
    options = {**options, "cluster": context.cluster}  # Read once for all seeds.
    test.run_traced(context)

    def once(delays: Delays | None) -> None:
        test.run(make_context(num_ranks, {**options, "delays": delays}))

    failure = explore.search(_failing_as_exception(once), num_seeds)
    if failure is not None:
        with suppress(pytest.fail.Exception):  # Its timeline is what one wants to see.
            test.run_traced(make_context(num_ranks, {**options, "delays": failure.delays}))
        replay = f"to replay: ranks({num_ranks}, delays={str(failure.delays)!r})"
        pytest.fail(f"{failure}\n{replay}\n\n{failure.error}", pytrace=False)


def _search_every_timing(test: _Test, options: Mapping[str, Any]) -> None:
    """Run the test in every timing, or fail with what else can happen and its replay."""
    from simrank.timings.search import (  # noqa: PLC0415 - few tests need it
        RETURNED,
        TimingEnd,
        search,
    )

    __tracebackhide__ = True
    num_ranks, failures = test.num_ranks, dict[str, str]()
    options = {**options, "cluster": make_context(num_ranks, options).cluster}

    def once(timing: TimingRun) -> TimingEnd:
        context = make_context(num_ranks, {"races": "report", **options, "timing": timing})
        try:
            test.run(context)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - any end counts
            end = f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
            failures.setdefault(end, str(error))
            return TimingEnd(end, {})
        return TimingEnd(RETURNED, {}, tuple(str(race) for race in context.races))

    verdict = search(once)
    if verdict.is_proved:
        return
    lines = [f"not proved: {'; '.join(verdict.problems)}"]
    for outcome in verdict.outcomes:
        replay = f"ranks({num_ranks}, timing=TimingRun.parse({outcome.replay!r}))"
        lines += [outcome.seen.end, f"  to replay: {replay} (from simrank.timings.run)"]
    pytest.fail("\n".join([*lines, "", *failures.values()]), pytrace=False)


def _failing_as_exception(once: Callable[[Delays], None]) -> Callable[[Delays], None]:
    """Turn pytest's failures, which are no Exceptions, into some."""

    def run(delays: Delays) -> None:
        try:
            once(delays)
        except pytest.fail.Exception as error:
            raise AssertionError(str(error)) from None

    return run


def _trace_path(item: pytest.Item) -> Path | None:
    """Return the path of a test's timeline; None without one."""
    folder: str | None = item.config.getoption("--simrank-trace")
    if folder is None:
        return None
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in item.nodeid)
    return Path(folder) / f"{name}.json"
