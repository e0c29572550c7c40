"""Working "cuda" devices in CPU memory, for a CPU build of torch; start in `switch.py`.

Programs with `device="cuda"` run unchanged: torch's C++ believes in the devices, kernels are
computed by CPU torch, random numbers are CUDA's. Nothing takes time here: the simulator above
listens through `Callbacks` and gives operations, streams and events theirs.
"""

from simrank.torch.cuda.memory import Block, device_of, find_block, find_pinned, hold, signal_pad
from simrank.torch.cuda.operations import (
    Callbacks,
    DeviceOperation,
    Operand,
    OperationFlag,
    Rendezvous,
    StreamCall,
    decode,
    drain_words,
    pending_add,
    pending_remove,
    start_recording,
    stop_recording,
    touch,
    watch_scopes,
)
from simrank.torch.cuda.switch import (
    DeviceProperties,
    Layout,
    RankState,
    disable,
    enable,
    is_enabled,
    standalone,
    unbind,
)

__all__ = [
    "Block",
    "Callbacks",
    "DeviceOperation",
    "DeviceProperties",
    "Layout",
    "Operand",
    "OperationFlag",
    "RankState",
    "Rendezvous",
    "StreamCall",
    "decode",
    "device_of",
    "disable",
    "drain_words",
    "enable",
    "find_block",
    "find_pinned",
    "hold",
    "is_enabled",
    "pending_add",
    "pending_remove",
    "signal_pad",
    "standalone",
    "start_recording",
    "stop_recording",
    "touch",
    "unbind",
    "watch_scopes",
]
