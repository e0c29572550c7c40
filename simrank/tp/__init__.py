"""Megatron-style tensor parallelism on simrank tensors: megatron.core's names, no autograd.

Read `parallel_state`, then `mappings` and `layers`. State is per rank, never per process.
"""

from simrank.tp import parallel_state, random
from simrank.tp.layers import ColumnParallelLinear, ModelParallelConfig, RowParallelLinear
from simrank.tp.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
    scatter_to_tensor_model_parallel_region,
)
from simrank.tp.random import init_method_normal, model_parallel_manual_seed

__all__ = [
    "ColumnParallelLinear",
    "ModelParallelConfig",
    "RowParallelLinear",
    "copy_to_tensor_model_parallel_region",
    "gather_from_sequence_parallel_region",
    "gather_from_tensor_model_parallel_region",
    "init_method_normal",
    "model_parallel_manual_seed",
    "parallel_state",
    "random",
    "reduce_from_tensor_model_parallel_region",
    "reduce_scatter_to_sequence_parallel_region",
    "scatter_to_sequence_parallel_region",
    "scatter_to_tensor_model_parallel_region",
]
