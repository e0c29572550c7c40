"""The plugin of the session that drives the ranks: it has the terminal, selects and reports."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest.outcomes import Failed

from simrank.errors import DeadlockError, LivelockError, ranks_text
from simrank.suites.session import LoneSession, RankSession, SuiteRanks, current_session
from simrank.suites.spare import RemoteOutcome, Spare, can_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from _pytest._io import TerminalWriter


# ---- one report from the reports of several ranks, equal ones once ----

PHASES = ("setup", "call", "teardown")
_MAX_LINES = 3  # Of a message whose place has been shown in full.


class RankFailure(NamedTuple):
    """A failure of ranks (none: all): place, reason, text."""

    ranks: list[int]
    path: str
    line: int
    message: str
    shown: Any

    @property
    def label(self) -> str:
        """Return `rank 3` or `ranks 0-2`."""
        word = "rank" if len(self.ranks) == 1 else "ranks"
        return f"{word} {ranks_text(self.ranks)}"


class RanksRepr(TerminalRepr):
    """The text of the ranks' failures.

    Args:
        failures: Equal ones together.
        num_ranks: How many ranks ran.
        others: What the others did: lines.

    Attributes:
        reprcrash: What the summary shows.
    """

    def __init__(
        self, failures: Sequence[RankFailure], num_ranks: int, others: Sequence[str] = ()
    ) -> None:
        self._failures = failures
        self._others = others
        first = failures[0]
        all_agree = len(failures) == 1 and len(first.ranks) == num_ranks
        who = f"all {num_ranks} ranks" if all_agree and num_ranks > 1 else first.label
        message = first.message if num_ranks == 1 or not first.ranks else f"{who}: {first.message}"
        self.reprcrash = ReprFileLocation(first.path, first.line, message)

    def toterminal(self, tw: TerminalWriter) -> None:
        """Show each failure under its ranks; of several at one line the first in full."""
        shown: dict[tuple[str, int], str] = {}
        for number, failure in enumerate(self._failures):
            if number:
                tw.line()
            place = (failure.path, failure.line)
            if place in shown:
                tw.line(f"on {failure.label}, at the same line as on {shown[place]}:")
                for line in failure.message.splitlines()[:_MAX_LINES]:
                    tw.line(f"E   {line}", red=True, bold=True)
                continue
            shown[place] = failure.label
            if failure.ranks:
                tw.line(f"on {failure.label}:")
            if hasattr(failure.shown, "toterminal"):
                failure.shown.toterminal(tw)
            else:
                tw.line(str(failure.shown))
        for line in self._others:
            tw.line(line)


def failures_of(reports: Mapping[int, Any]) -> list[RankFailure]:
    """Return the failures of ranks, grouped by place and message."""
    found: dict[tuple[str, int, str], RankFailure] = {}
    for rank, report in reports.items():
        if not report.failed:
            continue
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is None:
            text = str(report.longrepr).strip()
            key = (str(report.fspath), 0, text.rpartition("\n")[2])
        else:
            key = (crash.path, crash.lineno, crash.message)
        if key in found:
            found[key].ranks.append(rank)
        else:
            found[key] = RankFailure([rank], *key, report.longrepr)
    return list(found.values())


def merged(
    when: str,
    reports: Mapping[int, pytest.TestReport],
    num_ranks: int,
    others: Sequence[str] = (),
) -> pytest.TestReport:
    """Return one report of a phase of a test.

    It has failed if it has on a rank, and is skipped if it is on all. Where some ranks fail as the
    test is marked to, it has: what the others then say of passing is no failure.
    """
    expected = [
        r for r, report in reports.items() if hasattr(report, "wasxfail") and report.skipped
    ]
    considered = dict(reports)
    if expected:
        considered = {r: report for r, report in reports.items() if not _is_unexpected_pass(report)}
    failures = failures_of(considered)
    skipped = [rank for rank, report in reports.items() if report.skipped]
    first = next(iter(reports.values()))
    outcome: Any = "passed"
    longrepr: Any = None
    if failures:
        outcome, longrepr = "failed", RanksRepr(failures, num_ranks, others)
    elif expected or len(skipped) == len(reports):
        outcome = "skipped"
        first = reports[expected[0] if expected else skipped[0]]
        longrepr = first.longrepr
    report = pytest.TestReport(
        first.nodeid, first.location, dict(first.keywords), outcome, longrepr, when,  # type: ignore[arg-type]
        _sections(reports, num_ranks), user_properties=list(first.user_properties),
    )  # fmt: skip
    if hasattr(first, "wasxfail") and not failures:
        report.wasxfail = first.wasxfail
    return report


def skip_text(reports: Mapping[int, Sequence[pytest.TestReport]]) -> str | None:
    """Return the text of skips by some ranks; None if all or none skipped."""
    skips = {
        rank: report
        for rank, of_rank in reports.items()
        for report in of_rank
        if report.skipped and not hasattr(report, "wasxfail")
    }
    if not skips or len(skips) == len(reports):
        return None
    word = "rank" if len(skips) == 1 else "ranks"
    return f"skipped on {word} {ranks_text(list(skips))}: {_reason(next(iter(skips.values())))}"


def _is_unexpected_pass(report: pytest.TestReport) -> bool:
    """Return whether a report says that a test marked to fail has passed."""
    is_strict = report.failed and str(report.longrepr).startswith("[XPASS(strict)]")
    return is_strict or (report.passed and hasattr(report, "wasxfail"))


def _reason(report: pytest.TestReport) -> str:
    longrepr = report.longrepr
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr).removeprefix("Skipped: ")


def _sections(reports: Mapping[int, pytest.TestReport], num_ranks: int) -> list[tuple[str, str]]:
    """Return the ranks' output and logs, equal texts once."""
    ranks_by_section: dict[tuple[str, str], list[int]] = {}
    for rank, report in reports.items():
        for section in report.sections:
            ranks_by_section.setdefault(section, []).append(rank)
    sections = []
    for (name, text), ranks in ranks_by_section.items():
        word = "rank" if len(ranks) == 1 else "ranks"
        of = f" on {word} {ranks_text(ranks)}" if num_ranks > 1 else ""
        sections.append((f"{name}{of}", text))
    return sections


