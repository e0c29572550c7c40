"""torch.multiprocessing on simulated ranks: start with `spawn`; `shared` is what ranks share."""

from simrank.errors import (
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnException,
)
from simrank.multiprocessing import children as children
from simrank.multiprocessing import pipes as pipes
from simrank.multiprocessing.processes import ProcessContext, SpawnContext
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
from simrank.multiprocessing.spawn import spawn, start_processes

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
