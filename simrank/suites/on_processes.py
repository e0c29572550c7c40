"""Bodies of marked tests on real processes: one pool per number of ranks and backend."""

from __future__ import annotations

import os
import sys
import unittest
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.capture import CaptureFixture

from simrank.errors import (
    MAX_REPORT_LINES,
    BodyError,
    PoolError,
    RanksRaisedError,
    RankState,
    TooFewDevicesError,
    ranks_text,
    states_text,
)
from simrank.errors.base import made_again
from simrank.suites.marker import RANK, REAL, asked, is_real, limits, place_of, refuse
from simrank.suites.outcomes import Reported, expected_by, raise_by_rank
from simrank.suites.worker_body import Body, Session, Values, load
from simrank.suites.worker_body import run as run_body
from simrank.validate import Limits, Options, WorkerPool, pickling
from simrank.validate.options import timeout_factor
from simrank.validate.testing import OUTER_LIMITS, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from simrank.suites.worker_body import Warned

_AGAIN = "the workers were killed; the next test has fresh ones"
_END_S = 10.0  # assumed: what a pool needs to end, of the margin that a test has for it
# Where the classes of pytest's fixtures are that belong to the main program.
_OF_MAIN = ("cacheprovider", "config", "fixtures", "logging", "pytester", "recwarn", "subtests")
# Exceptions of pytest's that are no failures of a rank, or one that a body asks for.
_OUTCOMES = {
    kind.Exception.__name__: kind.Exception for kind in (pytest.exit, pytest.fail, pytest.xfail)
}
_LIMIT, _LONGEST = pytest.StashKey[float](), pytest.StashKey[float]()
_COLLECTED = pytest.StashKey[dict[int, dict[str, Any]]]()


class RealRanks:
    """The pools of a pytest session, started at their first use.

    Args:
        config: Of the session.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._pools: dict[tuple[int, str], _Pool] = {}
        self._num_devices: dict[str, int] = {}  # Place -> GPUs, once they were too few.
        self._session = _session_of(config)

    def run(
        self, item: pytest.Function, body: Callable[..., Any], values: Mapping[str, Any]
    ) -> None:
        """Run a marked test.

        Raises:
            Skipped: There are too few GPUs.
            Failed: Ranks have failed, or what the body needs cannot go to workers.
        """
        pool = self._pool(item)
        self._check_devices(item)
        found = _values(item, getattr(body, "__self__", None), values)
        error: PoolError | None = None
        warned = []
        try:
            warned = pool.run(self._body(item, body, found, pool), item.stash[_LIMIT])
        except TooFewDevicesError as few:
            self._num_devices[place_of(item)] = few.found
            self._check_devices(item)
            raise
        except PoolError as raised:
            error = raised
        if self._config.getoption("capture") != "no":  # Else it was shown as it came.
            _add_output(item, pool.outputs(error))
        if error is not None:
            _raise(item, error, is_killed=pool.is_down)
        for kind, text, file, line in dict.fromkeys(w for of_rank in warned for w in of_rank):
            warnings.warn_explicit(text, kind, file, line)

    def _check_devices(self, item: pytest.Item) -> None:
        """Skip a test for which too few GPUs were found before."""
        needed, found = asked(item).num_ranks, self._num_devices.get(place_of(item))
        if found is not None and needed > found:
            pytest.skip(f"needs {needed} GPUs, found {found}")

    def restarts(self) -> list[str]:
        """Return the restarts of each pool, with reasons."""
        return [text for pool in self._pools.values() for text in pool.restarts()]

    def close(self) -> None:
        """End all workers."""
        for pool in self._pools.values():
            pool.close()

    def _pool(self, item: pytest.Function) -> _Pool:
        key = asked(item).num_ranks, place_of(item)
        if key not in self._pools:
            self._pools[key] = _Pool(*key, self._config)
        return self._pools[key]

    def _body(
        self, item: pytest.Function, body: Callable[..., Any], values: Values, pool: _Pool
    ) -> Body:
        names = [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
        return Body(
            session=self._session,
            path=str(item.path),
            names=(*names, item.originalname),
            place=place_of(item),
            filters=tuple(warnings.filters),
            is_property=hasattr(item.obj, "hypothesis") and not hasattr(body, "hypothesis"),
            environment=dict(os.environ),
            folder=os.getcwd(),
            values=_parcels(item, values, pool.num_ranks),
        )


def _session_of(config: pytest.Config) -> Session:
    """Return the command line for workers, independent of their current folder."""
    params = config.invocation_params
    found = [f"--import-mode={config.getoption('importmode')}", f"--rootdir={config.rootpath}"]
    if config.inipath is not None:
        found.append(f"--config-file={config.inipath}")
    return Session((*map(str, params.args), *found), str(params.dir))


class _Pool:
    """A pool, and the modules of its workers."""

    def __init__(self, num_ranks: int, place: str, config: pytest.Config) -> None:
        self.num_ranks = num_ranks
        self._place = place
        limit_s = config.stash[_LONGEST] / timeout_factor()  # torch's own limit is beyond that.
        start_s = (limits(config)[1] - _END_S) / timeout_factor()
        echo = sys.stdout if config.getoption("capture") == "no" else None
        # A test is run once: what makes it pass at the second time is no business of its pool.
        limits_ = Limits(start_s=start_s)
        options = Options(limits=limits_, retry=False, echo=echo, shares_modules=True)
        self._pool = WorkerPool(num_ranks, REAL[place], limit_s, options=options)
        self._loaded: set[tuple[int, str]] = set()

    def run(self, body: Body, limit_s: float) -> list[list[Warned]]:
        """Run a body; its module is loaded first, in a request of its own."""
        self._pool.start()
        key = self._pool.num_starts, body.path
        if key not in self._loaded:
            self._pool.run(load, body.session, body.path)
            self._loaded.add(key)
        return self._pool.run(run_body, body, timeout=limit_s)

    @property
    def is_down(self) -> bool:
        """Whether there are no workers now."""
        return not self._pool.pids

    def outputs(self, error: PoolError | None) -> dict[int, str]:
        """Return the ranks' output; of ended ranks from the error."""
        if self.is_down:
            return {} if error is None else error.outputs
        return {rank: self._pool.output(rank) for rank in range(self.num_ranks)}

    def restarts(self) -> list[str]:
        """Return the number of restarts of workers, with reasons."""
        if self._pool.num_starts < 2:
            return []
        many = f"{self.num_ranks} ranks on {self._place} were started {self._pool.num_starts} times"
        return [many, *(f"  {event}" for event in self._pool.events)]

    def close(self) -> None:
        """End the workers."""
        self._pool.close()


