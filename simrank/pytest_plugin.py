"""pytest: `@pytest.mark.ranks(8)` runs a test's body on every simulated rank.

```python
@pytest.mark.ranks(8, cluster="hgx_h100", races="error")
def test_all_reduce_sums(rank, world_size, ctx):
    dist.init_process_group("nccl")
    x = ctx.full((4,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [28.0] * 4
```

The marker takes the number of ranks, `seeds=N` to look for bugs of order, and every keyword of
`simrank.Context`. Fixtures are set up once, in the main program, and shared; `rank` differs.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import pytest

from simrank.suites.options import add_options, driver_for

# Everything else of simrank is imported when the first marked test needs it: pytest loads this
# file in every run, marked tests or not.

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from simrank.context import Context
    from simrank.engine.delays import Delays
    from simrank.errors import SpawnException

_MARK = "ranks"
_HELP = (
    "ranks(n, *, seeds=None, cluster=None, **context): run the body on n simulated ranks; the "
    "keywords are those of simrank.Context"
)


class _PerRank:
    """Stands for a fixture's value that every rank has for itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name} of a simulated rank>"

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever was asked for
        raise AttributeError(
            f"fixture '{self._name}' has a value on the ranks only, not in other fixtures"
        )


_RANK = _PerRank("rank")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _HELP)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options: suites on simulated ranks, and timelines."""
    group = parser.getgroup("simrank")
    add_options(group)
    group.addoption(
        "--simrank-trace",
        metavar="DIR",
        default=None,
        help="write the timeline of every test marked with ranks to this folder",
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """With `--simrank`, let ranks load conftests and tests in place of this session."""
    driver = driver_for(early_config)
    yield
    if driver is not None:
        driver.start()


def _asked(node: pytest.Item) -> tuple[int, dict[str, Any]]:
    """Return a marked test's number of ranks and its other options.

    Raises:
        UsageError: The marker is written wrongly.
    """
    marker = node.get_closest_marker(_MARK)
    if marker is None:
        raise pytest.UsageError(f"{node.nodeid}: this fixture is for tests marked with ranks(n)")
    options = {name: _beside(node, value) for name, value in marker.kwargs.items()}
    given = marker.args or (options.pop("n", None),)
    num_ranks = given[0]
    if len(given) != 1 or isinstance(num_ranks, bool) or not isinstance(num_ranks, int):
        raise pytest.UsageError(f"{node.nodeid}: write ranks(n) with a number of ranks, {_HELP}")
    if num_ranks < 1:
        raise pytest.UsageError(f"{node.nodeid}: ranks({num_ranks}): expected 1 or more")
    return num_ranks, options


def _beside(node: pytest.Item, value: Any) -> Any:  # noqa: ANN401 - an option's
    """Return the path of a YAML file that lies beside the test; anything else as it is."""
    if isinstance(value, str) and value.endswith((".yaml", ".yml")):
        beside = node.path.parent / value
        return str(beside) if beside.exists() else value
    return value


def _expected(item: pytest.Item) -> tuple[type[BaseException], ...]:
    """Return what `xfail(raises=...)` expects a test to raise."""
    found: list[type[BaseException]] = []
    for marker in item.iter_markers("xfail"):
        raises = marker.kwargs.get("raises") or ()
        found += raises if isinstance(raises, tuple) else [raises]
    return tuple(found)


def _make_context(num_ranks: int, options: Mapping[str, Any]) -> Context:
    from simrank.context import Context  # noqa: PLC0415 - see above

    settings = {name: value for name, value in options.items() if name != "seeds"}
    known = [*inspect.signature(Context.__init__).parameters][1:]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            to_fix = f"\n  to fix: write `{near[0]}`" if near else ""
            raise pytest.UsageError(f"ranks(...): Context has no option `{name}`{to_fix}")
    if "cluster" in settings:
        return Context(**settings)
    return Context.for_ranks(num_ranks, **settings)


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401 - an int on the ranks
    """The rank that runs the body."""
    _asked(request.node)
    return _RANK


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks."""
    return _asked(request.node)[0]


