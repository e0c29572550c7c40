"""The body of a marked test in a real worker: its module is imported as pytest imports it.

Conftests are imported, so that they may set up search paths and libraries; their hooks and
fixtures run in the main program only.
"""

from __future__ import annotations

import os
import types
import unittest
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from _pytest import assertion
from _pytest.capture import CaptureFixture
from _pytest.config import _prepareconfig
from _pytest.outcomes import OutcomeException
from _pytest.pathlib import import_path

from simrank.errors import BodyError, NoRankError
from simrank.errors.base import add_note, remade
from simrank.suites.outcomes import finish, reported
from simrank.validate import rank
from simrank.validate.pickling import unpacked
from simrank.validate.this_worker import lend

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# What each rank has by itself, and what its pool adds where the main program has nothing.
_OWN_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "SIMRANK_WORKER",
)  # fmt: skip
_ADDED_VARIABLES = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")

Warned = tuple[type[Warning], str, str, int]
Filter = tuple[str, Any, Any, Any, int]  # As in `warnings.filters`.


@dataclass(frozen=True, slots=True)
class Session:
    """A session of pytest: its command line, where it was called, and its modules' paths."""

    args: tuple[str, ...]
    folder: str


@dataclass(frozen=True, slots=True)
class Body:
    """A test, for a worker.

    Attributes:
        session: Of the main program.
        path: Its file.
        names: Its classes, then its function, from the module on.
        place: Where the ranks run.
        filters: The main program's, of warnings.
        is_property: Whether the function is what Hypothesis makes examples for.
        environment: The main program's.
        folder: The current one.
        values: For each rank, the pickled `Values`.
    """

    session: Session
    path: str
    names: tuple[str, ...]
    place: str
    filters: tuple[Filter, ...]
    is_property: bool
    environment: Mapping[str, str]
    folder: str
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Values:
    """Arguments of a body, by value.

    Attributes:
        arguments: Name -> value.
        ranks: The names that stand for the rank.
        made_there: Name of what each worker makes for itself -> the kind of it.
        instance: Attributes of the test's instance.
        owners: For the module and each class, the attributes that were set since collection.
    """

    arguments: dict[str, Any]
    ranks: tuple[str, ...]
    made_there: dict[str, Any]
    instance: dict[str, Any]
    owners: tuple[dict[str, Any], ...]


def load(session: Session, path: str) -> None:
    """Import a test's module, in a request of its own: the body starts from a fresh state."""
    lend()  # Names of torch are bound as modules are imported.
    _module(session, path)


@cache
def _config(session: Session) -> pytest.Config:
    """Read the command line and import the initial conftests, as the main program did."""
    before = os.getcwd()
    os.chdir(session.folder)
    try:
        config = _prepareconfig([*session.args, "--capture=no"])  # The pool has what is printed.
    finally:
        os.chdir(before)
    item: Any = SimpleNamespace(config=config, ihook=config.hook)
    explaining: Any = assertion.pytest_runtest_protocol(item)
    next(explaining)  # From now on comparisons are explained.
    _kept.append(explaining)
    return config


_kept: list[Any] = []


@cache
def _module(session: Session, path: str) -> types.ModuleType:
    config = _config(session)
    mode, root = config.getoption("importmode"), config.rootpath
    with_namespaces = {
        "consider_namespace_packages": config.getini("consider_namespace_packages"),
    }
    config.pluginmanager._loadconftestmodules(Path(path), mode, root, **with_namespaces)
    return import_path(path, mode=mode, root=root, **with_namespaces)


def run(body: Body) -> list[Warned]:
    """Run a body on this rank; return its warnings.

    Raises:
        BodyError: It raised; the error has what pytest shows of that.
    """
    module = _module(body.session, body.path)
    lend()
    own = {name: os.environ[name] for name in _OWN_VARIABLES if name in os.environ}
    added = {name: os.environ[name] for name in _ADDED_VARIABLES if name in os.environ}
    os.environ.clear()
    os.environ.update(added | dict(body.environment) | own)
    os.chdir(body.folder)
    try:
        values: Values = unpacked(body.values[rank()])
        with (
            pytest.MonkeyPatch.context() as patches,
            warnings.catch_warnings(record=True) as log,
        ):
            call = _callable(module, body, values, patches)
            _filter_warnings(body.filters)
            if body.is_property:  # `assume` asks for the example, which the main program makes.
                warnings.filterwarnings("ignore", message=".*outside a property-based test")
            _call(call, values)
    except BaseException as error:
        if isinstance(error, NoRankError):
            add_note(
                error,
                f"simrank: this rank is a real process ({body.place}), not a simulated one\n"
                '  to fix: torch.distributed runs on both; ranks(..., on="simrank") keeps it there',
            )
        failure = reported(error)
        facts = (failure.kind, failure.text, failure.place, failure.shown)
        if isinstance(error, OutcomeException):  # pytest hides where its classes are from pickle.
            raise BodyError(*facts, outcome=type(error).__name__) from error
        raise BodyError(*facts, pickled=remade(error)) from error
    return [(w.category, str(w.message), w.filename, w.lineno) for w in log or ()]


def _filter_warnings(filters: Sequence[Filter]) -> None:
    """Filter warnings as in the main program."""
    warnings.resetwarnings()
    for action, message, category, module, line in reversed(filters):
        texts = [getattr(pattern, "pattern", pattern) or "" for pattern in (message, module)]
        kind: Any = action
        warnings.filterwarnings(kind, texts[0], category, texts[1], line)


def _callable(
    module: types.ModuleType, body: Body, values: Values, patches: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Return the function of a test; of a method, bound to an instance."""
    owners: list[Any] = [module]
    for name in body.names[:-1]:
        owners.append(getattr(owners[-1], name))
    for owner, attributes in zip(owners, values.owners, strict=True):
        for name, value in attributes.items():
            patches.setattr(owner, name, value, raising=False)
    own, name = owners[-1], body.names[-1]
    if len(owners) > 1:
        own = own(name) if issubclass(own, unittest.TestCase) else own()
        vars(own).update(values.instance)
    call: Any = getattr(own, name)
    if body.is_property:
        inner = call.hypothesis.inner_test
        return inner if len(owners) == 1 else types.MethodType(inner, own)
    found: Callable[..., Any] = call
    return found


def _call(call: Callable[..., Any], values: Values) -> None:
    arguments = values.arguments | dict.fromkeys(values.ranks, rank())
    with ExitStack() as made:
        for name, kind in values.made_there.items():
            arguments[name] = made.enter_context(_made(kind))
        try:
            finish(call(**arguments))
        except SystemExit as error:  # As of a simulated rank: None and 0 are success.
            if error.code not in (None, 0):
                raise


def _made(kind: Any) -> Any:
    """Return the context of a fixture that each process makes itself."""
    if kind is pytest.MonkeyPatch:
        return pytest.MonkeyPatch.context()
    return _Captured(kind)


class _Captured:
    """Captures the output of this process, as `capsys` and `capfd`."""

    def __init__(self, kind: type) -> None:
        self._fixture: Any = CaptureFixture(kind, None, _ispytest=True)  # type: ignore[arg-type]

    def __enter__(self) -> Any:
        self._fixture._start()
        return self._fixture

    def __exit__(self, *_: object) -> None:
        self._fixture.close()
