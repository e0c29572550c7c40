"""One generation of workers, started, called and ended together; reports of failures.

A team judges nothing and retries nothing: it says what each rank answered, and what of the others
is known. `pool` decides.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import selectors
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import process as mp_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.errors import (
    ChannelError,
    PoolStartError,
    PortInUseError,
    TooFewDevicesError,
    WorkerFacts,
    who_text,
)
from simrank.errors.base import add_note
from simrank.validate.channel import Frame, FrameKind
from simrank.validate.current_call import SENDS, message_key
from simrank.validate.process import Process
from simrank.validate.worker import STACKS_SIGNAL

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from simrank.validate.options import Limits, Setup


# ---- one request of a team, and the answers that came to it ----


@dataclass(frozen=True, slots=True)
class Answer:
    """A rank's answer to a request.

    Attributes:
        is_return: Whether it returned; else it raised.
        body: The pickled result, or the exception as `worker` sends it.
        state: What the worker says of itself: counts of calls, and whether its groups are whole.
        arrived_s: When, on the monotonic clock.
        shown: `Type: text` of the exception.
        traceback: Its traceback.
    """

    is_return: bool
    body: bytes
    state: dict[str, Any]
    arrived_s: float
    shown: str = ""
    traceback: str = ""

    def exception(self) -> BaseException:
        """Return the rank's exception, or its text if it cannot be unpickled."""
        try:
            error: BaseException = pickle.loads(self.body)
        except Exception:  # noqa: BLE001 - none was sent, or its class is not importable here
            return RuntimeError(self.shown)
        add_note(error, f"in the worker:\n{self.traceback}")
        return error


@dataclass(slots=True)
class TeamRequest:
    """A request and the answers to it.

    Attributes:
        number: The request's.
        ranks: Those that got the request.
        answers: What came, by rank.
        timeout_s: How long was waited at most.
        waiting: The calls in which ranks wait for others that never come, by rank.
        waiting_since_s: When these were seen first, on the monotonic clock.
        has_diverged: Whether that was long enough ago to be believed.
    """

    number: int
    ranks: tuple[int, ...]
    answers: dict[int, Answer]
    timeout_s: float
    waiting: dict[int, Any] = field(default_factory=dict)
    waiting_since_s: float = field(default_factory=time.monotonic)
    has_diverged: bool = False

    @property
    def is_answered(self) -> bool:
        """Whether all answered."""
        return len(self.answers) == len(self.ranks)

    @property
    def has_failed(self) -> bool:
        """Whether one raised."""
        return any(not answer.is_return for answer in self.answers.values())


def answer_of(frame: Frame) -> Answer:
    """Return the answer that a frame holds."""
    state, body = pickle.loads(frame.body)
    if frame.kind == FrameKind.RETURNED:
        return Answer(True, body, state, time.monotonic())
    pickled, shown, traceback = pickle.loads(body)
    return Answer(False, pickled or b"", state, time.monotonic(), shown, traceback)


# ---- reports of failed cases: the ranks' states, and which rank waits for which ----

_ANSWERED = ("answered", "raised")  # Stages of `worker`.
_MAX_WAITS = 6
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_SHOWN = _PACKAGE.encode("ascii", "backslashreplace").decode()  # As faulthandler writes paths.
_OWN = tuple(f'File "{os.path.join(_SHOWN, name)}' for name in ("validate", "suites"))


def facts_of(
    rank: int, page: Mapping[str, Any], answer: Answer | None, ended: str = ""
) -> WorkerFacts:
    """Return the facts of a rank."""
    if answer is not None and answer.is_return:
        facts = WorkerFacts(rank, "returned")
    elif answer is not None:
        first = answer.shown.partition("\n")[0]
        facts = WorkerFacts(rank, f"raised {first}", traceback=answer.traceback)
    elif "call" in page:
        call = page["call"]
        facts = WorkerFacts(rank, call_text(call), call.get("file"), call.get("line"), waits=True)
    else:
        last = f", after {call_text(page['last'])}" if "last" in page else ""
        stage = page.get("stage") or "starting"
        facts = WorkerFacts(rank, f"{stage}, in no collective{last}", waits=True)
    if ended:
        return replace(facts, doing=f"{ended} ({facts.doing})", ended=ended, waits=False)
    return facts


def call_text(call: Mapping[str, Any]) -> str:
    """Return `all_reduce #7 on group 'default_pg'`, or `recv from rank 3`."""
    if call.get("is_message"):
        way = "to" if call["op"] in SENDS else "from"
        peers = call["ranks"]
        return f"{call['op']} {way} {f'rank {peers[0]}' if peers else 'any rank'}"
    return f"{call['op']} #{call['seq']} on group '{call['group']}'"


def waits_for(pages: Mapping[int, Mapping[str, Any]]) -> dict[int, tuple[int, ...]]:
    """Return, for each rank that waits in a call, the ranks that have not come to it.

    Args:
        pages: What each rank published, the ranks that answered included.
    """
    found = {}
    for rank, page in pages.items():
        call = call_of(page)
        if call is None:
            continue
        others = [other for other in call.get("ranks", ()) if other != rank and other in pages]
        missing = [other for other in others if not _has_arrived(rank, call, other, pages[other])]
        if missing:
            found[rank] = tuple(missing)
    return found


