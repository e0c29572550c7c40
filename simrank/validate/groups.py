"""The process groups of a worker: made and tested once, destroyed without peers."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from simrank.errors import TooFewDevicesError

if TYPE_CHECKING:
    from simrank.validate.current_call import Calls

# The types of Mooncake's reduce kernels, and fp16, which it lacks; loaded before the first case.
_DTYPES = {
    "gloo": ("float32", "int64"),
    "nccl": ("uint8", "int8", "int32", "int64", "float32", "float64", "float16", "bfloat16"),
}


class Groups:
    """The pool's groups in one worker: all ranks, and each set of ranks that a request had."""

    def __init__(self, calls: Calls) -> None:
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
            with suppress(Exception):  # Nobody's consent is needed to end.
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
