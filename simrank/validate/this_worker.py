"""The worker of this process: its rank, process groups, and the ranks of a request.

A test's body calls `init_process_group` and `destroy_process_group` as it would in a new process.
Communicators are costly, so it gets the pool's, which stays when the body leaves it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from simrank.errors import NoRankError, TooFewDevicesError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.validate.current_call import WorkerCalls


# ---- the process groups of a worker: made and tested once, destroyed without peers ----

# The types of Mooncake's reduce kernels, and fp16, which it lacks; loaded before the first case.
_DTYPES = {
    "gloo": ("float32", "int64"),
    "nccl": ("uint8", "int8", "int32", "int64", "float32", "float64", "float16", "bfloat16"),
}


class PoolGroups:
    """The pool's groups in one worker: all ranks, and each set of ranks that a request had."""

    def __init__(self, calls: WorkerCalls) -> None:
        self._calls = calls
        self._own: dict[tuple[int, ...], Any] = {}
        self._store: Any = None

    def join(self, setup: dict[str, Any], listener: int | None) -> None:
        """Meet the other workers.

        Args:
            setup: What the pool sent: rank, num_workers, backend, port, timeout_s.
            listener: The bound socket of the store, in the worker of rank 0.

        Raises:
            TooFewDevicesError: There are fewer GPUs than workers.
            RuntimeError: The first collective gave something else than the sum.
        """
        self._calls.stage("importing torch")
        import torch  # noqa: PLC0415 - optional
        import torch.distributed as dist  # noqa: PLC0415 - optional

        self._calls.watch_torch()
        rank, num_workers, backend = setup["rank"], setup["num_workers"], setup["backend"]
        options: dict[str, Any] = {}
        if backend == "nccl":
            found = torch.cuda.device_count()
            if found < num_workers:
                raise TooFewDevicesError(backend, num_workers, found)
            torch.cuda.set_device(rank)
            options["device_id"] = torch.device("cuda", rank)
        timeout = timedelta(seconds=setup["timeout_s"])
        self._calls.stage("rendezvous")
        self._store = dist.TCPStore(
            "127.0.0.1",
            setup["port"],
            num_workers,
            is_master=rank == 0,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listener,
        )
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("simrank", self._store),
            rank=rank,
            world_size=num_workers,
            timeout=timeout,
            **options,
        )
        self._own[tuple(range(num_workers))] = dist.group.WORLD
        self._calls.stage("first collective")
        try_group(dist.group.WORLD, backend)

    def make(self, ranks: tuple[int, ...]) -> None:
        """Make the group of some ranks; every worker does, members or not.

        Not by the members alone (`use_local_synchronization`): torch 2.13 names such a group by the
        number of groups that a rank has, which differs where ranks were in other groups before,
        and they wait for each other forever.
        """
        dist: Any = sys.modules["torch.distributed"]
        self._own[ranks] = dist.new_group(list(ranks))

    def of(self, ranks: tuple[int, ...]) -> Any:  # noqa: ANN401 - torch's
        """Return the group of some ranks."""
        return self._own[ranks]

    def store(self, name: str) -> Any:  # noqa: ANN401 - torch's
        """Return a part of the store under a name."""
        return sys.modules["torch.distributed"].PrefixStore(f"simrank {name}", self._store)

    def drop_strangers(self) -> None:
        """Destroy a case's remaining groups; the pool's own groups stay."""
        dist: Any = sys.modules["torch.distributed"]
        own = list(self._own.values())
        for group in _all_groups():
            if not any(group is kept for kept in own):
                with suppress(Exception):  # It is the case's, and perhaps broken.
                    dist.destroy_process_group(group)

    def are_whole(self) -> bool:
        """Return whether no case has destroyed one of the pool's own."""
        there = _all_groups()
        others = sys.modules["torch.distributed"].GroupMember.NON_GROUP_MEMBER
        return all(
            kept is others or any(group is kept for group in there) for kept in self._own.values()
        )

    def leave(self) -> None:
        """Destroy subgroups, then the main group, each on its own."""
        dist: Any = sys.modules["torch.distributed"]
        for group in reversed(_all_groups()):
            with suppress(Exception):  # An error does not keep it from ending.
                dist.destroy_process_group(group)


