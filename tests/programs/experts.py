"""Mixture of experts: tokens go to the ranks of their experts and back, in uneven numbers."""

import os

import simrank as torch
import simrank.distributed as dist

TOKENS, HIDDEN = 12, 4


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tokens = torch.arange(TOKENS * HIDDEN, dtype=torch.float32).view(TOKENS, HIDDEN) + rank
    expert = [(token * token + rank) % world_size for token in range(TOKENS)]
    order = sorted(range(TOKENS), key=expert.__getitem__)
    sent = torch.tensor([expert.count(other) for other in range(world_size)])
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    sizes_in, sizes_out = received.tolist(), sent.tolist()
    there = torch.empty(sum(sizes_in), HIDDEN)
    dist.all_to_all_single(there, tokens[torch.tensor(order)], sizes_in, sizes_out)
    there = there * float(rank + 1)  # The expert.
    back = torch.empty(TOKENS, HIDDEN)
    dist.all_to_all_single(back, there, sizes_out, sizes_in)
    for place, token in enumerate(order):
        expected = tokens[token] * float(expert[token] + 1)
        assert torch.equal(back[place], expected)
    if rank == 0:
        print("tokens came back")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
