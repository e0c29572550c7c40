"""The pytest session of one rank, which runs on the rank's thread."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest
from _pytest.config import _prepareconfig
from _pytest.main import Session
from _pytest.skipping import xfailed_key

from simrank.distributed.group import membership
from simrank.multiprocessing.script import program_imports
from simrank.ranks.current import rank_program

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
parsing: list[LoneSession] = []  # Who reads the command line now: ranks are not to be made again.


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
        self._program: Program | None = None
        self.items: dict[str, pytest.Item] = {}
        self.item: pytest.Item | None = None
        self._session: Any = None
        self._recorder = _Recorder(phase_over, self.note_lasting)

    def parse(self) -> None:
        """Read the command line and the initial conftests."""
        self._program = program = rank_program()
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
        return None if self._program is None else membership(self._program).default

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
        self.warnings: list[dict[str, Any]] = []

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
        report = yield
        is_body = call.when == "call" or (call.when == "setup" and not report.passed)
        if is_body and not self.is_over:
            if report.failed:  # The rank may be ended while it waits.
                self.reports.append(report)
            self._phase_over(report.failed)
        return report


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
