"""torchtitan's logger, device and parallel dimensions."""

import torch
import torch.distributed as dist
import torchtitan.train
from torchtitan.tools.logging import init_logger, logger
from torchtitan.tools.utils import get_device_info

assert torchtitan.train
init_logger()
dist.init_process_group("gloo")
logger.info("rank %d uses %s", dist.get_rank(), get_device_info()[0])
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size()
dist.destroy_process_group()
