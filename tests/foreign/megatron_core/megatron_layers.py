"""Megatron's parallel state on two ranks."""

import torch
import torch.distributed as dist
from megatron.core import parallel_state

dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
assert parallel_state.get_tensor_model_parallel_rank() == dist.get_rank()
total = torch.ones(1)
dist.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
assert total.item() == 2
parallel_state.destroy_model_parallel()
dist.destroy_process_group()
