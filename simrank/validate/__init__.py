"""Real processes: a pool of workers that cannot hang. Start with `WorkerPool`.

`import simrank.validate as mp` stands where `import torch.multiprocessing as mp` stood.
"""

from simrank.errors import (
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnException,
)
from simrank.validate.children import (
    child_timeout,
    kill_subprocesses,
    outer_timeout,
    track_child_processes,
)
from simrank.validate.options import Limits, Options, Outcome
from simrank.validate.pool import WorkerPool
from simrank.validate.spawn import SpawnContext, spawn
from simrank.validate.this_worker import active_group, active_ranks, collective, rank, world_size

__all__ = [
    "Limits",
    "Options",
    "Outcome",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "SpawnException",
    "WorkerPool",
    "active_group",
    "active_ranks",
    "child_timeout",
    "collective",
    "kill_subprocesses",
    "outer_timeout",
    "rank",
    "spawn",
    "track_child_processes",
    "world_size",
]
