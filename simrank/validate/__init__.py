"""Real processes: a pool of workers that cannot hang. Start with `WorkerPool`."""

from simrank.validate.current import (
    active_group,
    active_ranks,
    collective,
    rank,
    world_size,
)
from simrank.validate.limits import Limits
from simrank.validate.pool import Options, Outcome, WorkerPool

__all__ = [
    "Limits",
    "Options",
    "Outcome",
    "WorkerPool",
    "active_group",
    "active_ranks",
    "collective",
    "rank",
    "world_size",
]