def drop_all() -> None:
    """Destroy the groups that a case left, in a pool without groups of its own."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        with suppress(Exception):  # Perhaps broken; the next case says so if it is.
            dist.destroy_process_group()


def _all_groups() -> list[Any]:
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    return list(c10d._world.pg_map)  # noqa: SLF001 - torch has no list of groups


def try_group(group: Any, backend: str) -> None:  # noqa: ANN401 - torch's
    """Sum over a group in every type that a case may use; kernels are loaded by it, too.

    Raises:
        RuntimeError: A sum is wrong.
    """
    import torch  # noqa: PLC0415 - optional
    import torch.distributed as dist  # noqa: PLC0415 - optional

    device = "cuda" if backend == "nccl" else "cpu"
    size = dist.get_world_size(group)
    for name in _DTYPES[backend]:
        value = torch.ones(1, dtype=getattr(torch, name), device=device)
        dist.all_reduce(value, group=group)
        if value.item() != size:
            raise RuntimeError(f"the first all_reduce of {name} gave {value.item()}, not {size}")


# ---- the worker of this process: rank, groups, and the ranks of a request ----

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

    def __init__(
        self, rank: int, num_workers: int, backend: str | None, calls: WorkerCalls
    ) -> None:
        self.rank = rank
        self.num_workers = num_workers
        self.backend = backend
        self.active: tuple[int, ...] = tuple(range(num_workers))
        self.calls = calls
        self.reset: Callable[[], object] | None = None
        self.request = 0
        self.is_leaving = False
        self._groups: PoolGroups | None = None

    def join(self, setup: dict[str, Any], listener: int | None) -> None:
        """Make the process groups, and try them."""
        self._groups = PoolGroups(self.calls)
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
            drop_all()

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
        NoRankError: The process is no worker.
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
        ranks: Those that take part; None: the active ranks.
    """
    found = worker()
    return found.calls.during(op, group, found.active if ranks is None else ranks)


# ---- the pool's process group, lent to a program that makes and leaves its own ----

_INIT, _DESTROY = "init_process_group", "destroy_process_group"
_wrapped: list[str] = []  # The names, once they are.


def lend() -> None:
    """Unset the default process group before a body, until the program makes one."""
    found = worker()
    if found.backend is None:
        return
    if not _wrapped:
        for name, make in ((_INIT, _init_with), (_DESTROY, _destroy_with)):
            original = getattr(_c10d(), name)
            _replace(name, original, make(original, found))
            _wrapped.append(name)
    _set_default(None)


def _c10d() -> Any:  # noqa: ANN401 - a module
    return sys.modules["torch.distributed.distributed_c10d"]


def _set_default(group: Any) -> None:  # noqa: ANN401 - torch's
    _c10d()._update_default_pg(group)  # noqa: SLF001 - torch has no other way


def _replace(name: str, original: object, wrapped: object) -> None:
    """Put a function in the place of torch's wherever a module of torch has bound it."""
    for module_name, module in sys.modules.copy().items():
        if module_name.startswith("torch.") and vars(module).get(name) is original:
            setattr(module, name, wrapped)


def _init_with(original: Callable[..., None], found: Worker) -> Callable[..., None]:
    made = [0, 0]  # The request, and how many groups it has made of its own.

    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,  # noqa: ANN401 - torch's
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,  # noqa: ANN401 - torch's
        **others: Any,  # noqa: ANN401 - torch's
    ) -> None:
        """Replace torch's function of this name, with its parameters.

        Raises:
            UnsupportedError: It names another backend than the one that the ranks run on.
            ValueError: There is a default group already.
        """
        given = {"timeout": timeout, "world_size": world_size, "rank": rank}
        if store is not None or init_method not in (None, "env://"):  # A rendezvous of its own.
            original(backend, init_method, store=store, **given, **others)
            return
        if backend is not None and ":" not in backend and backend.lower() != found.backend:
            raise UnsupportedError(
                f"init_process_group({backend!r}) on ranks that are real processes of "
                f"{found.backend}\n  to fix: init_process_group() takes what the ranks run on"
            )
        if sys.modules["torch.distributed"].is_initialized():
            raise ValueError("trying to initialize the default process group twice!")
        if found.backend == "nccl" and _is_own_device(others.get("device_id"), found.rank):
            del others["device_id"]  # The pool has named it, too.
        is_own = rank in (-1, found.rank) and world_size in (-1, found.num_workers)
        is_plain = timeout is None and not any(others.values()) and ":" not in (backend or "")
        if is_own and is_plain:
            _set_default(found.group())
            return
        made[:] = [found.request, made[1] + 1 if made[0] == found.request else 1]
        store = found.store(f"own {made[0]}.{made[1]}")  # Keys that no case before has used.
        given |= {"rank": int(os.environ["RANK"]) if rank == -1 else rank}
        given |= {"world_size": found.num_workers if world_size == -1 else world_size}
        original(backend or found.backend, store=store, **given, **others)

    return init_process_group


def _is_own_device(device_id: Any, rank: int) -> bool:  # noqa: ANN401 - torch's
    """Return whether a device, or its number, is the one that the pool has given to a rank."""
    return device_id is not None and getattr(device_id, "index", device_id) == rank


def _destroy_with(original: Callable[..., None], found: Worker) -> Callable[..., None]:
    def destroy_process_group(group: Any = None) -> None:  # noqa: ANN401 - torch's
        """Replace torch's function of this name; the pool's own groups stay."""
        default = _c10d().GroupMember.WORLD
        is_others = default is None or (group is not None and group is not default)
        if is_others or found.is_leaving:
            original(group)
            return
        _set_default(None)
        found.drop_groups()

    return destroy_process_group
