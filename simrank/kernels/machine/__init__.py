"""The running programs of a kernel and their counts, used by all other packages of kernels.

Read `now` (the programs that run), `statistics` (what a launch did) and `protocols` (what this
room and memory need of the rooms above).
"""

from simrank.kernels.machine.protocols import Effects, Order
from simrank.kernels.machine.running import (
    ALL_PROGRAMS,
    FUSED,
    SIMPLE,
    SPECIAL,
    LaunchOptions,
    Programs,
    PublishedError,
    RunningLaunch,
    UnmaskableError,
    clock_ps,
    is_as_hardware,
    is_running,
    now,
    require_all,
    run,
    set_running,
    spend,
)
from simrank.kernels.machine.statistics import Dot, Extent, Statistics

__all__ = [
    "ALL_PROGRAMS",
    "FUSED",
    "SIMPLE",
    "SPECIAL",
    "Dot",
    "Effects",
    "Extent",
    "LaunchOptions",
    "Order",
    "Programs",
    "PublishedError",
    "RunningLaunch",
    "Statistics",
    "UnmaskableError",
    "clock_ps",
    "is_as_hardware",
    "is_running",
    "now",
    "require_all",
    "run",
    "set_running",
    "spend",
]
