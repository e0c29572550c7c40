"""Spare ranks: forks of the session that drives, made before the first test.

Ranks that a failing test has left in the midst of something are ended. Others in their place would
import the suite's modules again, each for itself, which takes most of a suite's time where many
tests fail. So the session is forked once as it has collected. The fork sleeps, and forks ranks
again whenever some are needed: they are as they were after the imports. They run tests and send
reports until a test leaves something behind, or the session ends.

A fork has none of the threads that carried the ranks, which slept: they get new ones.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import sys
import threading  # noqa: TID251 - only counts
import traceback
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from _pytest.outcomes import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

_PR_SET_PDEATHSIG = 1  # Source: prctl(2).
_MAX_LATE_S = 10.0  # Assumed: a test that has to stop reports within this time.


class RemoteOutcome(NamedTuple):
    """A test's end in a fork.

    Attributes:
        reports: Of its phases.
        warnings: Keywords of pytest's hook.
        is_over: Whether its ranks have ended, so that the next test needs others.
    """

    reports: Sequence[pytest.TestReport]
    warnings: Sequence[dict[str, Any]]
    is_over: bool


class Spare:
    """A fork that sleeps, and its ranks that run.

    Args:
        run: Called in forks, with the node ids of a test and of the next one; runs it.
        begin: Called in forks before the first test.
        finish: Called in forks after the last one.

    Attributes:
        is_running: Whether ranks of the last test are there.
    """

    def __init__(
        self,
        run: Callable[[str, str | None], RemoteOutcome],
        begin: Callable[[], None],
        finish: Callable[[], None],
    ) -> None:
        self._run, self._begin, self._finish = run, begin, finish
        self.is_running = False
        self._runner = 0
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = _fork()
        if not self._pid:
            ours.close()
            self._sleep(theirs)
        theirs.close()
        self._socket = ours
        self._stream: Any = ours.makefile("rwb")

    # ---- in the session ----

    def run(self, nodeid: str, following: str | None) -> RemoteOutcome:
        """Run a test on spare ranks, on those of the last call if they are there.

        Raises:
            ChildProcessError: The process of the ranks has ended without a report.
        """
        self.is_running = True
        self._runner = 0
        try:
            self._write((nodeid, following))
            self._runner = self._read_number()
            outcome = self._read()
        except Failed as error:  # A plugin raises it: pytest-timeout. The ranks say where they are.
            outcome = self._stop(str(error))
        except KeyboardInterrupt:
            self.is_running = False  # They do not answer any more.
            raise
        self.is_running = not outcome.is_over
        return outcome

    def _stop(self, text: str) -> RemoteOutcome:
        """Raise in the test that runs; end its process if it does not report then."""
        if not self._runner:
            self._runner = self._read_number()
        self._write(text)
        os.kill(self._runner, signal.SIGUSR1)
        self._socket.settimeout(_MAX_LATE_S)
        try:
            return self._read()
        except TimeoutError:
            self.is_running = False
            os.kill(self._runner, signal.SIGKILL)
            raise ChildProcessError(f"{text}; its process did not stop") from None
        finally:
            self._socket.settimeout(None)
            self._stream = self._socket.makefile("rwb")  # The old one takes no more after a limit.

    def close(self) -> None:
        """End the running ranks and their sessions; others may follow."""
        if self.is_running:
            self.is_running = False
            self._write(None)
            self._read()

    def end(self) -> None:
        """End the forks."""
        self.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._stream.close()
        self._socket.close()

    def _write(self, message: object) -> None:
        pickle.dump(message, self._stream)
        self._stream.flush()

    def _read(self) -> RemoteOutcome:
        """Read what ranks send: an outcome; or a number, if they have ended without one."""
        found = self._load()
        if isinstance(found, RemoteOutcome):
            return found
        self.is_running = False
        if isinstance(found, str):
            self._load()  # Its status.
            raise ChildProcessError(f"the process of the ranks has ended:\n{found}")
        raise ChildProcessError(f"the process of the ranks has ended with status {found}")

    def _read_number(self) -> int:
        number = self._load()
        if isinstance(number, str):
            self._load()
            raise ChildProcessError(f"the process of the ranks could not begin:\n{number}")
        assert isinstance(number, int), "the process that is about to run a test"
        return number

    def _load(self) -> object:
        try:
            return pickle.load(self._stream)
        except EOFError:
            return -signal.SIGKILL

    # ---- in forks ----

    def _sleep(self, theirs: socket.socket) -> NoReturn:
        """Fork ranks for each first message, until the session has ended."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # The session ends its forks.
        while theirs.recv(1, socket.MSG_PEEK):
            pid = _fork()
            if not pid:
                self._stream = theirs.makefile("rwb")
                self._live()
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if code:
                with suppress(BrokenPipeError):  # The session has ended first.
                    theirs.sendall(pickle.dumps(code))
        os._exit(0)

    def _live(self) -> NoReturn:
        """Run tests until one leaves something behind."""
        code = 1
        try:
            signal.signal(signal.SIGUSR1, self._stopped)
            self._begin()
            while True:
                message = pickle.load(self._stream)
                if message is None:
                    self._finish()
                    self._write(RemoteOutcome((), (), is_over=True))
                    break
                self._write(os.getpid())
                outcome = self._run(*message)
                self._write(_picklable(outcome))
                if outcome.is_over:
                    break
            code = 0
        except BaseException:  # noqa: BLE001 - told to the session
            self._write(traceback.format_exc())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _stopped(self, *_: object) -> NoReturn:
        """Raise in the test what a plugin has raised in the session."""
        raise Failed(pickle.load(self._stream))


def can_fork(num_ranks: int) -> bool:
    """Return whether this process has no threads but those of its ranks."""
    return hasattr(os, "fork") and threading.active_count() == num_ranks + 1


def _fork() -> int:
    """Fork this process; the new one ends with it."""
    with warnings.catch_warnings():  # Python 3.12 warns of threads: they sleep.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return pid


def _picklable(outcome: RemoteOutcome) -> RemoteOutcome:
    """Return an outcome with texts in the place of what cannot be sent."""
    reports = [report if _can_be_sent(report) else _as_text(report) for report in outcome.reports]
    return RemoteOutcome(reports, [_plain(each) for each in outcome.warnings], outcome.is_over)


def _plain(warning: dict[str, Any]) -> dict[str, Any]:
    """Return a warning whose class the session has: not one of the suite's."""
    given = warning["warning_message"]
    if type(given.message).__module__ == "builtins":
        return warning
    text = UserWarning(f"{type(given.message).__name__}: {given.message}")
    message = warnings.WarningMessage(text, UserWarning, given.filename, given.lineno)
    return {**warning, "warning_message": message}


def _as_text(report: Any) -> Any:
    report.longrepr = None if report.longrepr is None else str(report.longrepr)
    report.user_properties = [each for each in report.user_properties if _can_be_sent(each)]
    return report


def _can_be_sent(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - what a class of the suite raises
        return False
    return True
