"""torch.distributed on simulated ranks.

Read `membership` (groups), `api` (collectives), `issue` (streams and waits), `call` (calls of all
ranks matched), `p2p` (messages matched), `work` and `symmetric_memory`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simrank.distributed.api import (
    all_gather,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
)
from simrank.distributed.backends import (
    Backend,
    is_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
)
from simrank.distributed.group import ProcessGroup
from simrank.distributed.membership import (
    GroupMember,
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_initialized,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    split_group,
)
from simrank.distributed.request import ReduceOp
from simrank.distributed.request import _make_nccl_premul_sum as _make_nccl_premul_sum
from simrank.distributed.work import Work
from simrank.errors import DistBackendError, DistNetworkError

if TYPE_CHECKING:
    from simrank.distributed import symmetric_memory
    from simrank.distributed.active_members import ElasticOptions
    from simrank.distributed.elastic import (
        active_ranks,
        deactivate_rank,
        set_active_ranks,
        shrink_group,
    )
    from simrank.distributed.monitored import monitored_barrier
    from simrank.distributed.objects import (
        all_gather_object,
        broadcast_object_list,
        gather_object,
        recv_object_list,
        scatter_object_list,
        send_object_list,
    )
    from simrank.distributed.p2p_api import (
        P2POp,
        batch_isend_irecv,
        irecv,
        isend,
        recv,
        send,
    )
    from simrank.distributed.p2p_api import _coalescing_manager as _coalescing_manager

# Functions that few programs call: their modules are imported at first use.
_PLACES = {
    "ElasticOptions": "active_members",
    "P2POp": "p2p_api",
    "_coalescing_manager": "p2p_api",
    "active_ranks": "elastic",
    "all_gather_object": "objects",
    "batch_isend_irecv": "p2p_api",
    "broadcast_object_list": "objects",
    "deactivate_rank": "elastic",
    "gather_object": "objects",
    "irecv": "p2p_api",
    "isend": "p2p_api",
    "monitored_barrier": "monitored",
    "recv": "p2p_api",
    "recv_object_list": "objects",
    "scatter_object_list": "objects",
    "send": "p2p_api",
    "send_object_list": "objects",
    "set_active_ranks": "elastic",
    "shrink_group": "elastic",
}

all_gather_single = all_gather_into_tensor  # The names that torch 2.13 prefers.
reduce_scatter_single = reduce_scatter_tensor

__all__ = [
    "Backend",
    "DistBackendError",
    "DistNetworkError",
    "ElasticOptions",
    "GroupMember",
    "P2POp",
    "ProcessGroup",
    "ReduceOp",
    "Work",
    "active_ranks",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "deactivate_rank",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_active_ranks",
    "shrink_group",
    "split_group",
    "symmetric_memory",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a function, class or module
    if name in ("symmetric_memory", "_symmetric_memory"):  # torch's name has the underscore.
        return import_module("simrank.distributed.symmetric_memory")
    if name in _PLACES:
        value = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
        return value
    raise AttributeError(f"module 'simrank.distributed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
