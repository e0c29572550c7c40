"""The pytest session of one rank, on the rank's thread, and the simulation of all sessions."""

from __future__ import annotations

import io
import os
import sys
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest
from _pytest.config import _prepareconfig
from _pytest.main import Session
from _pytest.skipping import xfailed_key

from simrank.context import Context
from simrank.distributed.group import membership
from simrank.engine import Handle, NamedWait
from simrank.errors import SimrankError
from simrank.isolation import libraries
from simrank.isolation.extension import OWN_MODULES
from simrank.multiprocessing.script import program_imports
from simrank.multiprocessing.spawn import spawn_in
from simrank.ranks.current import for_real, rank_program

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from simrank.distributed.group import ProcessGroup
    from simrank.ranks import Program

# What pytest does once per process: the session that drives the ranks does it for them.
_ONCE = (
    "assertion",
    "debugging",
    "faulthandler",
    "threadexception",
    "unraisableexception",
    "terminalprogress",
)
_NEVER = ("lfplugin", "nfplugin", "stepwiseplugin", "_cov", "timeout", "junitxml")
# What selects tests, stops a run or reports it is for the session that drives the ranks, too.
_NEUTRAL: dict[str, Any] = {
    "keyword": "", "markexpr": "", "lf": False, "failedfirst": False, "newfirst": False,
    "deselect": None, "maxfail": 0, "usepdb": False, "trace": False, "collectonly": False,
    "stepwise": False, "cacheclear": False, "durations": None, "xmlpath": None, "pastebin": None,
    "dist": "no", "tx": [], "numprocesses": None, "simrank": None,
}  # fmt: skip
_SESSION = "pytest session"  # In `Program.local`.
ENDED = "simrank has ended the rank"  # What stands for the failure of such a rank.
parsing: list[
    LoneSession
] = []  # Sessions that read the command line now: ranks are not made again.


