"""Working "cuda" devices in CPU memory, for a CPU build of torch; start in `devices.py`.

Programs with `device="cuda"` run unchanged: torch's C++ believes in the devices, kernels are
computed by CPU torch, random numbers are CUDA's. Nothing takes time here: the simulator above
listens through `Callbacks` and gives operations, streams and events theirs.
"""

from simrank.torch.cuda.callbacks import Callbacks, Rendezvous, StreamCall
from simrank.torch.cuda.devices import (
    Layout,
    RankState,
    disable,
    enable,
    is_enabled,
    standalone,
    unbind,
)
from simrank.torch.cuda.properties import DeviceProperties

__all__ = [
    "Callbacks",
    "DeviceProperties",
    "Layout",
    "RankState",
    "Rendezvous",
    "StreamCall",
    "disable",
    "enable",
    "is_enabled",
    "standalone",
    "unbind",
]