# ---- what goes to the workers ----


def remember(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Save the attributes of modules and classes after collection, and set time limits.

    Setup functions may add to a module and a class. A `timeout` that the user wrote is the limit of
    the body; the test in all has a margin more.
    """
    known = config.stash.setdefault(_COLLECTED, {})
    outer = config.stash.setdefault(OUTER_LIMITS, {})
    for item in items:
        if not is_real(item):
            continue
        for owner in _owners(item):
            known.setdefault(id(owner), dict(vars(owner)))
        given = item.get_closest_marker("timeout")
        own_s = None if given is None else seconds_of(given)
        limit_s, outer_s = limits(config, own_s)
        item.stash[_LIMIT] = limit_s
        config.stash[_LONGEST] = max(limit_s, config.stash.get(_LONGEST, 0.0))
        outer[item.nodeid] = outer_s
        if config.pluginmanager.hasplugin("timeout") and own_s != 0.0:  # That says: no limit.
            others = {} if given is None else {**given.kwargs, "timeout": outer_s}
            mark = pytest.mark.timeout(**others) if others else pytest.mark.timeout(outer_s)
            item.add_marker(mark, append=False)


def _owners(item: pytest.Item) -> list[Any]:
    """Return a test's module and its classes, from the outermost."""
    kinds = pytest.Module, pytest.Class
    return [node.obj for node in item.listchain() if isinstance(node, kinds)]


def _values(item: pytest.Function, instance: Any, values: Mapping[str, Any]) -> Values:
    """Return the arguments of a body; raise for values that only the main program has."""
    instance = getattr(item, "instance", None) if instance is None else instance
    arguments = dict(values)
    made_there: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, pytest.MonkeyPatch):
            made_there[name] = pytest.MonkeyPatch
        elif isinstance(value, CaptureFixture):
            made_there[name] = value.captureclass
        elif type(value).__module__ in [f"_pytest.{of_main}" for of_main in _OF_MAIN]:
            why = f"asks for the fixture {name}, which belongs to the main program"
            refuse(item, why, "ask for it in a fixture of your own, which runs there")
    _check_patches(item)
    known = item.config.stash.get(_COLLECTED, {})
    ranks = tuple(name for name, value in values.items() if value is RANK)
    for name in (*ranks, *made_there):
        del arguments[name]
    return Values(
        arguments=arguments,
        ranks=ranks,
        made_there=made_there,
        instance=_attributes(instance),
        owners=tuple(_set_since(owner, known.get(id(owner), {})) for owner in _owners(item)),
    )


