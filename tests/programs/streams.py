"""Streams and events: copies, products and collectives beside each other, timed by events."""

import os

import simrank as torch
import simrank.distributed as dist


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    side, start, end = torch.cuda.Stream(), torch.Event(True), torch.Event(enable_timing=True)
    batches = [torch.full((64, 64), float(number), device="cpu") for number in range(4)]
    total = torch.zeros(64, 64)
    start.record()
    for batch in batches:
        with torch.cuda.stream(side):  # The next copy runs beside the last product.
            there = batch.cuda(non_blocking=True)
            copied = side.record_event()
        torch.cuda.current_stream().wait_event(copied)
        there.record_stream(torch.cuda.current_stream())
        total.add_(there @ there)
        side.wait_stream(torch.cuda.current_stream())
    work = dist.all_reduce(total, async_op=True)
    other = torch.ones(64, 64) @ torch.ones(64, 64)
    work.wait()
    end.record()
    end.synchronize()
    assert total[0, 0].item() == 64 * (0 + 1 + 4 + 9) * world_size
    assert other[0, 0].item() == 64
    assert start.elapsed_time(end) > 0
    if rank == 0:
        print("timed by events")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
