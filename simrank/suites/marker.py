"""The marker `ranks`: number of ranks, where they run, and options.

pytest loads this in every run: everything else is imported when the first marked test needs it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import inspect
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from simrank.config.checks import LEVELS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simrank.context import Context
    from simrank.suites.driver import Driver

MARK = "ranks"
HELP = (
    "ranks(n, *, on=None, seeds=None, every_timing=False, cluster=None, **context): run the body "
    "on n ranks, simulated or as --ranks-on says; on= names where it may run; the other keywords "
    "are simrank.Context's"
)
SIMULATED = "simrank"
# Where ranks are real processes -> the backend of their pool.
REAL: dict[str, str | None] = {"gloo": "gloo", "nccl": "nccl", "processes": None}
PLACES = (SIMULATED, *REAL)
# Options that decide whether a simulated test passes: without them a pass would mean something
# else. The others describe the simulated machine, or what is written about it.
_VERDICTS = (
    "seeds", "every_timing", "checks", "races", "strict", "faults", "delays", "timing",
    "on_failure", "data",
)  # fmt: skip
_OF_SEARCHES = ("seeds", "every_timing")  # No options of a Context.


class RankFixture:
    """Placeholder for a fixture's value that every rank makes itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        """Return the name of the fixture."""
        return f"<{self._name} of a rank>"

    def __getattr__(self, name: str) -> Any:
        """Raise: the value exists on ranks only."""
        raise AttributeError(
            f"fixture '{self._name}' has a value on the ranks only, not in other fixtures"
        )


RANK = RankFixture("rank")


class MarkerArguments(NamedTuple):
    """A parsed marker: ranks, places (none: all) and options."""

    num_ranks: int
    on: tuple[str, ...]
    options: dict[str, Any]


def asked(node: pytest.Item) -> MarkerArguments:
    """Parse the marker of a test.

    Raises:
        UsageError: The marker is written wrongly.
    """
    marker = node.get_closest_marker(MARK)
    if marker is None:
        raise pytest.UsageError(f"{node.nodeid}: this fixture is for tests marked with ranks(n)")
    options = {name: _beside(node, value) for name, value in marker.kwargs.items()}
    on = _places_of(node.nodeid, options.pop("on", ()))
    given = marker.args or (options.pop("n", None),)
    num_ranks = given[0]
    if len(given) != 1 or isinstance(num_ranks, bool) or not isinstance(num_ranks, int):
        raise pytest.UsageError(f"{node.nodeid}: write ranks(n) with a number of ranks, {HELP}")
    if num_ranks < 1:
        raise pytest.UsageError(f"{node.nodeid}: ranks({num_ranks}): expected 1 or more")
    return MarkerArguments(num_ranks, on, options)


def _places_of(nodeid: str, given: Any) -> tuple[str, ...]:
    on = (given,) if isinstance(given, str) else tuple(given)
    for name in on:
        if name not in PLACES:
            choices = ", ".join(PLACES)
            raise pytest.UsageError(f"{nodeid}: ranks(on={name!r}): expected one of {choices}")
    return on


def _beside(node: pytest.Item, value: Any) -> Any:
    """Return the path of a YAML file beside the test; other values unchanged."""
    if isinstance(value, str) and value.endswith((".yaml", ".yml")):
        beside = node.path.parent / value
        return str(beside) if beside.exists() else value
    return value


def make_context(num_ranks: int, options: Mapping[str, Any]) -> Context:
    """Return the Context that the options of a marker describe.

    Raises:
        UsageError: An option is none of Context's.
    """
    from simrank.context import Context  # noqa: PLC0415 - see above

    settings = {name: value for name, value in options.items() if name not in _OF_SEARCHES}
    _check(settings)
    if "cluster" in settings:
        return Context(**settings)
    return Context.for_ranks(num_ranks, **settings)


def _check(options: Mapping[str, Any]) -> None:
    from simrank.context import Context  # noqa: PLC0415 - see above

    known = [*inspect.signature(Context.__init__).parameters][1:]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            to_fix = f"\n  to fix: write `{near[0]}`" if near else ""
            raise pytest.UsageError(f"ranks(...): Context has no option `{name}`{to_fix}")


# ---- where ranks run ----


def places(config: pytest.Config) -> list[str]:
    """Return the places of this session's ranks, in the order of the command line."""
    return list(dict.fromkeys(config.getoption("--ranks-on") or [SIMULATED]))


def place_of(item: pytest.Item) -> str:
    """Return the place of a marked test."""
    callspec = getattr(item, "callspec", None)
    chosen: str | None = None if callspec is None else callspec.params.get("ranks_on")
    return chosen or places(item.config)[0]


def is_real(item: pytest.Item) -> bool:
    """Return whether a test is marked and runs on real processes."""
    return item.get_closest_marker(MARK) is not None and place_of(item) != SIMULATED


def limits(config: pytest.Config, own_s: float | None = None) -> tuple[float, float]:
    """Return the time limits in seconds of a body on real processes, and of its test.

    Args:
        config: Of the session, whose option or ini file may say it. Else it is 30, as cuda-python
            gives a child.
        own_s: What the test itself asks for.

    Raises:
        UsageError: That is no positive number.
    """
    from simrank.validate.children import CHILD_S, MARGIN_S  # noqa: PLC0415 - see above
    from simrank.validate.options import timeout_factor  # noqa: PLC0415 - see above

    asked_for = config.getoption("--ranks-timeout") or config.getini("ranks_timeout")
    given = own_s or asked_for or CHILD_S
    try:
        limit_s = float(given)
    except ValueError:
        limit_s = 0.0
    if not 0.0 < limit_s < float("inf"):
        raise pytest.UsageError(f"ranks_timeout: expected a number of seconds, got {given!r}")
    limit_s *= timeout_factor()
    return limit_s, limit_s + MARGIN_S


