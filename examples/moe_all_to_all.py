"""Send tokens to their experts and back, with uneven all-to-all.

Run: simrank run --nproc-per-node 8 examples/moe_all_to_all.py
The same file runs on GPUs: torchrun --nproc-per-node 8 examples/moe_all_to_all.py
"""

import os

import torch
import torch.distributed as dist

TOKENS, HIDDEN = 512, 64


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    tokens = torch.randn(TOKENS, HIDDEN, device="cuda")
    expert = torch.randint(size, (TOKENS,), device="cuda")  # The router's choice.
    order = expert.argsort(stable=True)
    sent = torch.bincount(expert, minlength=size)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    to_send, to_receive = sent.tolist(), received.tolist()

    inputs = torch.empty(sum(to_receive), HIDDEN, device="cuda")
    dist.all_to_all_single(inputs, tokens[order], to_receive, to_send)
    outputs = inputs * (rank + 1)  # The expert of this rank.
    back = torch.empty(TOKENS, HIDDEN, device="cuda")
    dist.all_to_all_single(back, outputs, to_send, to_receive)

    result = torch.empty_like(back)
    result[order] = back
    assert torch.allclose(result, tokens * (expert + 1).unsqueeze(1))
    if rank == 0:
        print(f"rank 0 received {sum(to_receive)} tokens for its expert")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