# ---- The plugin of the session that drives the ranks ----

_ALONE = ("MultiProcessTestCase", "MultiThreadedTestCase", "MultiProcContinuousTest")
_HARNESS = "torch.testing._internal.common_distributed"
_FORK_S = 1.0  # Assumed: imports that take less are not worth a fork.
_SLOW_S = 1.0  # Assumed: shorter restarts are not worth a line.
_AT_REST = ("has ended the test", "has failed")
Hang = DeadlockError | LivelockError


class Driver:
    """Runs a suite on simulated ranks, each with a session of pytest.

    Args:
        config: Of the session that drives.
        num_ranks: How many.
        settings: Of the Context.
    """

    def __init__(self, config: pytest.Config, num_ranks: int, settings: Mapping[str, Any]) -> None:
        self._config = config
        self._num_ranks = num_ranks
        self._settings = settings
        self._world: SuiteRanks | None = None
        self._num_worlds = 0
        self._is_collected = False
        self._lone: LoneSession | None = None
        self._restarts = _Restarts()
        self._spare: Spare | None = None
        self._items: dict[str, RanksItem] = {}
        self._warn: Callable[[dict[str, Any]], object] = self._warn_here

    # ---- starting and ending ----

    def start(self) -> None:
        """Start the ranks; options that their conftests add are this session's, too."""
        self._start()
        assert self._world is not None, "started"
        theirs = self._world.sessions[0].config.pluginmanager
        ours = self._config.pluginmanager
        known = {id(plugin) for plugin in ours.get_plugins()}
        for plugin in theirs.get_plugins():
            add = getattr(plugin, "pytest_addoption", None)
            if add is not None and id(plugin) not in known:  # Registering calls it.
                ours.register(SimpleNamespace(pytest_addoption=add))

    def close(self) -> None:
        """End the ranks and their sessions."""
        lone, self._lone = self._lone, None
        if lone is not None:
            with self._captured():
                lone.finish()
        if self._spare is not None:
            self._spare.close()
        world, self._world = self._world, None
        if world is None or world.is_over:
            return
        try:
            if self._is_collected:
                with self._captured():
                    world.tell(RankSession.finish)
        finally:
            world.end()

    def _keep_spare(self, took_s: float) -> None:
        """Fork the ranks that have just collected, where making others would take long."""
        option = self._config.option
        plugins = self._config.pluginmanager
        is_watched = option.usepdb or option.trace or plugins.hasplugin("_cov")
        if took_s >= _FORK_S and not is_watched and can_fork(self._num_ranks):
            self._spare = Spare(self._run_in_fork, self._begin_fork, self.close)

    def _begin_fork(self) -> None:
        """Give the ranks of a fork threads."""
        self._spare = None
        assert self._world is not None, "it has collected"
        self._world.revive()

    def _run_in_fork(self, nodeid: str, following: str | None) -> RemoteOutcome:
        """Run a test in a fork."""
        found: list[dict[str, Any]] = []
        self._warn = found.append
        nextitem = None if following is None else self._items.get(following)
        reports = self._run_here(self._items[nodeid], nextitem)
        return RemoteOutcome(reports, found, self._world is None or self._world.is_over)

    def _start(self) -> None:
        """Start ranks, up to their conftests."""
        before_s = time.perf_counter()
        self._num_worlds += 1
        self._is_collected = False
        self._world = SuiteRanks(self._num_ranks, self._args(), self._folder(), self._settings)
        with self._captured():
            self._world.tell(RankSession.parse)
        if self._num_worlds > 1:
            self._restarts.parse_s += time.perf_counter() - before_s

    def _folder(self) -> str | None:
        """Return the folder of the ranks' temporary files."""
        factory = getattr(self._config, "_tmp_path_factory", None)
        return None if factory is None else f"{factory.getbasetemp()}/ranks{self._num_worlds}-"

    def _args(self) -> list[str]:
        """Return the command line of the ranks' sessions."""
        args = [str(arg) for arg in self._config.invocation_params.args]
        if self._config.known_args_namespace.capture == "fd":
            args.append("--capture=sys")  # Ranks share file descriptors.
        return args

    def _collected(self, item: RanksItem | None = None) -> SuiteRanks:
        """Return the ranks, which have collected their tests.

        Args:
            item: The next test: restarted ranks collect its file alone.
        """
        if self._world is None or self._world.is_over:
            if item is not None and self._num_worlds:
                self._restarts.num += 1
            self._start()
        world = self._world
        assert world is not None, "started"
        order: Callable[[RankSession], None] | None = None
        if not self._is_collected:
            file = None if item is None else item.of_rank.path
            order = partial(RankSession.collect, file=file)
        elif item is not None and item.nodeid not in world.sessions[0].items:
            order = partial(RankSession.collect_file, file=item.of_rank.path)
        if order is not None:
            before_s = time.perf_counter()
            with self._captured():
                world.tell(order)
            self._restarts.add(item, time.perf_counter() - before_s)
            self._is_collected = True
            self._replay_warnings(world.sessions)
        return world

    def _lone_session(self) -> LoneSession:
        """Return the session of the main program, which has collected the tests."""
        if self._lone is None:
            self.close()
            self._num_worlds += 1
            folder = self._folder()
            of_folder = [] if folder is None else [f"--basetemp={folder}main"]
            self._lone = lone = LoneSession([*self._args(), *of_folder])
            if _HARNESS in sys.modules:  # Now: tests ask their classes as they are collected.
                from simrank.torch import testing  # noqa: PLC0415 - it needs torch

                testing.simulate(**self._settings)
            with self._captured():
                lone.parse()
                lone.collect()
        return self._lone

    @contextmanager
    def _captured(self) -> Iterator[None]:
        """Capture the ranks' output outside of tests."""
        capture: Any = self._config.pluginmanager.get_plugin("capturemanager")
        if getattr(capture, "_global_capturing", None) is None:  # Off, or over.
            yield
            return
        capture.resume_global_capture()
        try:
            yield
        finally:
            capture.suspend_global_capture(in_=True)
            capture.read_global_capture()

    def _warn_here(self, warning: dict[str, Any]) -> None:
        self._config.hook.pytest_warning_recorded.call_historic(kwargs=warning)

    def _replay_warnings(self, sessions: Sequence[RankSession]) -> None:
        """Report the ranks' warnings to the driving session, equal ones once."""
        seen = set()
        for session in sessions:
            for warning in session.take_warnings():
                message = warning["warning_message"]
                key = (str(message.message), message.filename, message.lineno, warning["nodeid"])
                if key not in seen:
                    seen.add(key)
                    self._warn(warning)

    # ---- hooks ----

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Collect on the ranks instead of in this session, unless xdist's workers collect."""
        if not self._config.pluginmanager.hasplugin("dsession"):
            ours: Any = session
            ours.perform_collect = lambda *_args, **_kwargs: self._collect(session)
        else:
            self.close()

    def _collect(self, session: pytest.Session) -> list[pytest.Item]:
        ours: Any = session
        ours._notfound, ours._initial_parts, ours._collection_cache = [], [], {}
        hook = self._config.hook
        before_s = time.perf_counter()
        world = self._collected()
        took_s = time.perf_counter() - before_s
        ours._initialpaths = world.sessions[0].initial_paths
        stand = Stand(session)
        session.items = [stand.item(item) for item in world.sessions[0].items.values()]
        for report in _collect_reports(world.sessions):
            report.result[:] = [
                item for item in session.items
                if item.parent is not None and item.parent.nodeid == report.nodeid
            ]  # fmt: skip
            hook.pytest_collectreport(report=report)
        for item in session.items:
            assert isinstance(item, RanksItem), "just made"
            item.is_alone = _runs_alone(item.of_rank)
        hook.pytest_collection_modifyitems(
            session=session, config=self._config, items=session.items
        )
        hook.pytest_collection_finish(session=session)
        session.testscollected = len(session.items)
        self._items = {item.nodeid: item for item in session.items if isinstance(item, RanksItem)}
        self._keep_spare(took_s)
        return session.items

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Run a test on the ranks, and report for all of them."""
        if not isinstance(item, RanksItem):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        run = self._run_alone if item.is_alone else self._run
        for report in run(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run_alone(self, item: RanksItem, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Run a test that starts ranks itself."""
        following = None if nextitem is None else nextitem.nodeid
        session = self._lone_session()
        with self._captured():
            session.run(item.nodeid, following)
        self._replay_warnings([session])
        return session.take_reports()

    def _run(self, item: RanksItem, nextitem: pytest.Item | None) -> Sequence[pytest.TestReport]:
        """Run a test on the ranks: on spare ones once the first have ended."""
        if self._lone is not None:
            self.close()
        if self._spare is None or (self._world is not None and not self._world.is_over):
            return self._run_here(item, nextitem)
        try:
            with self._captured():
                following = None if nextitem is None else nextitem.nodeid
                outcome = self._spare.run(item.nodeid, following)
        except ChildProcessError as error:
            return [_failed(item, str(error)), _teardown(item)]
        for warning in outcome.warnings:
            self._warn(warning)
        return outcome.reports

    def _ready(self, item: RanksItem, nextitem: pytest.Item | None) -> SuiteRanks:
        """Return the ranks, which have collected a test and the next one.

        Without the next one, fixtures of the session would end with the file of the test.
        """
        world = self._collected(item)
        if item.nodeid not in world.sessions[0].items:
            raise pytest.UsageError(f"{item.nodeid} was there, and is not collected any more")
        if isinstance(nextitem, RanksItem) and not nextitem.is_alone:
            self._collected(nextitem)
        return world

    def _run_here(self, item: RanksItem, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        world = self._ready(item, nextitem)
        following = None if nextitem is None else nextitem.nodeid
        before_s = time.perf_counter()
        others: Sequence[str] = ()
        hang: Hang | Failed | None = None
        try:
            with self._captured():
                world.tell(lambda session: session.run(item.nodeid, following))
        except (DeadlockError, LivelockError) as error:
            hang = _without_ended(error)
        except Failed as error:  # A plugin of the driving session raises it: pytest-timeout.
            hang = error
        self._replay_warnings(world.sessions)
        by_rank = {rank: session.take_reports() for rank, session in enumerate(world.sessions)}
        if isinstance(hang, Hang):
            others = _ended_positions(hang)
        reports = _merged_phases(by_rank, others)
        if hang is not None and not world.failed and not _has_xfailed(by_rank):
            reports = [*_before_body(reports), _report_of_hang(item, world, hang)]
        duration_s = time.perf_counter() - before_s
        for report in reports:
            report.duration = duration_s if report.when == "call" else 0.0
        if hang is not None:
            reports = [r for r in reports if r.when != "teardown"] + [_teardown(item)]
        elif any(report.failed for report in reports) and not world.is_clean():
            self.close()  # The next test starts clean.
        return reports

    @pytest.hookimpl(tryfirst=True)
    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> list[str] | None:
        """Explain a comparison that failed on a rank as its own conftests do."""
        session = current_session()
        item = None if session is None else session.item
        if item is None:
            return None
        explanations = item.ihook.pytest_assertrepr_compare(
            config=item.config, op=op, left=left, right=right
        )
        return next((lines for lines in explanations if lines), None)

    def pytest_unconfigure(self) -> None:
        """End the ranks."""
        self.close()
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.end()

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Any:
        """End the ranks' sessions before this one."""
        try:
            self.close()
        finally:
            result = yield
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any, config: pytest.Config) -> Any:
        """Show on which ranks a test that has passed was skipped."""
        text = getattr(report, "skipped_on", None)
        if text is None or not report.passed:
            return None
        return "passed", ".", f"PASSED ({text})"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the times of restarts, and the slowest import."""
        line = self._restarts.text(self._num_ranks)
        if line is not None:
            terminalreporter.write_line(line)

    def pytest_report_header(self) -> str:
        """Return the header line: ranks are simulated."""
        return f"simrank: every test runs on {self._num_ranks} simulated rank(s)"


class _Restarts:
    """Numbers and times of restarts of ranks.

    Attributes:
        num: How often.
        parse_s: Seconds for command lines and conftests, without the first start.
        collect_s: Seconds for the import of each file that was collected by itself.
    """

    def __init__(self) -> None:
        self.num = 0
        self.parse_s = 0.0
        self.collect_s: dict[str, float] = {}

    def add(self, item: RanksItem | None, took_s: float) -> None:
        """Note how long ranks took to collect the file of a test; None: all files, at first."""
        if item is not None:
            file = item.nodeid.partition("::")[0]
            self.collect_s[file] = self.collect_s.get(file, 0.0) + took_s

    def text(self, num_ranks: int) -> str | None:
        """Return a line for the terminal; None where it took less than a second."""
        total_s = sum(self.collect_s.values())
        if not self.num or total_s + self.parse_s < _SLOW_S:
            return None
        file = max(self.collect_s, key=lambda each: self.collect_s[each])
        return (
            f"simrank: {num_ranks} ranks were restarted {self.num} time(s): conftests took "
            f"{self.parse_s:.1f} s, test files {total_s:.1f} s, of which {file} "
            f"{self.collect_s[file]:.1f} s"
        )


def _runs_alone(item: pytest.Item) -> bool:
    """Return whether a test makes ranks of its own: marked so, or one of PyTorch's classes."""
    kind: Any = getattr(item, "cls", None)
    names = (
        ()
        if kind is None
        else [base.__name__ for base in kind.__mro__ if base.__module__ == _HARNESS]
    )
    return item.get_closest_marker("ranks") is not None or not set(_ALONE).isdisjoint(names)


