"""multiprocessing's pools in a rank: workers are its processes, and pipes its queues."""

from __future__ import annotations

import atexit
import functools
from typing import TYPE_CHECKING, Any
from weakref import ref

from simrank.multiprocessing import shared
from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    Patches = list[tuple[Any, str, Any]]


def of_pool(module: ModuleType) -> Patches:
    """Return patches for the parts of a pool that differ in ranks."""
    kind: Any = vars(module)["Pool"]
    threads_too = kind, vars(module)["ThreadPool"]

    def setup(self: Any) -> None:  # noqa: ANN401 - a pool
        self._inqueue, self._outqueue = PoolPipe(), PoolPipe()
        self._quick_put, self._quick_get = self._inqueue.put, self._outqueue.get
        self._terminate_pool = _on_ranks(_nothing, kind._terminate_pool)  # noqa: SLF001
        atexit.register(_terminate, ref(self))  # As a process ends its pools at exit.

    return [
        (kind, "_setup_queues", _on_ranks(kind._setup_queues, setup)),  # noqa: SLF001 - its parts
        *(
            (each, "_get_sentinels", _on_ranks(each._get_sentinels, lambda _: []))  # noqa: SLF001
            for each in threads_too
        ),
        *(
            (kind, name, staticmethod(_on_ranks(getattr(kind, name), function)))
            for name, function in (
                ("_get_worker_sentinels", list),
                ("_help_stuff_finish", _drain),
                ("_wait_for_updates", _wait_for_updates),
            )
        ),
    ]


class PoolPipe(shared.SimpleQueue):
    """A pipe of a pool of processes: what is put in is copied, as pickling does."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:  # noqa: ANN401
        """Put a copy in."""
        super().put(shared.packed(item), block, timeout)


def _on_ranks(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        return (original if rank_program() is None else function)(*args, **kwargs)

    return call


def _nothing(*_: object) -> None:
    """Leave the workers of a rank that has ended: they have ended, too."""


def _terminate(pool: ref[Any]) -> None:
    found = pool()
    if found is not None:
        found.terminate()


def _drain(inqueue: PoolPipe, task_handler: object, size: int) -> None:
    """Take the tasks out that no worker of a pool has begun."""
    del task_handler, size
    while not inqueue.empty():
        inqueue.get()


def _wait_for_updates(workers: Iterable[Any], changes: Any, timeout: None = None) -> None:  # noqa: ANN401
    """Wait until a worker of a pool has ended, or the pool's state has changed."""
    del timeout
    for worker in workers:
        child: Any = getattr(worker, "_popen", None)
        if hasattr(child, "tell_end"):  # Others are threads, which a pool does not replace.
            child.tell_end(changes)
    changes.get()