def call_of(page: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the call that a rank waits in, or may wait for: the last one, if that was queued."""
    last = page.get("last", {})
    is_open = last.get("is_queued") and page.get("stage") not in _ANSWERED
    found: Mapping[str, Any] | None = page.get("call", last if is_open else None)
    return found


def _has_arrived(rank: int, call: Mapping[str, Any], other: int, page: Mapping[str, Any]) -> bool:
    theirs = call_of(page) or {}
    counts = page.get("counts", {})
    if call.get("is_message"):
        pair = (rank, other) if call["op"] in SENDS else (other, rank)
        return bool(counts.get(message_key(call["group"], *pair), 0) >= call["seq"])
    group = call["group"]
    if theirs.get("group") == group and theirs.get("seq") == call["seq"]:
        return bool(theirs.get("op") == call["op"])
    return bool(counts.get(group, 0) >= call["seq"])


def cannot_arrive(
    pages: Mapping[int, Mapping[str, Any]], waits: Mapping[int, tuple[int, ...]]
) -> bool:
    """Return whether a rank waits for a rank that has ended or made a different call."""
    for rank, others in waits.items():
        call = call_of(pages[rank]) or {}
        for other in others:
            theirs = call_of(pages[other]) or {}
            if pages[other].get("stage") in _ANSWERED:
                return True
            if (theirs.get("group"), theirs.get("seq")) == (call.get("group"), call.get("seq")):
                return True
    return False


def are_in_a_ring(waits: Mapping[int, tuple[int, ...]]) -> bool:
    """Return whether ranks wait for each other in a circle."""
    left = {rank: set(others) for rank, others in waits.items()}
    while ends := [rank for rank, others in left.items() if not others & left.keys()]:
        for rank in ends:
            del left[rank]
    return bool(left)


def waits_text(waits: Mapping[int, tuple[int, ...]]) -> list[str]:
    """Return the text of waits, one line for ranks that wait for the same."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank, others in waits.items():
        alike.setdefault(others, []).append(rank)
    lines = [
        f"{who_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for {who_text(others)}"
        for others, ranks in alike.items()
    ]
    if len(lines) > _MAX_WAITS:
        lines[_MAX_WAITS - 1 :] = [f"and {len(lines) - _MAX_WAITS + 1} more wait for others"]
    return lines


def stacks_text(written: str) -> str:
    """Return stacks without addresses and without the worker's own frames.

    Args:
        written: What faulthandler wrote.
    """
    kept = [
        line
        for line in written.splitlines()
        if not line.lstrip().startswith((*_OWN, "Extension modules:"))
    ]
    text = re.sub(r"(Current thread|Thread) 0x\w+", r"\1", "\n".join(kept))
    return "" if text.strip().endswith("first):") and "\n" not in text.strip() else text.strip()


def are_even(states: Mapping[int, Mapping[str, Any]]) -> bool:
    """Return whether workers are reusable: equal calls on all, and intact groups.

    A rank that raised before a call that its peers have made would take part in the wrong one.

    Args:
        states: What each rank that took part said with its answer.
    """
    for state in states.values():
        if not state["is_whole"]:
            return False
        for name, count in state["counts"].items():
            members = state["members"].get(name, ())
            if any(states[r]["counts"].get(name, 0) != count for r in members if r in states):
                return False
    return True


def left_behind(states: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the state that a case left and that only new workers are free of, with its ranks.

    Args:
        states: As in `are_even`.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, state in states.items():
        for part in state["left"]:
            ranks_of.setdefault(part, []).append(rank)
    return "; ".join(f"{part} on {who_text(ranks)}" for part, ranks in ranks_of.items())


# ---- one generation of workers, started, called and ended together ----

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
        PortInUseError: A process listens on the port.
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
                "shares_modules": setup.shares_modules,
            }
            left_s = max(0.0, deadline - time.monotonic())
            with suppress(OSError):  # It is dead, or stuck: the wait for its start sees that.
                process.channel.send(Frame(FrameKind.SETUP, 0, pickle.dumps(body)), left_s)

    def _wait_until_ready(self, deadline: float) -> None:
        ready: set[int] = set()
        while len(ready) < len(self.processes):
            for process, frame in self._events(deadline):
                if frame.kind == FrameKind.REFUSED:
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
            stacks = stacks_text(process.stacks()) if with_stacks else ""
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
    ) -> TeamRequest:
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
        case = TeamRequest(number, tuple(ranks), {}, timeout_s)
        asked = [self.processes[rank] for rank in ranks]
        try:
            for process, parcel in zip(asked, parcels, strict=True):
                body = pickle.dumps((tuple(ranks), parcel))
                process.channel.send(Frame(FrameKind.RUN, request, body), timeout_s)
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

    def _have_diverged(self, case: TeamRequest) -> bool:
        """Look whether a rank has waited for a while for one that never comes."""
        pages = self.pages(case.ranks)
        waits = waits_for(pages)
        waiting = {rank: call_of(pages[rank]) for rank in waits}
        if not waits or not cannot_arrive(pages, waits) or waiting != case.waiting:
            case.waiting, case.waiting_since_s = waiting, time.monotonic()
        case.has_diverged = (
            time.monotonic() - case.waiting_since_s > self._limits.settle_s and bool(waits)
        )
        return case.has_diverged

    def facts(self, case: TeamRequest, *, with_stacks: bool) -> list[WorkerFacts]:
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
                    stacks=stacks_text(process.stacks()) if shows else "",
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
                process.channel.send(Frame(FrameKind.SHUTDOWN, 0), 0.1)
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
        PortInUseError: A process listens there.
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