def _collect_reports(sessions: Sequence[RankSession]) -> list[pytest.CollectReport]:
    """Return the reports of collection: merged failures of ranks, and differences."""
    by_node: dict[str, dict[int, pytest.CollectReport]] = {}
    for rank, session in enumerate(sessions):
        for report in session.collect_reports:
            by_node.setdefault(report.nodeid, {})[rank] = report
    merged_reports = []
    for nodeid, reports in by_node.items():
        failures = failures_of(reports)
        first = next(iter(reports.values()))
        outcome: Any = "failed" if failures else first.outcome
        longrepr: Any = RanksRepr(failures, len(sessions)) if failures else first.longrepr
        merged_reports.append(pytest.CollectReport(nodeid, outcome, longrepr, [], first.sections))
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, session in enumerate(sessions):
        groups.setdefault(tuple(session.items), []).append(rank)
    if len(groups) > 1:
        merged_reports.append(_different_tests(groups))
    return merged_reports


def _different_tests(groups: Mapping[tuple[str, ...], Sequence[int]]) -> pytest.CollectReport:
    """Return the report of different collected tests."""
    everywhere = set.intersection(*map(set, groups))
    lines = ["ranks have collected different tests; they must agree, in order:"]
    for names, ranks in groups.items():
        own = [name for name in names if name not in everywhere]
        what = f"also {', '.join(own[:4])}{', ...' * (len(own) > 4)}" if own else "what all have"
        word = "rank" if len(ranks) == 1 else "ranks"
        lines.append(f"  {word} {ranks_text(ranks)}: {what}")
    return pytest.CollectReport("", "failed", "\n".join(lines), [])


