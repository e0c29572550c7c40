"""pytest: `@pytest.mark.ranks(8)` runs a test's body on every rank.

```python
@pytest.mark.ranks(8, cluster="hgx_h100", races="error")
def test_all_reduce_sums(rank, world_size, ctx):
    dist.init_process_group("nccl")
    x = ctx.full((4,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [28.0] * 4
```

The marker takes the number of ranks, `seeds=N` or `every_timing=True` to look for bugs of order,
and every keyword of `simrank.Context`. Fixtures are set up once, in the main program, and shared;
`rank` differs. `--ranks-on=gloo` runs the same tests on real processes; see
`simrank/validate/README.md`.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import pytest

from simrank.equality import marker as equal
from simrank.suites import marker
from simrank.suites.marker import add_options, driver_for

# Everything else of simrank is imported when the first marked test needs it: pytest loads this
# file in every run, marked tests or not.

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from multiprocessing.process import BaseProcess
    from weakref import WeakSet

    from simrank.context import Context
    from simrank.suites.on_processes import RealRanks

_CHILDREN = pytest.StashKey["WeakSet[BaseProcess]"]()
_REAL = pytest.StashKey["RealRanks"]()
_REPLACED = pytest.StashKey[list[str]]()  # What other processes of pytest-xdist have told.
_OUTPUT = "simrank_replaced"  # The key of it in what they send.


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known; refuse ranks that cannot be had."""
    config.addinivalue_line("markers", marker.HELP)
    config.addinivalue_line("markers", equal.HELP)
    marker.check_places(config)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options: where ranks run, suites on simulated ranks, and timelines."""
    group = parser.getgroup("simrank")
    add_options(group)
    group.addoption(
        "--ranks-on",
        action="append",
        choices=marker.PLACES,
        default=None,
        help="where tests marked with ranks run: simulated, or on real processes; repeatable, and "
        "each test then runs once on each [simrank]",
    )
    text = "seconds that a body may take on real processes, times SIMRANK_TIMEOUT_FACTOR [30]"
    group.addoption("--ranks-timeout", metavar="SECONDS", default=None, help=text)
    parser.addini("ranks_timeout", text, default=None)
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


# ---- fixtures ----


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401 - an int on the ranks
    """The rank that runs the body."""
    marker.asked(request.node)
    return marker.RANK


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks."""
    return marker.asked(request.node).num_ranks


@pytest.fixture
def ctx(request: pytest.FixtureRequest) -> Context:
    """The Context of the ranks: its factories, streams, simulated time and findings."""
    num_ranks, _, options = marker.asked(request.node)
    if marker.is_real(request.node):
        marker.refuse(request.node, "asks for the fixture ctx, which only the simulator has")
    return marker.make_context(num_ranks, options)


@pytest.fixture
def ranks_on(request: pytest.FixtureRequest) -> str:
    """The place of this test's ranks: `simrank`, `gloo`, `nccl` or `processes`."""
    marker.asked(request.node)
    return marker.place_of(request.node)


