"""torch.multiprocessing on simulated ranks: start with `spawn`."""

from simrank.errors import (
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnException,
)
from simrank.multiprocessing.spawn import ProcessContext, spawn

__all__ = [
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnException",
    "spawn",
]