def _merged_phases(
    by_rank: Mapping[int, Sequence[pytest.TestReport]], others: Sequence[str]
) -> list[pytest.TestReport]:
    """Return a report for each phase, of the ranks that came to its end."""
    reports = []
    for when in PHASES:
        of_phase = {
            rank: last
            for rank, all_of in by_rank.items()
            if (last := next((r for r in reversed(all_of) if r.when == when), None)) is not None
        }
        if of_phase:
            report = merged(when, of_phase, len(by_rank), others if when != "teardown" else ())
            if when == "call":
                vars(report)["skipped_on"] = skip_text(by_rank)
            reports.append(report)
    return reports


def _has_xfailed(by_rank: Mapping[int, Sequence[pytest.TestReport]]) -> bool:
    """Return whether a rank has failed as the test is marked to."""
    reports = [report for all_of in by_rank.values() for report in all_of]
    return any(report.skipped and hasattr(report, "wasxfail") for report in reports)


def _before_body(reports: Sequence[pytest.TestReport]) -> list[pytest.TestReport]:
    return [report for report in reports if report.when == "setup" and not report.failed]


def _report_of_hang(item: RanksItem, world: SuiteRanks, error: Hang | Failed) -> pytest.TestReport:
    """Return the report of a body that did not end: a failure, unless the test is marked to."""
    if any(session.is_expected(error) for session in world.sessions):
        report = pytest.TestReport(
            item.nodeid, item.location, dict(item.keywords), "skipped", str(error), "call"
        )
        report.wasxfail = str(error).partition("\n")[0]
        return report
    return _failed(
        item, "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    )


def _failed(item: RanksItem, text: str) -> pytest.TestReport:
    """Return the report of a body that has failed for a reason of no rank."""
    path, line, _ = item.location
    shown = RanksRepr([RankFailure([], path, (line or 0) + 1, text, text)], 0)
    return pytest.TestReport(
        item.nodeid, item.location, dict(item.keywords), "failed", shown, "call"
    )


def _teardown(item: RanksItem) -> pytest.TestReport:
    """Return the report of a teardown that no rank reached."""
    return pytest.TestReport(
        item.nodeid, item.location, dict(item.keywords), "passed", None, "teardown"
    )


def _without_ended(error: Hang) -> Hang:
    """Return a hang in which ranks that have ended the test do not count as waiting."""
    states = [
        replace(state, waits=False) if state.state in _AT_REST else state for state in error.waits
    ]
    states.sort(key=lambda state: not state.waits)
    facts: dict[str, Any] = {
        "seed": error.seed,
        "diverged_at": error.diverged_at,
        "unlike": error.unlike,
        "odd_step": error.odd_step,
    }
    reported: Hang
    if isinstance(error, LivelockError):
        reported = LivelockError(error.time_ps, states, **facts)
    else:
        facts |= {"to_fix": error.to_fix, "proved": error.proved}
        reported = DeadlockError(error.time_ps, states, **facts)
    for note in getattr(error, "__notes__", ()):
        reported.add_note(note)
    return reported


def _ended_positions(error: Hang) -> list[str]:
    """Return the positions of ranks that a failure has ended."""
    waiting = [state for state in error.waits if state.state not in _AT_REST and state.waits]
    return ["", "ended there:", *(f"  {state}" for state in waiting)] if waiting else []


# ---- What stands in the driving session for the tests that ranks have collected ----


class RanksItem(pytest.Item):
    """A test that runs on the ranks.

    Attributes:
        of_rank: The first rank's own.
        is_alone: Whether it starts ranks itself, so that the main program runs it.
    """

    of_rank: pytest.Item
    is_alone = False

    def runtest(self) -> NoReturn:
        """Not be called: the driver runs it."""
        raise AssertionError("ranks run it")

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return the location of the test."""
        return self.of_rank.reportinfo()


class _RanksCollector(pytest.Collector):
    """A collector of a test: a folder, a file, a class."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return nothing: ranks collect."""
        return ()


class Stand:
    """Factory of the session's items and collectors for the ranks' tests.

    Args:
        session: The driving session.
    """

    def __init__(self, session: pytest.Session) -> None:
        self._made: dict[pytest.Collector, pytest.Collector] = {}
        self._session = session

    def item(self, of_rank: pytest.Item) -> RanksItem:
        """Return the item of a test."""
        assert of_rank.parent is not None, "it is in a file"
        parent = self._collector(of_rank.parent)
        kind: Any = type(type(of_rank).__name__, (RanksItem,), {})
        item: RanksItem = kind.from_parent(parent, name=of_rank.name, nodeid=of_rank.nodeid)
        item.of_rank = of_rank
        _take_over(item, of_rank)
        return item

    def _collector(self, of_rank: Any) -> Any:
        if isinstance(of_rank, pytest.Session):
            return self._session
        if of_rank not in self._made:
            parent = self._collector(of_rank.parent)
            kind: Any = type(type(of_rank).__name__, (_RanksCollector,), {})
            made = kind.from_parent(
                parent, name=of_rank.name, nodeid=of_rank.nodeid, path=of_rank.path
            )
            _take_over(made, of_rank)
            self._made[of_rank] = made
        return self._made[of_rank]


def _take_over(node: Any, of_rank: Any) -> None:
    """Copy the marks and keywords of another node."""
    node.path = of_rank.path
    node.own_markers = list(of_rank.own_markers)
    node.keywords.update({name: of_rank.keywords[name] for name in of_rank.keywords})
    names = set(of_rank.extra_keyword_matches)
    names.update(getattr(getattr(of_rank, "function", None), "__dict__", ()))
    node.extra_keyword_matches = names