def _check_patches(item: pytest.Function) -> None:
    """Raise for a test whose fixtures patch objects that workers do not share."""
    patches: Any = item.funcargs.get("monkeypatch")
    if isinstance(patches, pytest.MonkeyPatch):
        names = [name for _, name, _ in patches._setattr]
        names += [str(key) for mapping, key, _ in patches._setitem if mapping is not os.environ]
        names += ["sys.path"] if patches._savesyspath is not None else []
        if names:
            why = f"has patched {', '.join(names)} in the main program, which workers do not see"
            refuse(item, why, "patch it in the body: `monkeypatch` is each rank's own there")


def _attributes(instance: Any) -> dict[str, Any]:
    """Return the attributes that setup functions have set on a test's instance."""
    if instance is None:
        return {}
    own = dict(vars(instance))
    if isinstance(instance, unittest.TestCase):
        for name in vars(type(instance)(instance._testMethodName)):
            own.pop(name, None)
        own = {name: value for name, value in own.items() if name != instance._testMethodName}
    return own


def _set_since(owner: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that a module or class was given since it was collected."""
    return {
        name: value
        for name, value in vars(owner).items()
        if not name.startswith(("__", "@")) and before.get(name, before) is not value
    }


def _parcels(item: pytest.Function, values: Values, num_ranks: int) -> tuple[bytes, ...]:
    """Return the values for each rank.

    Raises:
        Failed: One cannot be pickled; the text names it.
    """
    try:
        return tuple(pickling.parcels(values, num_ranks))
    except Exception as error:
        for what, value in _named(values):
            try:
                pickling.packed(value)
            except Exception as own:  # noqa: BLE001 - a program's own classes may raise anything
                text = str(own).partition("\n")[0]
                why = f"needs {what}, which cannot go to another process: {text}"
                refuse(item, why, "make it in the body, or of what can be pickled")
        raise error


def _named(values: Values) -> Iterator[tuple[str, Any]]:
    for name, value in values.arguments.items():
        yield f"the value of {name} (a {type(value).__name__})", value
    for name, value in values.instance.items():
        yield f"self.{name} (a {type(value).__name__})", value
    for attributes in values.owners:
        for name, value in attributes.items():
            yield f"{name} (a {type(value).__name__}), set before the body", value


# ---- what comes back ----


def _raise(item: pytest.Function, error: PoolError, *, is_killed: bool) -> None:
    """Raise the failures of ranks, as for simulated ranks."""
    expected = expected_by(item)
    if isinstance(error, RanksRaisedError):
        failures = {rank: _reported(error, rank) for rank in error.errors}
        end = [*_others(error), *([_AGAIN] if is_killed else [])]
        raise_by_rank(failures, f" on {place_of(item)}", expected, end)
    if isinstance(error, expected):
        raise error
    pytest.fail(f"{type(error).__name__}: {error}", pytrace=False)


def _reported(error: RanksRaisedError, rank: int) -> Reported:
    """Return a rank's failure, as it was shown there."""
    found = error.errors[rank]
    if not isinstance(found, BodyError):
        shown = error.tracebacks.get(rank, str(found))
        return Reported(found, type(found).__name__, str(found).partition("\n")[0], shown, shown)
    cause: BaseException = RuntimeError(str(found))
    if found.outcome == "Skipped":
        cause = pytest.skip.Exception(found.text, _use_item_location=True)
    elif found.outcome:
        cause = _OUTCOMES[found.outcome](found.text)
    elif found.pickled is not None:
        cause = made_again(found.pickled)
    return Reported(cause, found.kind, found.text, found.place, found.shown)


def _others(error: RanksRaisedError) -> list[str]:
    """Return the positions of ranks that a failure has ended."""
    alike: dict[tuple[str, str | None, int | None], list[int]] = {}
    for rank, facts in error.facts.items():
        if facts.waits:
            alike.setdefault((facts.doing, facts.file, facts.line), []).append(rank)
    states = [RankState(tuple(ranks), *what, waits=True) for what, ranks in alike.items()]
    return ["ended there:", *states_text(states, MAX_REPORT_LINES)] if states else []


def _add_output(item: pytest.Function, outputs: Mapping[int, str]) -> None:
    """Add the ranks' output to a report, equal texts once."""
    alike: dict[str, list[int]] = {}
    for rank, text in outputs.items():
        if text.strip():
            alike.setdefault(text, []).append(rank)
    for text, ranks in alike.items():
        word = "rank" if len(ranks) == 1 else "ranks"
        item.add_report_section("call", f"output of {word} {ranks_text(ranks)}", text)
