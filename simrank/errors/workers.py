"""Ends of processes: failed cases, dead workers, hangs, pools that do not start.

The type says whose fault it is. `InfrastructureError` and what is below it may be the machine's, so
a pool runs the case once more; everything else is the program's and is reported as it happened.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from simrank.errors.base import (
    MAX_REPORT_LINES,
    RankState,
    SimrankError,
    SimulationError,
    Travels,
    states_text,
    who_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """State of one rank when a case failed.

    Attributes:
        rank: The rank.
        doing: What it did last, for example `all_reduce #7 on group 'default_pg'` or `returned`.
        file: The user's file where it did that, or None.
        line: The line in it, or None.
        traceback: Of what it raised; empty if it raised nothing.
        ended: How its process ended by itself, for example `killed by SIGSEGV`; empty if it did
            not.
        stacks: Of its threads, where it hung or crashed; empty if not asked for, or not given.
        output: The tail of its standard output and standard error.
        waits: Whether it had not answered.
        pid: Its process id, or 0.
    """

    rank: int
    doing: str
    file: str | None = None
    line: int | None = None
    traceback: str = ""
    ended: str = ""
    stacks: str = ""
    output: str = ""
    waits: bool = False
    pid: int = 0


class PoolError(SimrankError):
    """A real run failed.

    Attributes:
        facts: What is known of each rank, by rank.
        case: The number of the request in its pool, from 1; 0 before the first.
    """

    def __init__(
        self,
        what: str,
        facts: Iterable[WorkerFacts] = (),
        *,
        case: int = 0,
        end: Sequence[str] = (),
    ) -> None:
        self.facts = {fact.rank: fact for fact in sorted(facts, key=lambda fact: fact.rank)}
        self.case = case
        lines = [what, *_states(self.facts.values()), *(f"  {line}" for line in end)]
        for title, texts in (
            ("", self.tracebacks),
            ("stacks of ", self.stacks),
            ("output of ", self.outputs),
        ):
            for ranks, text in _alike(texts):
                lines += [f"--- {title}{ranks} ---", text.rstrip("\n")]
        super().__init__("\n".join(lines))

    @property
    def tracebacks(self) -> dict[int, str]:
        """Return the original traceback of every rank that raised."""
        return {rank: fact.traceback for rank, fact in self.facts.items() if fact.traceback}

    @property
    def ended(self) -> dict[int, str]:
        """Return the ends of processes that ended by themselves, by rank."""
        return {rank: fact.ended for rank, fact in self.facts.items() if fact.ended}

    @property
    def pids(self) -> dict[int, int]:
        """Return the process ids, by rank."""
        return {rank: fact.pid for rank, fact in self.facts.items() if fact.pid}

    @property
    def stacks(self) -> dict[int, str]:
        """Return the stacks of all threads, by rank."""
        return {rank: fact.stacks for rank, fact in self.facts.items() if fact.stacks}

    @property
    def outputs(self) -> dict[int, str]:
        """Return the tail of what each rank printed."""
        return {rank: fact.output for rank, fact in self.facts.items() if fact.output.strip()}


def _states(facts: Iterable[WorkerFacts]) -> list[str]:
    """Return one line per set of ranks that did the same."""
    alike: dict[tuple[str, str | None, int | None, bool], list[int]] = {}
    for fact in facts:
        alike.setdefault((fact.doing, fact.file, fact.line, fact.waits), []).append(fact.rank)
    states = [
        RankState(tuple(ranks), doing, file, line, waits)
        for (doing, file, line, waits), ranks in alike.items()
    ]
    return states_text(states, MAX_REPORT_LINES - 2)


def _alike(texts: Mapping[int, str]) -> list[tuple[str, str]]:
    """Return texts with the ranks that have them, each text once."""
    owners: dict[str, list[int]] = {}
    for rank, text in texts.items():
        owners.setdefault(text, []).append(rank)
    return [(who_text(ranks), text) for text, ranks in owners.items()]


class RanksRaisedError(PoolError):
    """The function of a case raised on one or more ranks; it is never run again.

    Attributes:
        errors: Rank -> the exception that it raised; own type kept where it can be pickled, else
            a RuntimeError with its text.
    """

    def __init__(
        self,
        what: str,
        facts: Iterable[WorkerFacts],
        *,
        errors: Mapping[int, BaseException],
        case: int = 0,
        end: Sequence[str] = (),
    ) -> None:
        super().__init__(what, facts, case=case, end=end)
        self.errors = dict(errors)


class BodyError(SimrankError):
    """The body of a test raised in a worker.

    Attributes:
        kind: The name of the exception's type.
        text: Its text.
        place: The innermost file and line.
        shown: What pytest shows of it.
        pickled: The exception as `errors.base.remade` has it, or None.
        outcome: The name of pytest's exception that it is, or empty.
    """

    def __init__(
        self,
        kind: str,
        text: str,
        place: str,
        shown: str,
        *,
        pickled: bytes | None = None,
        outcome: str = "",
    ) -> None:
        self.kind = kind
        self.text = text
        self.place = place
        self.shown = shown
        self.pickled = pickled
        self.outcome = outcome
        super().__init__(f"{kind}: {text}")


class RanksPartedError(PoolError, TimeoutError):
    """Ranks wait in collectives that other ranks never enter, up to a time limit.

    Attributes:
        waits_for: Rank -> the ranks that had not entered the call it was in.
    """

    def __init__(
        self,
        what: str,
        facts: Iterable[WorkerFacts],
        *,
        waits_for: Mapping[int, Sequence[int]],
        case: int = 0,
        end: Sequence[str] = (),
    ) -> None:
        super().__init__(what, facts, case=case, end=end)
        self.waits_for = {rank: tuple(others) for rank, others in waits_for.items()}


class InactiveRanksError(SimrankError, RuntimeError):
    """A request on some ranks called a collective that needs others, too.

    Attributes:
        inactive: The ranks of the group that take no part in the request.
    """

    def __init__(self, call: str, inactive: Sequence[int]) -> None:
        self.inactive = tuple(inactive)
        ranks = who_text(inactive)
        super().__init__(
            f"{call} would wait forever: {ranks} of its group take no part in this request\n"
            "  to fix: pass group=simrank.validate.active_group()"
        )


class ChannelError(PoolError):
    """Bytes on a worker's private channel are no frame of simrank."""


