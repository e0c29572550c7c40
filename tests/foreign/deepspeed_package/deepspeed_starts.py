"""DeepSpeed's communication module on two ranks."""

import deepspeed
import torch
from deepspeed import comm

deepspeed.init_distributed("gloo")
total = torch.ones(1)
comm.all_reduce(total)
assert total.item() == comm.get_world_size() == 2
torch.distributed.destroy_process_group()
