"""One generation of workers, started, called and ended together.

A team judges nothing and retries nothing: it says what each rank answered, and what of the others
is known. `pool` decides.
"""

from __future__ import annotations

import errno
import os
import pickle
import selectors
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing import process as mp_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.errors import ChannelError, PoolStartError, PortInUseError, TooFewDevicesError
from simrank.validate import report
from simrank.validate.case import Answer, Case, answer_of
from simrank.validate.channel import Frame, Kind
from simrank.validate.process import Process
from simrank.validate.report import facts_of
from simrank.validate.worker import STACKS_SIGNAL

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from simrank.errors import WorkerFacts
    from simrank.validate.limits import Limits
    from simrank.validate.options import Setup

_LOOK_S = 0.05  # assumed: how often pages are looked at while a case runs
_LAST_S = 60.0  # assumed: how much longer torch's own limit is, so that the pool's report is first


class Team:
    """Workers, ready for requests once this is made.

    Attributes:
        processes: The workers, by rank.
        groups: The sets of ranks that the pool has let them make process groups of.

    Raises:
        PoolStartError: One did not become ready in time, or failed.
        TooFewDevicesError: There are fewer GPUs than workers.
        PortInUseError: Somebody listens on the port.
    """

    def __init__(self, setup: Setup, limits: Limits) -> None:
        self.processes: list[Process] = []
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._is_ended = False
        self._num_requests = 0
        self.groups: set[tuple[int, ...]] = set()
        deadline = time.monotonic() + limits.start_s
        try:
            with ExitStack() as until_started:
                listener = None
                if setup.backend is not None:
                    listener = until_started.enter_context(bound(setup.port))
                self._start(setup, listener, deadline)
            self._wait_until_ready(deadline)
        except BaseException:
            self.end(at_once=True)
            raise

    def _start(self, setup: Setup, listener: socket.socket | None, deadline: float) -> None:
        port = 0 if listener is None else listener.getsockname()[1]
        for rank in range(setup.num_workers):
            own: dict[str, object] = {"RANK": rank, "LOCAL_RANK": rank}
            own |= {"WORLD_SIZE": setup.num_workers}
            own |= {"LOCAL_WORLD_SIZE": setup.num_workers, "SIMRANK_WORKER": rank}
            if listener is not None:
                own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            process = Process(
                rank,
                {**setup.environment, **{name: str(value) for name, value in own.items()}},
                listener=listener if rank == 0 else None,
                echo=setup.echo,
            )
            self.processes.append(process)
            self._selector.register(process, selectors.EVENT_READ, (process, "end"))
            self._selector.register(process.channel, selectors.EVENT_READ, (process, "channel"))
            self._selector.register(process.output, selectors.EVENT_READ, (process, "output"))
            body = {
                "rank": rank,
                "num_workers": setup.num_workers,
                "backend": setup.backend,
                "port": port,
                "timeout_s": max(self._limits.case_s, self._limits.start_s) + _LAST_S,
                "folder": os.getcwd(),
                "authkey": bytes(mp_process.current_process().authkey),
                "preload": list(setup.preload),
                "reset": setup.reset,
            }
            left_s = max(0.0, deadline - time.monotonic())
            with suppress(OSError):  # It is dead, or stuck: the wait for its start sees that.
                process.channel.send(Frame(Kind.SETUP, 0, pickle.dumps(body)), left_s)

    def _wait_until_ready(self, deadline: float) -> None:
        ready: set[int] = set()
        while len(ready) < len(self.processes):
            for process, frame in self._events(deadline):
                if frame.kind == Kind.REFUSED:
                    raise self._refused(process, frame.body)
                process.pid = pickle.loads(frame.body)
                ready.add(process.rank)
            dead = [process for process in self.processes if process.ended]
            if dead or time.monotonic() > deadline:
                what = f"workers were not ready after {self._limits.start_s:g} s"
                if dead:
                    what = f"rank {dead[0].rank} was not ready: {dead[0].ended}"
                raise PoolStartError(what, self._facts(with_stacks=not dead))

    def _refused(self, process: Process, body: bytes) -> Exception:
        pickled, shown, traceback = pickle.loads(body)
        answer = Answer(False, pickled or b"", {}, time.monotonic(), shown, traceback)
        error = answer.exception()
        if isinstance(error, TooFewDevicesError):
            return error
        facts = self._facts()
        own = facts_of(process.rank, {}, answer)
        facts[process.rank] = replace(own, output=facts[process.rank].output, pid=process.pid)
        return PoolStartError(f"rank {process.rank} could not start", facts)

    def _facts(self, *, with_stacks: bool = False) -> list[WorkerFacts]:
        """Return the facts of workers that do not answer."""
        pages = self.pages(range(len(self.processes)))
        for process in self.processes if with_stacks else ():
            process.pid = process.pid or pages[process.rank].get("pid", 0)
            process.ask_stacks(STACKS_SIGNAL)
        found = []
        for process in self.processes:
            facts = facts_of(process.rank, pages[process.rank], None, process.ended)
            process.output.drain()
            stacks = report.stacks_text(process.stacks()) if with_stacks else ""
            output = process.output.tail()
            found.append(replace(facts, output=output, stacks=stacks, pid=process.pid))
        return found

    def _events(self, deadline: float) -> list[tuple[Process, Frame]]:
        """Wait for something to happen; return frames that came. Ends and output are noted.

        Raises:
            ChannelError: What came is no frame.
        """
        frames = []
        left_s = max(0.0, deadline - time.monotonic())
        for key, _ in self._selector.select(left_s):
            process, what = key.data
            if what == "end":
                if process.has_ended():
                    self._forget(process)
            elif what == "output":
                if not process.output.drain():
                    self._forget(process.output)
            else:
                frames += [(process, frame) for frame in self._frames(process)]
        return frames

    def _frames(self, process: Process) -> list[Frame]:
        try:
            return process.channel.arrived()
        except EOFError:  # Its end is seen on the lifeline, and told there.
            self._forget(process.channel)
            return []
        except ChannelError as error:
            raise ChannelError(f"rank {process.rank}: {error}", self._facts()) from error

    def _forget(self, what: Any) -> None:  # noqa: ANN401 - any value
        if what in {key.fileobj for key in self._selector.get_map().values()}:
            self._selector.unregister(what)

    def ended(self) -> list[Process]:
        """Return the workers that have ended by themselves."""
        return [process for process in self.processes if process.has_ended()]

    def ask(
        self, number: int, ranks: Sequence[int], parcels: Sequence[bytes], timeout_s: float
    ) -> Case:
        """Send a request to some ranks, and wait for the answers.

        One that fails shortens the wait for the others: they get a moment to fail, too.

        Raises:
            ChannelError: What came is no frame.
        """
        for process in self.processes:
            process.output.drain()
            process.output.forget()
        self._num_requests += 1
        request = self._num_requests
        started = time.monotonic()
        deadline = started + timeout_s
        case = Case(number, tuple(ranks), {}, timeout_s)
        asked = [self.processes[rank] for rank in ranks]
        try:
            for process, parcel in zip(asked, parcels, strict=True):
                body = pickle.dumps((tuple(ranks), parcel))
                process.channel.send(Frame(Kind.RUN, request, body), timeout_s)
        except (OSError, TimeoutError):  # It is dead, or stuck: seen below.
            deadline = min(deadline, time.monotonic() + self._limits.settle_s)
        while not case.is_answered and time.monotonic() < deadline:
            for process, frame in self._events(min(deadline, time.monotonic() + _LOOK_S)):
                if frame.request == request:  # Not the late answer of another.
                    case.answers[process.rank] = answer_of(frame)
            if self._have_diverged(case):
                break
            if case.has_failed or any(process.ended for process in asked):
                deadline = min(deadline, time.monotonic() + self._limits.settle_s)
                if all(p.ended or p.rank in case.answers for p in asked):
                    break
        return case

    def _have_diverged(self, case: Case) -> bool:
        """Look whether a rank has waited for a while for one that never comes."""
        pages = self.pages(case.ranks)
        waits = report.waits_for(pages)
        waiting = {rank: report.call_of(pages[rank]) for rank in waits}
        if not waits or not report.never_come(pages, waits) or waiting != case.waiting:
            case.waiting, case.waiting_since_s = waiting, time.monotonic()
        case.has_diverged = (
            time.monotonic() - case.waiting_since_s > self._limits.settle_s and bool(waits)
        )
        return case.has_diverged

    def facts(self, case: Case, *, with_stacks: bool) -> list[WorkerFacts]:
        """Return the facts of each requested rank, and of ranks that ended."""
        known = [p for p in self.processes if p.rank in case.ranks or p.ended]
        if with_stacks:
            for process in known:
                process.ask_stacks(STACKS_SIGNAL)
        found = []
        for process in known:
            process.output.drain()
            answer = case.answers.get(process.rank)
            facts = facts_of(process.rank, process.page.read(), answer, process.ended)
            shows = with_stacks or process.ended
            is_shown = with_stacks or process.ended or facts.traceback
            found.append(
                replace(
                    facts,
                    pid=process.pid,
                    stacks=report.stacks_text(process.stacks()) if shows else "",
                    output=process.output.tail() if is_shown else "",
                )
            )
        return found

    def pages(self, ranks: Collection[int]) -> dict[int, dict[str, Any]]:
        """Return the published states of ranks."""
        return {rank: self.processes[rank].page.read() for rank in ranks}

    def end(self, *, at_once: bool) -> None:
        """End all workers; later calls do nothing.

        Args:
            at_once: Whether to kill them; else they are asked to leave, and killed after a while.
        """
        if self._is_ended:
            return
        self._is_ended = True
        if not at_once:
            self._tell_to_leave()
        for process in self.processes:
            process.release()
        deadline = time.monotonic() + self._limits.end_s
        for process in self.processes:
            process.reap(deadline)
            process.close()
        self._selector.close()

    def _tell_to_leave(self) -> None:
        deadline = time.monotonic() + self._limits.end_s
        for process in self.processes:
            try:
                process.channel.send(Frame(Kind.SHUTDOWN, 0), 0.1)
            except OSError:  # It is gone, or does not read: it is killed below.
                continue
        while not all(process.ended for process in self.processes):
            if time.monotonic() > deadline:
                return
            self._events(deadline)


# ---- Ports that are bound before they are published, and the holder of a taken one ----

_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp
_BACKLOG = 128


def bound(port: int = 0) -> socket.socket:
    """Return a listening socket; the process that gets its descriptor owns the port.

    Args:
        port: 0: a free one.

    Raises:
        PortInUseError: Somebody listens there.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # What closed lately is free.
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
    except BaseException as error:
        listener.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUseError(port, holder(port)) from error
        raise
    return listener


def holder(port: int) -> str | None:
    """Return the listener of a port as `name (pid N)`, or None if unknown."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not sockets:
        return None
    for process in sorted(Path("/proc").glob("[0-9]*")):
        try:
            fds = list((process / "fd").iterdir())
            name = (process / "comm").read_text().strip()
        except OSError:  # It has ended, or is another user's.
            continue
        if any(_target(fd) in sockets for fd in fds):
            return f"{name} (pid {process.name})"
    return None


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except OSError:  # Closed since.
        return ""


def _inodes(port: int) -> list[str]:
    found: list[str] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        found += [
            columns[9]
            for columns in map(str.split, lines)
            if columns[3] == _LISTENS and int(columns[1].rpartition(":")[2], 16) == port
        ]
    return found
