"""`WorkerPool`: real processes that stay, run one request after the other, and cannot hang.

Start reading at `WorkerPool.run`. What may go wrong is in `simrank.errors.workers`; a worker's side
of it in `worker`, and what sees to it that no process is left in `keeper`.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import weakref
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simrank.errors import (
    InfrastructureError,
    PoolError,
    PoolStartError,
    PortInUseError,
    RanksPartedError,
    RanksRaisedError,
    RequestError,
    ResultError,
    WorkerDiedError,
    WorkerTimeoutError,
    ranks_text,
)
from simrank.errors.base import add_note
from simrank.validate import pickling
from simrank.validate.options import Options, Outcome, Setup
from simrank.validate.team import (
    Team,
    are_even,
    are_in_a_ring,
    cannot_arrive,
    left_behind,
    waits_for,
    waits_text,
)
from simrank.validate.this_worker import make_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from simrank.validate.team import TeamRequest

_KEPT_EVENTS = 1_000
BACKENDS = ("gloo", "nccl", None)


class WorkerPool:
    """Workers with ranks 0 to `num_workers - 1`, started at their first use.

    Args:
        num_workers: How many; for nccl at most the number of GPUs.
        backend: Of the process group that all workers share: "gloo", "nccl", or None for plain
            processes, without torch.
        timeout: Seconds that one case may take; `SIMRANK_TIMEOUT_FACTOR` multiplies it.
        env: Variables that workers have beside this process's; None removes one.
        reset: Called on every active rank before every case, after simrank's own reset.
        options: What is rarely set.

    Raises:
        ValueError: The backend is unknown, or the number is not positive.
    """

    def __init__(
        self,
        num_workers: int,
        backend: str | None = "gloo",
        timeout: float = 90.0,
        *,
        env: Mapping[str, str | None] | None = None,
        reset: Callable[[], object] | None = None,
        options: Options | None = None,
    ) -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers: expected 1 or more, got {num_workers}")
        if backend not in BACKENDS:
            raise ValueError(f"backend: expected 'gloo', 'nccl' or None, got {backend!r}")
        self.num_workers = num_workers
        self.backend = backend
        self.options = options or Options()
        self.limits = replace(self.options.limits, case_s=timeout).scaled()
        self.events: deque[str] = deque(maxlen=_KEPT_EVENTS)
        self.num_starts = 0
        self._reset = pickling.packed(reset)
        self._env = dict(env or {})
        self._case = 0
        self._name = ""  # Of the case's function.
        self._teams: list[Team] = []  # None or one; a list, for the finalizer of the pool.
        self._resources = ExitStack()
        self._lock = threading.Lock()
        self._is_closed = False
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._teams, self._resources, self._owner)

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - the function's own
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
        fresh: bool = False,
    ) -> list[Any]:
        """Run `fn(*args)` on all or some ranks, and return the results by rank.

        Args:
            fn: A function of a module; `simrank.validate.rank()` tells it where it runs.
            args: Pickled once; every rank gets its own copy.
            ranks: Those that take part; the others keep their place.
            timeout: Seconds, instead of the pool's.
            fresh: Whether to start new workers for it.

        Raises:
            RanksRaisedError: It raised; the error has the traceback of every rank that did.
            RanksPartedError: Ranks wait for others that never come.
            WorkerTimeoutError: It took too long, twice.
            WorkerDiedError: A worker died, twice.
            PoolStartError: Workers did not start, twice.
            PortInUseError, TooFewDevicesError: The pool cannot start as asked.
            RequestError: The function or its arguments cannot be pickled.
            ResultError: A result is of a class that this process lacks.
        """
        active = self._active(ranks)
        parcels = _parcels(fn, args, len(active))
        limit_s = self.limits.case_s if timeout is None else timeout
        with self._lock:
            if self._is_closed:
                raise PoolError("the pool is closed")
            if os.getpid() != self._owner:
                raise PoolError(
                    f"the pool belongs to process {self._owner}, of which this is a fork"
                    "\n  to fix: make a pool in the fork"
                )
            self._case += 1
            self._name = getattr(fn, "__qualname__", str(fn))
            if fresh:
                self._end_team("fresh workers were asked for", at_once=False)
            try:
                return self._attempt(active, parcels, limit_s)
            except InfrastructureError as error:
                if not self.options.retry:
                    raise
                first = error
            self._say(f"{_first_line(first)}; once more, on fresh workers")
            parcels = _parcels(fn, args, len(active))  # Descriptors are handed over once.
            try:
                return self._attempt(active, parcels, limit_s)
            except InfrastructureError as error:
                add_note(error, "simrank: the case was run twice, the second time on fresh workers")
                raise error from first

    def map(
        self,
        fn: Callable[..., Any],
        cases: Iterable[Sequence[Any]],
        *,
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> list[Outcome]:
        """Run `fn(*case)` for every case, failed ones included.

        Returns:
            One outcome per case, in order.
        """
        found = []
        for case in cases:
            started = time.monotonic()
            results: list[Any] = []
            error = None
            try:
                results = self.run(fn, *case, ranks=ranks, timeout=timeout)
            except PoolError as raised:
                error = raised
            found.append(Outcome(results, error, time.monotonic() - started))
        return found

    def enter(self, resource: Any) -> Any:  # noqa: ANN401 - a context manager
        """Enter a context that is left when the pool closes, after its workers have ended.

        What a worker holds open cannot make the end of a resource wait: the worker is gone by then.
        """
        return self._resources.enter_context(resource)

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the workers, by rank; none before the first case."""
        return [process.pid for team in self._teams for process in team.processes]

    def output(self, rank: int) -> str:
        """Return the tail of a rank's output since the last case began."""
        for team in self._teams:
            team.processes[rank].output.drain()
            return team.processes[rank].output.tail()
        return ""

    def start(self) -> None:
        """Start the workers now, if there are none; raises as `run` does."""
        with self._lock:
            self._team()

    def close(self) -> None:
        """End the workers in bounded time, then the entered contexts; in a fork, do neither."""
        if os.getpid() != self._owner:
            self._is_closed = True
            self._finalizer.detach()
            return
        with self._lock:
            self._is_closed = True
            try:
                self._end_team("", at_once=False)
            finally:
                self._finalizer.detach()
                self._resources.close()

    def __enter__(self) -> Self:
        """Return the pool, which is closed at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close it; at once, if the program was interrupted."""
        is_owner = os.getpid() == self._owner
        if kind is not None and not issubclass(kind, Exception) and is_owner:
            self._end_team("", at_once=True)  # Interrupted: no worker is asked to leave.
        self.close()

    def _active(self, ranks: Sequence[int] | None) -> tuple[int, ...]:
        if ranks is None:
            return tuple(range(self.num_workers))
        active = tuple(sorted(set(ranks)))
        if not active or active[0] < 0 or active[-1] >= self.num_workers:
            raise ValueError(
                f"ranks: expected some of 0 to {self.num_workers - 1}, got {list(ranks)}"
            )
        return active

    def _team(self) -> Team:
        if self._teams and (dead := self._teams[0].ended()):
            what = f"rank {dead[0].rank} {dead[0].ended} between two cases"
            self._end_team(what, at_once=True)
        if not self._teams:
            try:
                self._teams.append(Team(self._setup(), self.limits))
            except PortInUseError:  # Its text says more: the process that holds it.
                raise
            except OSError as error:  # No descriptor, process or memory left.
                raise PoolStartError(
                    f"{self.num_workers} workers could not start: {error}"
                ) from error
            self.num_starts += 1
        return self._teams[0]

    def _setup(self) -> Setup:
        environment = {"OMP_NUM_THREADS": "1", **os.environ}  # As torchrun does.
        if self.backend == "gloo":
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        for name, value in self._env.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        options = self.options
        return Setup(
            self.num_workers,
            self.backend,
            environment,
            self._reset,
            options.preload,
            options.port,
            options.echo,
            options.shares_modules,
        )

    def _attempt(
        self, active: tuple[int, ...], parcels: Sequence[bytes], limit_s: float
    ) -> list[Any]:
        team = self._team()
        everyone = tuple(range(self.num_workers))
        if self.backend is not None and active != everyone and active not in team.groups:
            making = pickling.parcels((make_group, (active,)), self.num_workers)
            self._ask(team, everyone, making, limit_s)
            team.groups.add(active)
        return self._ask(team, active, parcels, limit_s)

    def _ask(
        self, team: Team, ranks: tuple[int, ...], parcels: Sequence[bytes], limit_s: float
    ) -> list[Any]:
        """Send a request to a team, and replace the team if it is not reusable."""
        try:
            case = team.ask(self._case, ranks, parcels, limit_s)
            error = verdict(team, case)
        except BaseException:
            self._end_team("the case was cut off", at_once=True)
            raise
        if case.is_answered and not team.ended():
            if not are_even({r: a.state for r, a in case.answers.items()}):
                what = "ranks made different calls, or destroyed the pool's groups"
                self._end_team(what, at_once=True)
            elif what := left_behind({r: a.state for r, a in case.answers.items()}):
                self._end_team(f"case {self._case} ({self._name}) left {what}", at_once=False)
        else:
            self._end_team("" if error is None else _first_line(error), at_once=True)
        if error is not None:
            raise error
        return [self._result(rank, case.answers[rank].body) for rank in ranks]

    def _result(self, rank: int, body: bytes) -> Any:  # noqa: ANN401 - the function's own
        try:
            return pickle.loads(body)
        except Exception as error:  # What the class raises, or importing its module.
            raise ResultError(
                f"case {self._case}: rank {rank} returned an object that this process cannot "
                f"rebuild: {type(error).__name__}: {error}",
                case=self._case,
                end=["to fix: return plain data, or objects whose module this process can import"],
            ) from error

    def _end_team(self, why: str, *, at_once: bool) -> None:
        if self._teams:
            if why:
                self._say(f"{why}; the workers are {'killed' if at_once else 'ended'}")
            team = self._teams.pop()
            team.end(at_once=at_once)

    def _say(self, what: str) -> None:
        self.events.append(what)
        if self.options.echo is not None:
            self.options.echo.write(f"[pool] {what}\n")
            self.options.echo.flush()


