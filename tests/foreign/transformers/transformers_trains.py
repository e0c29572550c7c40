"""A small GPT-2 of transformers under DDP."""

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

dist.init_process_group("gloo")
torch.manual_seed(0)
config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)
model = torch.nn.parallel.DistributedDataParallel(GPT2LMHeadModel(config))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
tokens = torch.arange(8).reshape(1, 8) + dist.get_rank()
model(input_ids=tokens, labels=tokens).loss.backward()
optimizer.step()
weight = model.module.lm_head.weight.detach()
both = [torch.empty_like(weight) for _ in range(2)]
dist.all_gather(both, weight)
assert torch.equal(*both)
dist.destroy_process_group()
