"""torch.distributed on simulated ranks.

Read `membership` (groups), `api` (collectives), `call` (calls of all ranks matched) and `work`.
"""

from simrank.distributed.api import (
    all_gather_into_tensor,
    all_reduce,
    all_to_all_single,
    barrier,
    broadcast,
    recv,
    reduce,
    reduce_scatter_tensor,
    send,
)
from simrank.distributed.group import ProcessGroup
from simrank.distributed.membership import (
    destroy_process_group,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
    new_group,
)
from simrank.distributed.reduce_op import ReduceOp
from simrank.distributed.work import Work

__all__ = [
    "ProcessGroup",
    "ReduceOp",
    "Work",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "new_group",
    "recv",
    "reduce",
    "reduce_scatter_tensor",
    "send",
]
