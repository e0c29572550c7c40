"""The worker of this process: rank, groups, and the ranks of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.errors import NoRankError
from simrank.validate import groups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.validate.current_call import Calls

_WORKER: list[Worker] = []


class Worker:
    """The state of this process's worker.

    Attributes:
        rank: Its rank.
        num_workers: Of its pool.
        backend: "gloo", "nccl" or None.
        active: The ranks that take part in the current request, ascending.
        calls: Where it says what it is doing.
        reset: The pool's hook, called before every case, or None.
        request: The number of the current request, the same on every rank.
        is_leaving: Whether the process ends.
    """

    def __init__(self, rank: int, num_workers: int, backend: str | None, calls: Calls) -> None:
        self.rank = rank
        self.num_workers = num_workers
        self.backend = backend
        self.active: tuple[int, ...] = tuple(range(num_workers))
        self.calls = calls
        self.reset: Callable[[], object] | None = None
        self.request = 0
        self.is_leaving = False
        self._groups: groups.Groups | None = None

    def join(self, setup: dict[str, Any], listener: int | None) -> None:
        """Make the process groups, and try them."""
        self._groups = groups.Groups(self.calls)
        self._groups.join(setup, listener)

    def activate(self, ranks: Sequence[int]) -> None:
        """Take part in a request of some ranks."""
        self.active = tuple(ranks)
        self.calls.active = frozenset(ranks)

    def drop_groups(self) -> None:
        """Destroy the groups that the case before made and left."""
        if self._groups is not None:
            self._groups.drop_strangers()
        elif self.backend is None:
            groups.drop_all()

    def are_groups_whole(self) -> bool:
        """Return whether the pool's groups are as they were made."""
        return self._groups is None or self._groups.are_whole()

    def make_group(self, ranks: tuple[int, ...]) -> None:
        """Make the process group of some ranks, as every worker does at the same time."""
        assert self._groups is not None, "the pool has a backend"
        self._groups.make(ranks)

    def group(self) -> Any:  # noqa: ANN401 - a torch group
        """Return the process group of the active ranks."""
        if self._groups is None:
            raise NoRankError("a pool without a backend has no process groups")
        return self._groups.of(self.active)

    def store(self, name: str) -> Any:  # noqa: ANN401 - torch's
        """Return an unused part of the workers' store."""
        assert self._groups is not None, "the pool has a backend"
        return self._groups.store(name)

    def leave(self) -> None:
        """Destroy each group without peers; a failure does not stop the rest."""
        self.is_leaving = True
        if self._groups is not None:
            self._groups.leave()


def set_worker(worker: Worker) -> None:
    """Make this process a worker; once."""
    _WORKER[:] = [worker]


def is_worker() -> bool:
    """Return whether this process is a worker of a pool."""
    return bool(_WORKER)


def worker() -> Worker:
    """Return the worker that this process is.

    Raises:
        NoRankError: It is none.
    """
    if not _WORKER:
        raise NoRankError("this process is no worker of a pool")
    return _WORKER[0]


def make_group(ranks: tuple[int, ...]) -> None:
    """Make the process group of some ranks; a request of the pool's own."""
    worker().make_group(ranks)


def rank() -> int:
    """Return the rank of this worker."""
    return worker().rank


def world_size() -> int:
    """Return the number of workers, inactive ones included."""
    return worker().num_workers


def active_ranks() -> tuple[int, ...]:
    """Return the ranks that take part in this request."""
    return worker().active


def active_group() -> Any:  # noqa: ANN401 - a torch group
    """Return the torch process group of the ranks that take part in this request."""
    return worker().group()


def collective(op: str, group: str = "workers", ranks: Sequence[int] | None = None) -> Any:  # noqa: ANN401 - a context
    """Publish that this rank waits in a collective of the program, for reports of hangs.

    Args:
        op: Its name.
        group: The name of the group; calls are counted for each.
        ranks: Who takes part; None: the active ranks.
    """
    found = worker()
    return found.calls.during(op, group, found.active if ranks is None else ranks)
