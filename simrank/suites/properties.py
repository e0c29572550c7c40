"""Hypothesis under the marker `ranks`: every example runs on the ranks, by itself."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, control, settings
from hypothesis.errors import FailedHealthCheck

from simrank.suites.marker import asked, is_real, make_context
from simrank.suites.outcomes import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Runner = Callable[[pytest.Function, Callable[..., Any], Mapping[str, Any]], None]

# Where `hypothesis.settings` keeps what it was called with; Hypothesis' own plugin goes there, too.
_SETTINGS = "_hypothesis_internal_use_settings"
_SHARED = pytest.StashKey[list[str]]()
_OWN_FIXTURES = "simrank.pytest_plugin"


def tell(item: pytest.Function) -> None:
    """Configure Hypothesis for a property that runs on ranks.

    The plugin's fixtures are new for every example, and a default deadline, in
    wall-clock time, says nothing about ranks.
    """
    function: Any = getattr(item.obj, "__func__", item.obj)
    own: Any = getattr(function, _SETTINGS, settings.default)
    suppressed = set(own.suppress_health_check)
    if HealthCheck.function_scoped_fixture not in suppressed:
        item.stash[_SHARED] = _shared_fixtures(item)
        suppressed.add(HealthCheck.function_scoped_fixture)
    default: Any = settings.default
    deadline = None if own.deadline == default.deadline else own.deadline
    changed = settings(own, suppress_health_check=suppressed, deadline=deadline)
    setattr(function, _SETTINGS, changed)


def _shared_fixtures(item: pytest.Function) -> list[str]:
    """Return the fixtures of a test, not of the plugin, that are set up once for all examples."""
    info = item._fixtureinfo  # As Hypothesis' own plugin does.
    return [
        name
        for name in info.argnames
        for definition in info.name2fixturedefs.get(name, ())[-1:]
        if definition.scope == "function" and definition.func.__module__ != _OWN_FIXTURES
    ]


def run(
    item: pytest.Function, body: Callable[..., Any], values: Mapping[str, Any], runner: Runner
) -> None:
    """Run every example of a property by itself.

    Args:
        item: The test.
        body: What Hypothesis made of its function.
        values: Of its fixtures.
        runner: Runs one example on the ranks.

    Raises:
        FailedHealthCheck: A fixture of the user's is shared by all examples.
    """
    __tracebackhide__ = True
    for name in item.stash.get(_SHARED, []):
        raise FailedHealthCheck(
            f"{item.nodeid!r} uses a function-scoped fixture {name!r}, which is not set up again "
            "for each example; see HealthCheck.function_scoped_fixture"
        )
    handle: Any = body.hypothesis  # type: ignore[attr-defined]
    inner = handle.inner_test
    if is_real(item):
        handle.inner_test = _example_for_real(item, inner, runner)
    else:
        handle.inner_test = _example(item, inner, runner)
        make_context(*_context_of(item))  # What is imported for it is no part of an example.
    try:
        body(**values)
    except pytest.fail.Exception as failure:
        arguments = "\n".join(getattr(failure, "__notes__", ()))
        failed = pytest.fail.Exception(f"{failure.msg}\n\n{arguments}", pytrace=False)
        raise failed.with_traceback(failure.__traceback__) from None
    finally:
        handle.inner_test = inner


def _context_of(item: pytest.Function) -> tuple[int, dict[str, Any]]:
    num_ranks, _, options = asked(item)
    return num_ranks, options


def _example(
    item: pytest.Function, inner: Callable[..., Any], runner: Runner
) -> Callable[..., None]:
    """Return a function that runs one example of a property on simulated ranks."""
    variable: Any = control._current_build_context  # What note() and draw() ask for.

    @functools.wraps(inner)
    def run_example(*args: object, **kwargs: object) -> None:
        __tracebackhide__ = True
        made_by = variable.value
        if "ctx" in kwargs:
            kwargs["ctx"] = make_context(*_context_of(item))

        def on_rank(**own: object) -> None:
            with variable.with_value(made_by):  # Ranks have one each.
                finish(inner(*args, **own))

        runner(item, on_rank, kwargs)

    return run_example


def _example_for_real(
    item: pytest.Function, inner: Callable[..., Any], runner: Runner
) -> Callable[..., None]:
    """Return a function that runs one example of a property on real processes."""

    @functools.wraps(inner)
    def run_example(*_: object, **kwargs: object) -> None:
        __tracebackhide__ = True
        runner(item, inner, kwargs)

    return run_example
