"""Groups of tensor and data parallelism: megatron.core's `parallel_state`.

Ranks next to each other form a tensor-parallel group; those at the same rank of every such group
form a data-parallel one. With 8 ranks and tensor-parallel size 4: tensor-parallel groups 0-3 and
4-7, data-parallel groups 0 and 4, 1 and 5, 2 and 6, 3 and 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import simrank.distributed as dist
from simrank.errors import UnsupportedError
from simrank.ranks import require_rank

if TYPE_CHECKING:
    from simrank.distributed import ProcessGroup

_KEY = "tensor parallel state"


@dataclass(frozen=True)
class _State:
    """The groups that one rank belongs to."""

    tensor_group: ProcessGroup
    data_group: ProcessGroup


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    *,
    context_parallel_size: int = 1,
    expert_model_parallel_size: int = 1,
) -> None:
    """Make the groups; every rank of the world calls it, after `init_process_group`.

    Args:
        tensor_model_parallel_size: Ranks that split each layer.
        pipeline_model_parallel_size: Only 1.
        context_parallel_size: Only 1.
        expert_model_parallel_size: Only 1.

    Raises:
        RuntimeError: The world is not divisible by it; megatron.core's words.
        AssertionError: The groups exist already, or `init_process_group` was not called.
        UnsupportedError: Another kind of parallelism is asked for.
    """
    asked = {
        "pipeline_model_parallel_size": pipeline_model_parallel_size,
        "context_parallel_size": context_parallel_size,
        "expert_model_parallel_size": expert_model_parallel_size,
    }
    for name, size in asked.items():
        if size != 1:
            raise UnsupportedError(f"{name}={size}: simrank.tp has tensor and data parallelism")
    assert dist.is_initialized(), "torch.distributed is not initialized: call init_process_group"
    program = require_rank("initialize_model_parallel")
    world_size, rank = dist.get_world_size(), dist.get_rank()
    size = tensor_model_parallel_size
    if size < 1 or world_size % size:
        raise RuntimeError(f"world_size ({world_size}) is not divisible by {size}")
    assert _KEY not in program.local, "tensor model parallel group is already initialized"
    tensor_ranks = [list(range(first, first + size)) for first in range(0, world_size, size)]
    data_ranks = [list(range(first, world_size, size)) for first in range(size)]
    program.local[_KEY] = _State(_own_group(tensor_ranks, rank), _own_group(data_ranks, rank))


def _own_group(groups: list[list[int]], rank: int) -> ProcessGroup:
    """Make all of some groups, as every rank must, and return the one that a rank is in."""
    made: list[tuple[list[int], Any]] = [(ranks, dist.new_group(ranks)) for ranks in groups]
    own: ProcessGroup
    (own,) = [group for ranks, group in made if rank in ranks]
    return own


def _state(what: str) -> _State:
    state: _State | None = require_rank("parallel_state").local.get(_KEY)
    assert state is not None, f"{what} is not initialized"
    return state


def model_parallel_is_initialized() -> bool:
    """Return whether the groups have been made on this rank."""
    return _KEY in require_rank("model_parallel_is_initialized").local


is_initialized = model_parallel_is_initialized


def destroy_model_parallel() -> None:
    """Forget the groups of this rank."""
    require_rank("destroy_model_parallel").local.pop(_KEY, None)


def get_tensor_model_parallel_group(*, check_initialized: bool = True) -> ProcessGroup | None:
    """Return the group of ranks that split layers with this one.

    Raises:
        AssertionError: It is missing, and `check_initialized`.
    """
    if not check_initialized and not model_parallel_is_initialized():
        return None
    return _state("tensor model parallel group").tensor_group


def get_data_parallel_group() -> ProcessGroup:
    """Return the group of ranks that hold the same part of layers as this one."""
    return _state("data parallel group").data_group


def get_tensor_model_parallel_world_size() -> int:
    """Return over how many ranks layers are split."""
    return dist.get_world_size(_state("tensor model parallel group").tensor_group)


def get_tensor_model_parallel_rank() -> int:
    """Return this rank's number within its tensor-parallel group."""
    return dist.get_rank(_state("tensor model parallel group").tensor_group)


def get_tensor_model_parallel_src_rank() -> int:
    """Return the global rank of the first rank of the tensor-parallel group."""
    return dist.get_process_group_ranks(_state("tensor model parallel group").tensor_group)[0]


def get_data_parallel_world_size() -> int:
    """Return the size of the data-parallel group."""
    return dist.get_world_size(_state("data parallel group").data_group)


def get_data_parallel_rank() -> int:
    """Return this rank's number among the copies."""
    return dist.get_rank(_state("data parallel group").data_group)


def get_data_parallel_src_rank() -> int:
    """Return the global rank of the first rank of the data-parallel group."""
    return dist.get_process_group_ranks(_state("data parallel group").data_group)[0]