def check_places(config: pytest.Config) -> None:
    """Raise for a session whose ranks are not available.

    Raises:
        UsageError: They need torch, which is not installed.
    """
    for name in places(config):
        if REAL.get(name) is not None and importlib.util.find_spec("torch") is None:
            raise pytest.UsageError(f"--ranks-on={name} needs torch, which is not installed")
    if places(config) != [SIMULATED]:
        limits(config)


def check_real(item: pytest.Item) -> None:
    """Skip or refuse a test on real processes that means the simulator; the text says the cure.

    Raises:
        Skipped: The marker says that it runs elsewhere.
        Failed: It asks for what the simulator alone has.
        UsageError: The marker is written wrongly.
    """
    found, place = asked(item), place_of(item)
    if found.on and place not in found.on:
        pytest.skip(f"the marker says on={'|'.join(found.on)}, and this is {place}")
    several = places(item.config)
    if len(several) > 1 and getattr(item, "callspec", None) is None:
        text = f"{item.name}, a method of unittest.TestCase, runs on one of {', '.join(several)}"
        pytest.fail(f"{text}\n  to fix: give one --ranks-on", pytrace=False)
    if place == SIMULATED:
        return
    _check({name: value for name, value in found.options.items() if name not in _OF_SEARCHES})
    reasons = [f"the option {name}=" for name in _VERDICTS if name in found.options]
    if "ctx" in getattr(item, "fixturenames", ()):
        reasons.append("the fixture ctx")
    if reasons:
        refuse(item, f"asks for {' and '.join(reasons)}, which only the simulator has")


def refuse(item: pytest.Item, why: str, to_fix: str = "") -> None:
    """Fail a test that cannot run on real processes.

    Raises:
        Failed: Always.
    """
    cure = to_fix or f'ranks({asked(item).num_ranks}, ..., on="simrank") keeps the test there'
    text = f"--ranks-on={place_of(item)}: {item.name} {why}\n  to fix: {cure}"
    pytest.fail(text, pytrace=False)


# ---- the options of `pytest --simrank`, and whether a session of pytest is to drive ranks ----
# pytest loads this in every run: everything else is imported when it is asked for.

_SHOWS = ("help", "version", "showfixtures", "show_fixtures_per_test", "markers")


def add_options(group: Any) -> None:
    """Add them to a group of pytest's parser."""
    group.addoption(
        "--simrank",
        metavar="N",
        type=int,
        default=None,
        help="run every test on N simulated ranks, as `torchrun --nproc-per-node N -m pytest` does",
    )
    group.addoption(
        "--simrank-cluster",
        metavar="NAME|FILE",
        default=None,
        help="with --simrank: the simulated machine [HGX H100 nodes]",
    )
    group.addoption(
        "--simrank-private",
        metavar="PACKAGE",
        action="append",
        default=None,
        help="with --simrank: a package that each rank executes for itself; repeatable",
    )
    group.addoption(
        "--simrank-devices",
        choices=("simulated", "real"),
        default=None,
        help="with --simrank: CUDA devices, simulated or real [real where torch sees a GPU]",
    )
    group.addoption(
        "--simrank-checks",
        choices=tuple(LEVELS),
        default=None,
        help="with --simrank: mistakes to look for, off, default or all [default]",
    )
    group.addoption(
        "--simrank-divergence", action="store_true", default=None, help=argparse.SUPPRESS
    )


def driver_for(config: pytest.Config) -> Driver | None:
    """Return the driver of ranks if `--simrank` is given; it loads conftests.

    Raises:
        UsageError: The number of ranks is below one.
    """
    asked = config.known_args_namespace
    num_ranks = getattr(asked, "simrank", None)
    if num_ranks is None or _is_part() or any(getattr(asked, name, False) for name in _SHOWS):
        return None
    if num_ranks < 1:
        raise pytest.UsageError(f"--simrank={num_ranks}: expected 1 or more ranks")
    from simrank.suites.driver import Driver  # noqa: PLC0415 - see above

    settings = {
        "cluster": asked.simrank_cluster,
        "private": asked.simrank_private,
        "cuda_devices": asked.simrank_devices,
        "checks": asked.simrank_checks,
        "divergence": asked.simrank_divergence,
    }
    driver = Driver(config, num_ranks, {k: v for k, v in settings.items() if v is not None})
    config.pluginmanager.register(driver, "simrank suites")
    asked.noconftest = True
    return driver


def _is_part() -> bool:
    """Whether the session that starts is one that `--simrank` has made, or a real worker's."""
    session = sys.modules.get("simrank.suites.session")
    current = sys.modules.get("simrank.ranks.current")
    is_rank = current is not None and current.rank_program() is not None
    validate = sys.modules.get("simrank.validate.this_worker")
    is_worker = validate is not None and validate.is_worker()
    return is_rank or is_worker or (session is not None and bool(session.parsing))