@pytest.fixture
def ctx(request: pytest.FixtureRequest) -> Context:
    """The Context of the ranks: its factories, streams, simulated time and findings."""
    num_ranks, options = _asked(request.node)
    return _make_context(num_ranks, options)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a marked test on its ranks."""
    if pyfuncitem.get_closest_marker(_MARK) is None:
        return None
    __tracebackhide__ = True
    names = pyfuncitem._fixtureinfo.argnames  # noqa: SLF001 - as pytest's own call does
    _run_body(pyfuncitem, pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Let unittest run the body of a marked method on its ranks; setUp and tearDown run once.

    pytest does not call `pytest_pyfunc_call` for these.
    """
    if item.get_closest_marker(_MARK) is not None and _is_unittest(item):
        body = item.obj

        @functools.wraps(body)
        def on_ranks(*_args: object, **_kwargs: object) -> None:
            __tracebackhide__ = True
            _run_body(item, body, {})

        item.obj = on_ranks


def _is_unittest(item: pytest.Item) -> TypeGuard[pytest.Function]:
    kind = getattr(item, "cls", None)
    unittest = sys.modules.get("unittest")
    return unittest is not None and kind is not None and issubclass(kind, unittest.TestCase)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tell Hypothesis what holds for a property that runs on ranks, before it looks itself.

    The fixtures of this file are new for every example, and a deadline that nobody asked for, in
    wall-clock time, says nothing about a simulation.
    """
    if item.get_closest_marker(_MARK) is None or not _is_property(getattr(item, "obj", None)):
        return
    from hypothesis import HealthCheck, settings  # noqa: PLC0415 - few tests need it

    assert isinstance(item, pytest.Function)
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


# Where `hypothesis.settings` keeps what it was called with; Hypothesis' own plugin goes there, too.
_SETTINGS = "_hypothesis_internal_use_settings"
_SHARED = pytest.StashKey[list[str]]()


def _is_property(body: object) -> bool:
    """Whether Hypothesis makes the examples of a test."""
    return getattr(body, "is_hypothesis_test", False) is True and hasattr(body, "hypothesis")


def _shared_fixtures(item: pytest.Function) -> list[str]:
    """Return the fixtures of a test, not of this file, that are set up once for all examples."""
    info = item._fixtureinfo  # noqa: SLF001 - as Hypothesis' own plugin does
    return [
        name
        for name in info.argnames
        for definition in info.name2fixturedefs.get(name, ())[-1:]
        if definition.scope == "function" and definition.func.__module__ != __name__
    ]


def _run_body(item: pytest.Function, body: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Run a marked test; of a property every example by itself, each in a Context of its own.

    Raises:
        FailedHealthCheck: A fixture of the user's is shared by all examples.
    """
    __tracebackhide__ = True
    if not _is_property(body):
        _run(item, body, values)
        return
    from hypothesis.errors import FailedHealthCheck  # noqa: PLC0415 - few tests need it

    for name in item.stash.get(_SHARED, []):
        raise FailedHealthCheck(
            f"{item.nodeid!r} uses a function-scoped fixture {name!r}, which is not set up anew "
            "for each example; see HealthCheck.function_scoped_fixture"
        )
    handle: Any = body.hypothesis  # type: ignore[attr-defined]
    inner = handle.inner_test
    handle.inner_test = _example(item, inner)
    _make_context(*_asked(item))  # What is imported for it is no part of the first example.
    try:
        body(**values)
    except pytest.fail.Exception as failure:
        arguments = "\n".join(getattr(failure, "__notes__", ()))
        failed = pytest.fail.Exception(f"{failure.msg}\n\n{arguments}", pytrace=False)
        raise failed.with_traceback(failure.__traceback__) from None
    finally:
        handle.inner_test = inner