class RankSession:
    """pytest on one rank.

    Args:
        args: The command line.
        phase_over: Called when a test's body has ended, with whether it failed; may wait.

    Attributes:
        config: Made by `parse`.
        lasting: The default group that modules and fixtures beyond one test have made, or None.
        items: The tests by node id, made by `collect`.
        item: The test that runs.
    """

    def __init__(self, args: Sequence[str], phase_over: Callable[[bool], None]) -> None:
        self._args = args
        self._phase_over = phase_over
        self.config: Any = None
        self.lasting: ProcessGroup | None = None
        self.program: Program | None = None
        self.items: dict[str, pytest.Item] = {}
        self.item: pytest.Item | None = None
        self._session: Any = None
        self._recorder = _Recorder(phase_over, self.note_lasting)

    def parse(self) -> None:
        """Read the command line and the initial conftests."""
        self.program = program = rank_program()
        if program is not None:
            program.local[_SESSION] = self
        self.config = _prepareconfig([*self._args, "--assert=plain"])  # Rewritten code is shared.
        for name, value in _NEUTRAL.items():
            if hasattr(self.config.option, name):
                setattr(self.config.option, name, value)

    def collect(self, file: Path | None = None) -> None:
        """Configure plugins, start the session and collect its tests.

        Args:
            file: The only file to collect; None: what the command line names.
        """
        if file is not None:
            self.config.args = [str(file)]
        plugins = self.config.pluginmanager
        for name in _ONCE:
            plugins.unregister(name=name)
        plugins.register(self._recorder, "simrank reports")
        plugins.register(_Endings(self._recorder), "simrank endings")
        shown, sys.stdout = sys.stdout, io.StringIO()  # Where the rank's terminal reporter writes.
        try:
            self.config._do_configure()
        finally:
            sys.stdout = shown
        for name in _NEVER:
            plugins.unregister(name=name)
        _keep_logs_apart(plugins.get_plugin("logging-plugin"), self)
        self._session = session = Session.from_config(self.config)
        session.exitstatus = pytest.ExitCode.OK
        self.config.hook.pytest_sessionstart(session=session)
        self.config.hook.pytest_collection(session=session)
        self.items = {item.nodeid: item for item in session.items}
        self.note_lasting()

    @property
    def default_group(self) -> ProcessGroup | None:
        """The default group of the rank, or None."""
        return None if self.program is None else membership(self.program).default

    def note_lasting(self) -> None:
        """Note that the default group of now is no test's own."""
        self.lasting = self.default_group

    def collect_file(self, file: Path) -> None:
        """Collect the tests of a further file."""
        for item in self._session.perform_collect([str(file)]):
            self.items.setdefault(item.nodeid, item)

    @property
    def initial_paths(self) -> frozenset[Any]:
        """The paths on the command line."""
        return frozenset(self._session._initialpaths)

    @property
    def collect_reports(self) -> list[pytest.CollectReport]:
        """The reports of collection."""
        return self._recorder.collected

    def take_reports(self) -> list[pytest.TestReport]:
        """Return the reports since the last call."""
        taken, self._recorder.reports = self._recorder.reports, []
        return taken

    def take_warnings(self) -> list[dict[str, Any]]:
        """Return the warnings since the last call, as keywords of the hook."""
        taken, self._recorder.warnings = self._recorder.warnings, []
        return taken

    def run(self, nodeid: str, next_nodeid: str | None) -> None:
        """Run a test; fixtures that the next one needs stay."""
        self.item = item = self.items[nodeid]
        following = None if next_nodeid is None else self.items.get(next_nodeid)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def note_end(self) -> None:
        """Mark the rank as ended: later reports are ignored."""
        self._recorder.is_over = True

    def is_expected(self, error: BaseException) -> bool:
        """Return whether the test that runs is marked to fail, in this way."""
        mark = None if self.item is None else self.item.stash.get(xfailed_key, None)
        return mark is not None and (
            mark.raises is None or isinstance(error, cast("Any", mark.raises))
        )

    def finish(self) -> None:
        """End the session: fixtures of its scope, then the plugins."""
        self.config.hook.pytest_sessionfinish(session=self._session, exitstatus=0)
        self.config._ensure_unconfigure()


def abandon(session: RankSession) -> None:
    """Close the open resources of a session whose rank has ended."""
    plugin = (
        None
        if session.config is None
        else session.config.pluginmanager.get_plugin("logging-plugin")
    )
    if plugin is not None:
        plugin.pytest_unconfigure()


def current_session() -> RankSession | None:
    """Return the session of the running rank, if it has one."""
    program = rank_program()
    return None if program is None else program.local.get(_SESSION)


