"""Batches of messages: of nccl one operation, as NCCL groups them, so that their order is free.

torch groups them for groups of its own class only, which simulated ones are not.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as _c10d

from simrank.distributed.backends import NCCL
from simrank.torch.group import SimulatedGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

c10d: Any = _c10d


def make_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands for `batch_isend_irecv`."""

    @functools.wraps(original)
    def batch_isend_irecv(p2p_op_list: Sequence[Any]) -> Any:
        c10d._check_p2p_op_list(p2p_op_list)
        group = p2p_op_list[0].group or c10d._get_default_group()
        device = p2p_op_list[0].tensor.device
        is_simulated = isinstance(group, SimulatedGroup)
        if not is_simulated or group.simulated.backends.get(device.type) != NCCL:
            return original(p2p_op_list)
        with c10d._coalescing_manager(group, device, async_ops=True) as manager:
            for each in p2p_op_list:
                peer = "group_dst" if each.op is c10d.isend else "group_src"
                each.op(each.tensor, group=each.group, tag=each.tag, **{peer: each.group_peer})
        return manager.works

    return batch_isend_irecv


def patches() -> list[tuple[Any, str, Any]]:
    """Return what to replace."""
    batch = make_batch(c10d.batch_isend_irecv)
    return [(owner, "batch_isend_irecv", batch) for owner in (c10d, dist)]