@pytest.fixture
def child_processes(request: pytest.FixtureRequest) -> Generator[WeakSet[BaseProcess]]:
    """The processes of multiprocessing that a test and its fixtures make.

    A process that is left when the body is over is killed before any fixture is torn down, so that
    none waits forever for a child in its own end.
    """
    from simrank.validate import track_child_processes  # noqa: PLC0415 - see above

    with track_child_processes() as made:
        request.node.stash[_CHILDREN] = made
        yield made


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Kill the children that a test has left, before its fixtures are torn down."""
    if _CHILDREN in item.stash:
        from simrank.validate import kill_subprocesses  # noqa: PLC0415 - see above

        kill_subprocesses(*item.stash[_CHILDREN])
    yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a marked test over its places, if there are several, or its layouts."""
    equal.generate(metafunc)
    names = marker.places(metafunc.config)
    if len(names) == 1 or metafunc.definition.get_closest_marker(marker.MARK) is None:
        return
    on = marker.asked(metafunc.definition).on
    allowed = [name for name in names if not on or name in on]
    if "ranks_on" not in metafunc.fixturenames:
        metafunc.fixturenames.append("ranks_on")
    metafunc.parametrize("ranks_on", allowed or names, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Track child processes from the first fixture on; limit tests on real processes."""
    for item in items:
        names = getattr(item, "fixturenames", [])
        if "child_processes" in names:
            names.sort(key=lambda name: name != "child_processes")
    if marker.places(config) != [marker.SIMULATED]:
        from simrank.suites.on_processes import remember  # noqa: PLC0415 - see above

        remember(config, items)


# ---- running ----


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or refuse what cannot run here, and tell Hypothesis what holds for a property."""
    if item.get_closest_marker(marker.MARK) is None:
        return
    if marker.places(item.config) != [marker.SIMULATED] or "on" in _keywords(item):
        marker.check_real(item)
    if _is_property(getattr(item, "obj", None)):
        from simrank.suites import properties  # noqa: PLC0415 - few tests need it

        assert isinstance(item, pytest.Function), "it has a body"
        properties.tell(item)


def _keywords(item: pytest.Item) -> Mapping[str, Any]:
    found = item.get_closest_marker(marker.MARK)
    return {} if found is None else found.kwargs


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a marked test on its ranks; check the layout of one marked with equal."""
    if pyfuncitem.get_closest_marker(equal.MARK) is not None:
        equal.run(pyfuncitem)
    if pyfuncitem.get_closest_marker(marker.MARK) is None:
        return None
    __tracebackhide__ = True
    names = pyfuncitem._fixtureinfo.argnames  # noqa: SLF001 - as pytest's own call does
    _run_body(pyfuncitem, pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Run the body of a marked unittest method on its ranks; setUp and tearDown run once.

    pytest does not call `pytest_pyfunc_call` for these.
    """
    if item.get_closest_marker(marker.MARK) is not None and _is_unittest(item):
        body = item.obj

        @functools.wraps(body)
        def on_ranks(*_args: object, **_kwargs: object) -> None:
            __tracebackhide__ = True
            _run_body(item, body, {})

        item.obj = on_ranks


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the suite's own frames of a failure on ranks, without those of torch and simrank."""
    if call.excinfo is None or "simrank.engine.callsite" not in sys.modules:
        return (yield)
    from simrank.suites.outcomes import folded, name_the_test  # noqa: PLC0415 - see above

    with folded(item, call.excinfo):
        report = yield
        name_the_test(report, item, call.excinfo)
    return report


def _is_unittest(item: pytest.Item) -> TypeGuard[pytest.Function]:
    kind = getattr(item, "cls", None)
    unittest = sys.modules.get("unittest")
    return unittest is not None and kind is not None and issubclass(kind, unittest.TestCase)


def _is_property(body: object) -> bool:
    """Return whether Hypothesis makes the examples of a test."""
    return getattr(body, "is_hypothesis_test", False) is True and hasattr(body, "hypothesis")


def _run_body(item: pytest.Function, body: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Run a marked test; of a property every example by itself."""
    __tracebackhide__ = True
    if marker.is_real(item):
        run = _real_ranks(item.config).run
    else:
        from simrank.suites.on_simulated_ranks import run  # noqa: PLC0415 - see above
    if _is_property(body):
        from simrank.suites import properties  # noqa: PLC0415 - few tests need it

        properties.run(item, body, values, run)
    else:
        run(item, body, values)


def _real_ranks(config: pytest.Config) -> RealRanks:
    """Return the session's runner of bodies on real processes, made at its first use."""
    if _REAL not in config.stash:
        from simrank.suites.on_processes import RealRanks  # noqa: PLC0415 - see above

        config.stash[_REAL] = RealRanks(config)
    return config.stash[_REAL]


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say where ranks run, if not on the simulator alone."""
    names = marker.places(config)
    return None if names == [marker.SIMULATED] else f"simrank: ranks on {', '.join(names)}"


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which workers had to be started again, and why."""
    lines = [*_replaced(config), *config.stash.get(_REPLACED, [])]
    if lines:
        terminalreporter.section("simrank: workers that were replaced")
        for line in lines:
            terminalreporter.write_line(line)


def _replaced(config: pytest.Config) -> list[str]:
    return config.stash[_REAL].restarts() if _REAL in config.stash else []


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a process of pytest-xdist: let the one that reports say which workers were replaced."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = _replaced(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401 - pytest-xdist's
    """Note which workers were replaced in a process of pytest-xdist that has ended."""
    lines = getattr(node, "workeroutput", {}).get(_OUTPUT, [])
    known = node.config.stash.setdefault(_REPLACED, [])
    known += [f"[{node.gateway.id}] {line}" for line in lines]


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the real processes."""
    if _REAL in config.stash:
        config.stash[_REAL].close()