class PortInUseError(PoolError, OSError):
    """A port that was asked for is taken.

    Attributes:
        port: The port.
        holder: The listening process, for example `python3 (pid 4711)`; None: unknown.
    """

    def __init__(self, port: int, holder: str | None) -> None:
        self.port = port
        self.holder = holder
        who = "its holder is unknown" if holder is None else f"held by {holder}"
        super().__init__(f"port {port} is in use: {who}\n  to fix: port=0 takes a free one")


class TooFewDevicesError(PoolError):
    """There are fewer GPUs than workers; tests skip with its text.

    Attributes:
        needed: How many were asked for.
        found: How many there are.
    """

    def __init__(self, backend: str, needed: int, found: int) -> None:
        self.needed = needed
        self.found = found
        super().__init__(f"backend {backend!r} needs {needed} GPUs, but found {found}")


class RequestError(PoolError, PicklingError):
    """A function or its arguments cannot be pickled for the workers; nothing was run."""


class ResultError(PoolError):
    """A rank returned an object that the pool's process cannot rebuild, of a class it lacks say."""


class InfrastructureError(PoolError):
    """Perhaps the machine's fault: the case is run once more, on fresh workers."""


class WorkerDiedError(InfrastructureError):
    """A worker's process ended in the middle of a case, or between two."""


class WorkerTimeoutError(InfrastructureError, TimeoutError):
    """A case took longer than its time limit, and no rank was seen to diverge from the rest."""


class PoolStartError(InfrastructureError):
    """Workers did not become ready; the error has their progress and output."""


# ---- abnormal ends of ranks, with names and attributes of torch.multiprocessing ----


class RankAborted(Travels, SystemExit):
    """Thrown into a rank at its wait point because another rank of its group failed.

    Attributes:
        rank: The rank that is ended.
    """

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        super().__init__("another rank of the group failed")


class ProcessException(SimulationError):  # noqa: N818 - torch's name
    """Base class of spawn's errors; names and attributes as in torch.multiprocessing.

    Attributes:
        msg: The text.
        error_index: The rank.
        pid: The simulated process id (also `error_pid`).
    """

    def __init__(self, msg: str, error_index: int, pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.pid = self.error_pid = pid


class ProcessRaisedException(ProcessException):
    """A rank raised an exception."""


class SpawnException(ProcessRaisedException):
    """One or more ranks raised; the lowest is the one described first.

    Attributes:
        errors: Rank -> the exception it raised, own type kept; root causes only.
        consequences: Rank -> the PeerDiedError that it ended with, because another rank had died.
        stubborn: Ranks that swallowed every abort and were parked.
    """

    def __init__(
        self, msg: str, error_index: int, pid: int, *, errors: Mapping[int, BaseException]
    ) -> None:
        super().__init__(msg, error_index, pid)
        self.errors = dict(errors)
        self.consequences: dict[int, BaseException] = {}
        self.stubborn: tuple[int, ...] = ()


class ProcessExitedException(ProcessException):
    """A rank called `sys.exit` with a non-zero code, or was terminated.

    Attributes:
        exit_code: The code; minus the signal's number if it was terminated.
        signal_name: That signal's name, for example "SIGTERM", or None.
    """

    def __init__(
        self,
        msg: str,
        error_index: int,
        error_pid: int,
        exit_code: int,
        signal_name: str | None = None,
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name


def as_torchs(error: ProcessException) -> ProcessException:
    """Return an error that is torch's as well, where the program could catch that one."""
    torch_mp: Any = sys.modules.get("torch.multiprocessing")
    if not hasattr(torch_mp, "ProcessRaisedException"):  # Not there, or being imported.
        return error
    has_raised = isinstance(error, ProcessRaisedException)
    base = torch_mp.ProcessRaisedException if has_raised else torch_mp.ProcessExitedException
    kind = type(error)
    names = {
        "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__,
        "__reduce__": lambda _: error.__reduce__(),
    }  # fmt: skip
    both = type(kind.__name__, (kind, base), names)
    made: ProcessException = both.__new__(both, *error.args)
    made.args = error.args
    for name, value in vars(error).items():  # torch's classes have slots for some.
        setattr(made, name, value)
    made.__cause__, made.__suppress_context__ = error.__cause__, error.__suppress_context__
    return made
