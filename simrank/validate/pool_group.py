"""The pool's process group, lent to a program that makes and leaves its own.

A test's body calls `init_process_group` and `destroy_process_group` as it would in a new process.
Communicators are costly, so it gets the pool's, which stays when the body leaves it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from simrank.errors import UnsupportedError
from simrank.validate.this_worker import worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.validate.this_worker import Worker

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