class _Recorder:
    """Plugin of a rank's session that keeps its reports."""

    def __init__(
        self, phase_over: Callable[[bool], None], note_lasting: Callable[[], None]
    ) -> None:
        self._phase_over = phase_over
        self._note_lasting = note_lasting
        self.is_over = False
        self.reports: list[pytest.TestReport] = []
        self.collected: list[pytest.CollectReport] = []
        self._folders: dict[Path, pytest.Collector] = {}
        self.warnings: list[dict[str, Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_directory(
        self, path: Path
    ) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
        """Keep the collector of a folder for further files: fixtures of its conftest are its own.

        Since pytest 9.1 another collector of the folder has none of them.
        """
        made = yield
        return None if made is None else self._folders.setdefault(path, made)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """Note the default group that a fixture of several tests has made."""
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._note_lasting()

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        """Note that a fixture of several tests has destroyed the default group."""
        if fixturedef.scope != "function":
            self._note_lasting()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep it, unless the rank was ended."""
        if report not in self.reports and not self.is_over:
            self.reports.append(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep it."""
        self.collected.append(report)

    def pytest_warning_recorded(
        self, warning_message: object, when: str, nodeid: str, location: object
    ) -> None:
        """Keep it."""
        self.warnings.append(
            {"warning_message": warning_message, "when": when, "nodeid": nodeid,
             "location": location}
        )  # fmt: skip

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Report the end of the body; a failed rank waits for the other ranks' bodies.

        Its teardown must not answer calls that the others make in their bodies.
        """
        with ExitStack() as printing:
            if call.excinfo is not None and (name := "torch._tensor_str") in sys.modules:
                printing.enter_context(mock.patch(f"{name}._tensor_str", text_of_copy()))
            report = yield
        is_body = call.when == "call" or (call.when == "setup" and not report.passed)
        if is_body and not self.is_over:
            if report.failed:  # The rank may be ended while it waits.
                self.reports.append(report)
            self._phase_over(report.failed)
        return report


def text_of_copy() -> Callable[..., str]:
    """Return a function that prints a copy on the host: printing waits for each element."""
    original = sys.modules["torch._tensor_str"]._tensor_str
    return lambda tensor, indent: original(tensor.cpu(), indent)


class _Endings:
    """Plugin of a rank's session that shortens reports of ended ranks.

    Args:
        recorder: That of the session.
    """

    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> pytest.TestReport | None:
        """Make a short report."""
        if not self._recorder.is_over:
            return None
        when: Any = call.when
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", ENDED, when)


def _go_on(failed: bool) -> None:
    """Continue without a wait."""


class LoneSession(RankSession):
    """The session of tests that start ranks themselves: in the main program, outside of ranks.

    Args:
        args: The command line.
    """

    def __init__(self, args: Sequence[str]) -> None:
        super().__init__(args, _go_on)
        self._imports = program_imports()
        self._imports.__enter__()

    def parse(self) -> None:
        """Read the command line and the initial conftests."""
        parsing.append(self)
        try:
            super().parse()
        finally:
            parsing.pop()

    def finish(self) -> None:
        """End the session, and forget the suite's modules."""
        try:
            super().finish()
        finally:
            self._imports.__exit__(None, None, None)


def _keep_logs_apart(plugin: Any, session: RankSession) -> None:
    """Filter other ranks' records from the handlers of a rank's `caplog`."""
    if plugin is not None:
        for name in ("caplog_handler", "report_handler", "log_file_handler", "log_cli_handler"):
            getattr(plugin, name).addFilter(lambda _: current_session() in (session, None))


# ---- the simulation of the ranks' sessions; the hub gives all ranks their next order ----

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Order = Callable[[RankSession], None]

_AT_REST = "has ended the test"


class SuiteRanks:
    """The ranks of a suite, each with a session.

    Args:
        num_ranks: How many.
        args: pytest's command line.
        folder: Where tests make temporary files, a folder per rank; None: pytest's own.
        settings: Of the Context.

    Attributes:
        num_ranks: As given.
        sessions: The ranks' sessions, in rank order.
        failed: Ranks whose test has failed.
        is_over: Whether ranks have ended; another world is needed.
    """

    def __init__(
        self, num_ranks: int, args: Sequence[str], folder: str | None, settings: Mapping[str, Any]
    ) -> None:
        if find_spec("torch") is not None:  # Now: ranks read it as they start.
            import_module("torch")
        self.num_ranks = num_ranks
        self.failed: set[int] = set()
        self.is_over = False
        self._through = 0
        self._settled = Handle()
        self._done = Handle()
        self._gates = [NamedWait(_AT_REST)]  # One for each order; the last is closed.
        self._order: Order | None = None
        self._left: set[int] = set()
        self.sessions = [
            RankSession(
                [*args, *([f"--basetemp={folder}{rank}"] if folder is not None else ())],
                partial(self._phase_over, rank),
            )
            for rank in range(num_ranks)
        ]
        self._stdin = sys.stdin
        self._context = Context.for_ranks(num_ranks, **{"carrier": "thread", **settings})
        self._context.program.local[OWN_MODULES] = True
        self._imports = program_imports()
        self._imports.__enter__()
        self._context.__enter__()
        processes = spawn_in(
            self._context.program, self._live, (), num_ranks, join=False, is_users=False
        )
        assert processes is not None, "not joined"
        self._processes = processes
        self._between = ExitStack()  # While the driving session goes on, nothing is simulated.
        self._between.enter_context(for_real())

    @property
    def now_ps(self) -> int:
        """Simulated time in picoseconds."""
        return self._context.now_ps

    def is_clean(self) -> bool:
        """Return whether a test has left nothing behind that the next one could meet.

        That is: default groups are those of modules and of fixtures beyond the test, nothing is in
        flight, no thread is left, and the members of each group have made equally many calls.
        """
        engine = self._context.engine
        if self.is_over or engine.pending or len(engine.tasks) > self.num_ranks:
            return False
        if any(session.default_group is not session.lasting for session in self.sessions):
            return False
        library = self._context.comm_library
        groups = [group for world in library.worlds.values() for group in world.groups()]
        return not library.leaks.unreceived() and all(group.is_even() for group in groups)

    def tell(self, order: Order) -> None:
        """Send an order to the ranks, and wait until all have carried it out.

        Args:
            order: Called with the session of each.

        Raises:
            DeadlockError, LivelockError: They wait forever; the world is over.
            BaseException: What a rank raised that pytest does not report.
        """
        engine, group = self._context.engine, self._processes.group
        self._left, self.failed, self._through = set(range(self.num_ranks)), set(), 0
        self._settled, self._done, self._order = NamedWait("has failed"), Handle(), order
        if len(self._gates) == 1:
            group.on_complete(self._all_gone)
        self._gates.append(NamedWait(_AT_REST))
        self._gates[-2].finish(engine)
        self._between.close()
        try:
            engine.run(until=self._done)
        except BaseException as error:
            self.end(error)
            raise
        finally:
            if not self.is_over:
                self._between.enter_context(for_real())
        if group.failed:
            failure = group.failed[0].error
            self.end(failure)
            assert failure is not None, "it has failed"
            raise failure

    def revive(self) -> None:
        """Give the ranks other threads, in a fork that was made while they were at rest."""
        for rank, task in enumerate(self._processes.group.tasks):
            task.revive(partial(self._live_on, rank, len(self._gates) - 1))

    def _live_on(self, rank: int, number: int) -> None:
        program = self.sessions[rank].program
        assert program is not None, "it has parsed"
        libraries.lose_threads(program)
        libraries.begin_thread(program)
        self._live(rank, number)

    def end(self, error: BaseException | None = None) -> None:
        """End the ranks, and leave the simulation."""
        if self.is_over:
            return
        self.is_over = True
        self._between.close()
        for session in self.sessions:
            session.note_end()
        try:
            self._processes.group.abort()
            if self._processes in self._context.unjoined:
                self._context.unjoined.remove(self._processes)
        finally:
            try:
                cause = SimrankError("the world is over") if error is None else error
                self._context.__exit__(type(cause), cause, cause.__traceback__)
            finally:
                self._imports.__exit__(None, None, None)
                sys.stdin = self._stdin
                for session in self.sessions:
                    abandon(session)

    def _all_gone(self) -> None:
        if not self._done.complete:
            self._done.finish(self._context.engine)

    # ---- on a rank ----

    def _live(self, rank: int, first: int = 0) -> None:
        """Carry out orders, from a number on, until the world ends."""
        engine = self._context.engine
        os.environ.pop("PYTEST_CURRENT_TEST", None)  # Of the session that drives this.
        for number in count(first):
            engine.wait(self._gates[number])
            assert self._order is not None, "the gate is open"
            self._order(self.sessions[rank])
            self._left.discard(rank)
            if not self._left:
                self._done.finish(engine)

    def _phase_over(self, rank: int, failed: bool) -> None:
        """Record the end of a rank's body; a failed rank waits for the other ranks."""
        self._through += 1
        if failed:
            self.failed.add(rank)
        if self._through == self.num_ranks and not self._settled.complete:
            self._settled.finish(self._context.engine)
        if failed:
            self._context.engine.wait(self._settled)
