"""The GPUs that the main program of a suite is told of: their number and what they are.

PyTorch's tests ask in the process that starts the ranks how many GPUs there are, to skip tests and
to choose a world size and a backend. That process computes on none of them.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from simrank.context import Context
from simrank.ranks.current import running_task
from simrank.torch import devices, nccl
from simrank.torch.cuda.devices import is_enabled
from simrank.torch.cuda.native import native
from simrank.torch.rank_devices import asked_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.hardware.cluster import Cluster

_asked: list[str | None] = []  # What "cuda" means, once devices are shown.


def show_devices(cuda_devices: str | None = None) -> None:
    """Let the main program see the GPUs of a node, from now on; ranks see what they always do.

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
        (torch.cuda, "get_device_properties", lambda _device=None: devices.properties_of(_node())),
        (torch.accelerator, "is_available", _has_some),
        (torch.accelerator, "device_count", _num_devices),
        (torch.accelerator, "current_accelerator", _accelerator),
        (torch.distributed, "is_nccl_available", lambda: True),
        (c10d, "is_nccl_available", lambda: True),
    ]
    for owner, name, answer in answers:
        setattr(owner, name, _in_main_program(getattr(owner, name), answer))
    bindings: Any = import_module("torch._C")
    for name, version in nccl.versions().items():
        if not hasattr(bindings, name):
            setattr(bindings, name, version)
    kind: Any = import_module("torch.testing._internal.common_device_type").CUDATestBase
    kind.setUpClass = classmethod(_choose_device)


def _choose_device(cls: Any) -> None:
    """Stand for what PyTorch finds out by computing on a device."""
    cls.no_magma = cls.no_cudnn = True
    cls.cudnn_version = None
    cls.primary_device = "cuda:0"


def _in_main_program(original: Callable[..., Any], answer: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def ask(*args: object, **kwargs: object) -> Any:
        has_own = is_enabled() and native().simrank_num_devices()  # A block of `standalone`.
        if running_task() is not None or has_own or not devices.may_be_had(_of_node()):
            return original(*args, **kwargs)
        return answer(*args, **kwargs)

    return ask


@functools.cache
def _of_node() -> Context:
    return Context.for_ranks(1, cuda_devices=_asked[0])


def _node() -> Cluster:
    return _of_node().cluster


def _num_devices() -> int:
    return len(asked_for(range(_node().devices_per_node)))


def _has_some() -> bool:
    return _num_devices() > 0


def _accelerator(check_available: bool = False) -> torch.device | None:
    del check_available
    return torch.device("cuda") if _num_devices() else None
