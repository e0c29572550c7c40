"""torch.multiprocessing on simulated ranks: `spawn`, then `shared` (queues and locks)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simrank.errors import (
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnException,
)
from simrank.multiprocessing.processes import ProcessContext, SpawnContext
from simrank.multiprocessing.spawn import spawn, start_processes

if TYPE_CHECKING:
    from simrank.multiprocessing.shared import (
        Array,
        Barrier,
        BoundedSemaphore,
        Condition,
        Event,
        JoinableQueue,
        Lock,
        Manager,
        Pool,
        Process,
        Queue,
        RLock,
        Semaphore,
        SimpleQueue,
        Value,
        get_context,
    )

__all__ = [
    "Array",
    "Barrier",
    "BoundedSemaphore",
    "Condition",
    "Event",
    "JoinableQueue",
    "Lock",
    "Manager",
    "Pool",
    "Process",
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "Queue",
    "RLock",
    "Semaphore",
    "SimpleQueue",
    "SpawnContext",
    "SpawnException",
    "Value",
    "get_context",
    "spawn",
    "start_processes",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class or function
    if name in __all__:  # What ranks share is imported at first use.
        shared = import_module("simrank.multiprocessing.shared")
        value = globals()[name] = getattr(shared, name)
        return value
    raise AttributeError(f"module 'simrank.multiprocessing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