def _example(item: pytest.Function, inner: Callable[..., Any]) -> Callable[..., None]:
    """Return what runs one example of a property on the ranks."""
    from hypothesis import control  # noqa: PLC0415 - few tests need it

    variable: Any = control._current_build_context  # noqa: SLF001 - what note() and draw() ask for

    @functools.wraps(inner)
    def run_example(*args: object, **kwargs: object) -> None:
        __tracebackhide__ = True
        made_by = variable.value
        if "ctx" in kwargs:
            kwargs["ctx"] = _make_context(*_asked(item))

        def on_rank(**own: object) -> None:
            with variable.with_value(made_by):  # Ranks have one each.
                _finish(inner(*args, **own))

        _run(item, on_rank, kwargs)

    return run_example


def _run(item: pytest.Function, body: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Run a marked test as its marker asks."""
    __tracebackhide__ = True
    num_ranks, options = _asked(item)
    test = _Test(body, values, num_ranks, _trace_path(item))
    test.expected = _expected(item)
    seeds = options.get("seeds")
    if seeds is not None:
        _search(test, options, int(seeds))
        return
    given: Any = values.get("ctx") or item.funcargs.get("ctx")  # Some fixture may have asked.
    is_given = hasattr(given, "multiprocessing")  # A fixture of the user's may have this name.
    test.run_traced(given if is_given else _make_context(num_ranks, options))


class _Test:
    """A test's body, its fixtures' values, its ranks, and where its timeline goes."""

    def __init__(
        self,
        body: Callable[..., Any],
        values: Mapping[str, Any],
        num_ranks: int,
        trace_path: Path | None,
    ) -> None:
        self._body = body
        self._values = values
        self._num_ranks = num_ranks
        self._trace_path = trace_path
        self.expected: tuple[type[BaseException], ...] = ()  # By `xfail(raises=...)`.

    def run_traced(self, context: Context) -> None:
        """Run it in a Context, and write its timeline where one is asked for."""
        __tracebackhide__ = True
        if self._trace_path is None:
            self.run(context)
            return
        from simrank.trace import Timeline  # noqa: PLC0415 - see above

        timeline = Timeline()
        context.observe(timeline)
        try:
            self.run(context)
        finally:
            self._trace_path.parent.mkdir(parents=True, exist_ok=True)
            timeline.write(self._trace_path)

    def run(self, context: Context) -> None:
        """Run it in a Context; what ranks raise is told by rank."""
        from simrank.errors import SpawnException  # noqa: PLC0415 - see above
        from simrank.multiprocessing.spawn import spawn_in  # noqa: PLC0415 - see above

        __tracebackhide__ = True
        values = dict(self._values)
        if "ctx" in values:
            values["ctx"] = context

        def on_rank(rank: int) -> None:
            own = {name: rank if value is _RANK else value for name, value in values.items()}
            _finish(self._body(**own))

        failure = None
        try:
            with context:
                spawn_in(context.program, on_rank, (), self._num_ranks, is_users=False)
        except SpawnException as error:
            failure = error
        if failure is not None:
            _raise_by_rank(failure, self.expected)


def _finish(result: object) -> None:
    """Run what an `async def` returned; refuse a body that has not run.

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


def _raise_by_rank(failure: SpawnException, expected: tuple[type[BaseException], ...]) -> None:
    """Raise one failure that shows what the ranks raised, equal ones together.

    What `xfail` expects is raised as it is.
    """
    from simrank.errors import ranks_text  # noqa: PLC0415 - see above
    from simrank.errors.travel import text_of  # noqa: PLC0415 - see above

    __tracebackhide__ = True
    errors = failure.errors
    for error in errors.values():
        if isinstance(error, _refusals()):
            raise error
    skips = _skip_exceptions()
    outcomes = [error for error in errors.values() if isinstance(error, skips)]
    if len(outcomes) == len(errors):
        raise outcomes[0]
    if expected and all(isinstance(error, expected) for error in errors.values()):
        raise next(iter(errors.values()))
    groups: dict[tuple[str, str, str], list[int]] = {}
    for number, error in errors.items():
        if not isinstance(error, skips):
            groups.setdefault(_key(error), []).append(number)
    parts = []
    for ranks in groups.values():
        excinfo = pytest.ExceptionInfo.from_exception(errors[ranks[0]])
        shown = excinfo.getrepr(style="long", tbfilter=_user_frames)
        word = "rank" if len(ranks) == 1 else "ranks"
        parts.append(f"on {word} {ranks_text(ranks)}:\n{shown}")
    when = "" if failure.time_ps is None else f" at t={failure.time_ps / 1e6:.3f} us"
    first = next(iter(groups.values()))
    cause = errors[first[0]]
    told = f"rank {first[0]}: {type(cause).__name__}: {text_of(cause)}".partition("\n")[0]
    head = f"{sum(map(len, groups.values()))} rank(s) failed{when}: {told}"
    failed = pytest.fail.Exception("\n\n".join([head, *parts]), pytrace=False)
    raise failed.with_traceback(cause.__traceback__)  # Where `--pdb` looks: the rank's own frames.


def _skip_exceptions() -> tuple[type[BaseException], ...]:
    """Return what pytest takes for a skip."""
    unittest = sys.modules.get("unittest")
    own = (pytest.skip.Exception, pytest.xfail.Exception)
    return own if unittest is None else (*own, unittest.SkipTest)


def _refusals() -> tuple[type[BaseException], ...]:
    """Return what is no failure of a rank: `pytest.exit`, and Hypothesis' of a bad example."""
    errors: Any = sys.modules.get("hypothesis.errors")
    own = (pytest.exit.Exception,)
    return own if errors is None else (*own, errors.UnsatisfiedAssumption, errors.StopTest)


def _key(error: BaseException) -> tuple[str, str, str]:
    """Return what makes two ranks' failures the same: type, text and line."""
    from simrank.errors.travel import text_of  # noqa: PLC0415 - see above

    frames = pytest.ExceptionInfo.from_exception(error).traceback
    last = frames[-1]
    return type(error).__name__, text_of(error), f"{last.path}:{last.lineno}"


def _user_frames(excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # noqa: ANN401 - pytest's
    """Return the frames from the test's body on."""
    own = [
        entry
        for entry in excinfo.traceback
        if not entry.frame.f_globals.get("__name__", "").startswith("simrank.")
    ]
    return type(excinfo.traceback)(own or excinfo.traceback)


def _search(test: _Test, options: Mapping[str, Any], num_seeds: int) -> None:
    """Run the test under many seeds of delays, after once without."""
    from simrank import explore  # noqa: PLC0415 - see above

    __tracebackhide__ = True
    num_ranks = test._num_ranks  # noqa: SLF001 - of this module

    context = _make_context(num_ranks, options)
    options = {**options, "cluster": context.cluster}  # Read once for all seeds.
    test.run_traced(context)

    def once(delays: Delays | None) -> None:
        test.run(_make_context(num_ranks, {**options, "delays": delays}))

    failure = explore.search(_failing_as_exception(once), num_seeds)
    if failure is not None:
        with suppress(pytest.fail.Exception):  # Its timeline is what one wants to see.
            test.run_traced(_make_context(num_ranks, {**options, "delays": failure.delays}))
        replay = f"to replay: ranks({num_ranks}, delays={str(failure.delays)!r})"
        pytest.fail(f"{failure}\n{replay}\n\n{failure.error}", pytrace=False)


def _failing_as_exception(once: Callable[[Delays], None]) -> Callable[[Delays], None]:
    """Turn pytest's failures, which are no Exceptions, into some."""

    def run(delays: Delays) -> None:
        try:
            once(delays)
        except pytest.fail.Exception as error:
            raise AssertionError(str(error)) from None

    return run


def _trace_path(item: pytest.Item) -> Path | None:
    """Return where the timeline of a test is written; None if none is asked for."""
    folder: str | None = item.config.getoption("--simrank-trace")
    if folder is None:
        return None
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in item.nodeid)
    return Path(folder) / f"{name}.json"
