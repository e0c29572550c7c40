"""Process groups that a program makes itself, as instances of their classes."""

from __future__ import annotations

import functools
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from simrank.ranks import require_rank
from simrank.torch import nccl
from simrank.torch.debug_detail import Checker
from simrank.torch.group import SimulatedGroup
from simrank.torch.registry import make_group
from simrank.torch.rendezvous import meet_at
from simrank.torch.stores import PrefixStore, dispatching

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch.distributed as dist

_DEFAULT_LIMIT = timedelta(minutes=30)  # c10d's; nccl's is 10.


def made_by_hand(
    backend: str, store: dist.Store, rank: int, size: int, options: Any, timeout: timedelta | None
) -> SimulatedGroup:
    """Return the running rank's side of a group whose members meet in a store, and wait there.

    Args:
        backend: Its backend.
        store: One that the members share, and nobody else uses for the same.
        rank: The group rank of the caller, who may be any rank.
        size: The number of members.
        options: Of the class, for its time limit; or the time limit.
        timeout: The time limit, else.
    """
    program = require_rank(f"a process group of {backend}")
    if isinstance(options, timedelta):
        timeout = options
    limit = timeout or getattr(options, "_timeout", None) or _DEFAULT_LIMIT
    times = store.add(f"simrank/{backend}/{rank}", 1)
    place = f"simrank/{backend}/{times}"
    members = [met.number for met in meet_at(place, program, store, rank, size)]
    if rank == 0:
        # A name that no other group of these members has, wherever they meet.
        store.set(f"{place}/name", f"by_hand_{program.rank}_{_count(program)}")
    name = store.get(f"{place}/name").decode()
    made = make_group(backend, name, members, limit, None)
    assert made is not None, "a member"
    made.is_by_hand = True
    return made


_KEY = "groups made by hand"


def _count(program: Any) -> int:
    number: int = program.local.get(_KEY, 0)
    program.local[_KEY] = number + 1
    return number


class _OfBackend(type):
    """Metaclass: groups and backends of the class's backend are its instances."""

    def __instancecheck__(cls: Any, instance: object) -> bool:
        return getattr(instance, "simulated_backend", None) == cls.backend


class _ByHand(metaclass=_OfBackend):
    """Stands for a class of c10d: what it makes in ranks is a simulated group.

    Attributes:
        backend: Of the groups.
    """

    backend = ""

    def __new__(
        cls,
        store: dist.Store,
        rank: int,
        size: int,
        options: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        return made_by_hand(cls.backend, store, rank, size, options, timeout)


class ProcessGroupGloo(_ByHand):
    """Stands for the class of this name."""

    backend = "gloo"


class ProcessGroupNCCL(_ByHand, nccl.ProcessGroupNCCL):
    """Stands for the class of this name, which has options."""

    backend = "nccl"


def _wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let calls of a simulated group be compared, where the program wraps one itself."""

    @functools.wraps(original)
    def wrap(
        wrapped_pg: Any, store_prefix: str, store: Any, rank: int, world_size: int, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        if not isinstance(wrapped_pg, SimulatedGroup):
            return original(wrapped_pg, store_prefix, store, rank, world_size, *args, **kwargs)
        prefix = PrefixStore(f"wrapper of {store_prefix}", store)
        helper = made_by_hand("gloo", prefix, rank, world_size, None, None)
        wrapped_pg.checker = Checker(helper.simulated, rank)
        return wrapped_pg

    return wrap


def patches(owners: Sequence[Any]) -> list[tuple[Any, str, Any]]:
    """Return what to replace in modules that have the classes."""
    found: list[tuple[Any, str, Any]] = []
    for owner in owners:
        for simulated in (ProcessGroupGloo, ProcessGroupNCCL):
            name = simulated.__name__
            original: Any = getattr(owner, name, simulated)
            found.append((owner, name, dispatching(original, simulated)))
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    name = "_create_process_group_wrapper"
    found.append((c10d, name, _wrapping(getattr(c10d, name))))
    return found
