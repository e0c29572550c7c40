"""GPUs as the main program of a test suite sees them: number and properties.

PyTorch's tests ask in the process that starts the ranks how many GPUs there are, to skip tests and
to choose a world size and a backend, and whether GPUs reach each other. That process computes on
none of them: its streams are idle, and all memory is free.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from simrank.context import Context
from simrank.ranks.current import running_task
from simrank.torch.cuda.bindings import nccl_versions
from simrank.torch.cuda.library import native
from simrank.torch.cuda.switch import is_enabled
from simrank.torch.devices import activation
from simrank.torch.devices.rank_devices import visible_in_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.hardware.cluster import Cluster

_asked: list[str | None] = []  # What "cuda" means, once devices are shown.


def show_devices(cuda_devices: str | None = None) -> None:
    """Show the GPUs of a node to the main program; ranks are not affected.

    Args:
        cuda_devices: As for a Context.
    """
    if _asked:
        _asked[0] = cuda_devices
        _of_node.cache_clear()
        return
    _asked.append(cuda_devices)
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    answers: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.cuda, "is_available", _has_some),
        (torch.cuda, "device_count", _num_devices),
        (torch.cuda, "current_device", lambda: 0),
        (
            torch.cuda,
            "get_device_properties",
            lambda _device=None: activation.properties_of(_node()),
        ),
        (torch.cuda, "can_device_access_peer", _reach_each_other),
        (torch.cuda, "mem_get_info", _memory),
        (torch.cuda.memory, "mem_get_info", _memory),
        (torch.cuda, "is_current_stream_capturing", _never),
        (torch.cuda.graphs, "is_current_stream_capturing", _never),
        (torch.cuda, "synchronize", lambda _device=None: None),
        (torch.accelerator, "is_available", _has_some),
        (torch.accelerator, "device_count", _num_devices),
        (torch.accelerator, "current_accelerator", _accelerator),
        (torch.accelerator, "current_device_index", lambda: 0),
        (torch.accelerator, "current_device_idx", lambda: 0),
        (torch.accelerator, "current_stream", IdleStream),
        (torch.accelerator, "synchronize", lambda _device=None: None),
        (torch, "get_device_module", _module_of),
        (torch.distributed, "is_nccl_available", lambda: True),
        (c10d, "is_nccl_available", lambda: True),
    ]
    asks: dict[Any, Any] = {}  # By original: modules that share one share its replacement.
    for owner, name, answer in answers:
        original = getattr(owner, name)
        if original not in asks:
            asks[original] = _in_main_program(original, answer)
        setattr(owner, name, asks[original])
    bindings: Any = import_module("torch._C")
    for name, version in nccl_versions().items():
        if not hasattr(bindings, name):
            setattr(bindings, name, version)
    kind: Any = import_module("torch.testing._internal.common_device_type").CUDATestBase
    kind.setUpClass = classmethod(_choose_device)


class IdleStream:
    """The current stream of a device on which the main program computes nothing.

    Args:
        device: The device; None: the first one.

    Attributes:
        device: The device.
        stream_id: Its number: a device's default stream.
    """

    def __init__(self, device: Any = None) -> None:
        self.device = torch.device("cuda", _index_of(device))
        self.stream_id = 0

    def is_capturing(self) -> bool:
        """Return False: nothing is captured here."""
        return False

    def query(self) -> bool:
        """Return True: nothing runs here."""
        return True

    def synchronize(self) -> None:
        """Do nothing: nothing runs here."""


def _never() -> bool:
    return False


def _index_of(device: Any) -> int:
    """Return the index of a device; 0 if none is given.

    Raises:
        AssertionError: There is no such device; torch's words.
    """
    if device is None:
        return 0
    index = device if isinstance(device, int) else torch.device(device).index or 0
    if not 0 <= index < _num_devices():
        raise AssertionError("Invalid device id")
    return index


def _reach_each_other(device: Any, peer_device: Any) -> bool:
    """Return whether two devices exist: devices of a node have peer access."""
    return _index_of(device) >= 0 and _index_of(peer_device) >= 0


def _memory(device: Any = None) -> tuple[int, int]:
    """Return the free and total bytes of a device."""
    _index_of(device)
    total_bytes = activation.properties_of(_node()).total_memory
    return total_bytes, total_bytes


def _module_of(device: Any = None) -> Any:
    return getattr(torch, "cuda" if device is None else torch.device(device).type)


def _choose_device(cls: Any) -> None:
    """Replace the constants that PyTorch's tests find by computing on a device."""
    cls.no_magma = cls.no_cudnn = True
    cls.cudnn_version = None
    cls.primary_device = "cuda:0"


def _in_main_program(original: Callable[..., Any], answer: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def ask(*args: object, **kwargs: object) -> Any:
        has_own = is_enabled() and native().simrank_num_devices()  # A block of `standalone`.
        if running_task() is not None or has_own or not activation.are_available(_of_node()):
            return original(*args, **kwargs)
        return answer(*args, **kwargs)

    return ask


@functools.cache
def _of_node() -> Context:
    return Context.for_ranks(1, cuda_devices=_asked[0])


def _node() -> Cluster:
    return _of_node().cluster


def _num_devices() -> int:
    return len(visible_in_node(range(_node().devices_per_node)))


def _has_some() -> bool:
    return _num_devices() > 0


def _accelerator(check_available: bool = False) -> torch.device | None:
    del check_available
    return torch.device("cuda") if _num_devices() else None