def _end(teams: list[Team], resources: ExitStack, owner: int) -> None:
    """End the workers of a dropped pool; a fork of its process leaves them alone."""
    if os.getpid() == owner:
        for team in teams:
            team.end(at_once=True)
        resources.close()


def _parcels(fn: Callable[..., Any], args: Sequence[Any], num_workers: int) -> list[bytes]:
    try:
        return pickling.parcels((fn, args), num_workers)
    except Exception as error:  # What pickle raises, or a method of an argument.
        name = getattr(fn, "__qualname__", str(fn))
        raise RequestError(
            f"{name} or its arguments cannot be pickled for the workers: "
            f"{type(error).__name__}: {error}",
            end=["to fix: define the function at the top of a module, and pass plain data"],
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


# ---- What a case that is over came to ----

_CAUSE_S = 0.25  # assumed: peers of a rank that dies fail within this, before its end is seen


def verdict(team: Team, case: TeamRequest) -> PoolError | None:
    """Return the error of a finished case, or None.

    A rank that died is the cause of what its peers raised at about that time; a rank that raised
    is the cause of those that still wait.
    """
    dead = [process for process in team.ended() if process.rank in case.ranks]
    raised = {rank: a for rank, a in case.answers.items() if not a.is_return}
    first_s = min((answer.arrived_s for answer in raised.values()), default=float("inf"))
    number = f"case {case.number}"
    many = f"of {len(case.ranks)} rank(s)"
    end = [] if case.is_answered else ["the workers were killed; the next case has fresh ones"]
    if dead and min(process.ended_s for process in dead) <= first_s + _CAUSE_S:
        who = ranks_text(process.rank for process in dead)
        what = f"{number}: rank {who} died: {dead[0].ended}"
        return WorkerDiedError(what, team.facts(case, with_stacks=False), case=case.number, end=end)
    if raised:
        return RanksRaisedError(
            f"{number}: {len(raised)} {many} raised",
            team.facts(case, with_stacks=False),
            errors={rank: answer.exception() for rank, answer in sorted(raised.items())},
            case=case.number,
            end=end,
        )
    if case.is_answered:
        return None
    missing = len(case.ranks) - len(case.answers)
    limit = "" if case.has_diverged else f" within {case.timeout_s:g} s"
    what = f"{number}: {missing} {many} {'hang' if case.has_diverged else 'did not answer'}{limit}"
    return _hang(team, case, what, end)


def _hang(team: Team, case: TeamRequest, what: str, end: Sequence[str]) -> PoolError:
    pages = team.pages(case.ranks)
    waits = waits_for(pages)
    end = [*waits_text(waits), *end]
    facts = team.facts(case, with_stacks=True)
    if cannot_arrive(pages, waits) or are_in_a_ring(waits):
        return RanksPartedError(what, facts, waits_for=waits, case=case.number, end=end)
    return WorkerTimeoutError(what, facts, case=case.number, end=end)
