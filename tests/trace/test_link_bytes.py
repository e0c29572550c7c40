"""Bytes of links: collectives once, messages and copies as they cross."""

from types import SimpleNamespace

import pytest

import simrank
import simrank.distributed as dist
from simrank.ranks.folding import FoldedAxis, Folding
from simrank.trace import Summary, Timeline
from simrank.trace.link_bytes import LinkBytes


class Call:
    """A collective of two ranks that sends 100 bytes over link 7."""

    def __init__(self):
        self.link_bytes = {7: 100}


def counted(program, nprocs=2):
    links = LinkBytes()
    with simrank.Context("hgx_h100", data=False) as ctx:
        ctx.observe(links)
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs)
    return links


def test_a_collective_counts_once_for_all_its_ranks():
    """An all_gather of two ranks: each sends its block to the other."""

    def gather(rank, ctx):
        dist.init_process_group()
        for _ in range(3):
            dist.all_gather_into_tensor(ctx.empty(2048), ctx.empty(1024))
        ctx.synchronize()

    assert counted(gather).busiest() == [
        ("node 0: gpu0 -> nvswitch", 3 * 4096),
        ("node 0: gpu1 -> nvswitch", 3 * 4096),
        ("node 0: nvswitch -> gpu0", 3 * 4096),
        ("node 0: nvswitch -> gpu1", 3 * 4096),
    ]


def test_a_message_counts_on_its_way():
    """Only in its direction; the busiest link comes first."""

    def send(rank, ctx):
        dist.init_process_group()
        for size in (1024, 256):
            if rank == 0:
                dist.send(ctx.empty(size), 1)
            else:
                dist.recv(ctx.empty(size), 0)
        if rank == 1:
            dist.send(ctx.empty(1), 0)
        else:
            dist.recv(ctx.empty(1), 1)
        ctx.synchronize()

    assert counted(send).busiest() == [
        ("node 0: gpu0 -> nvswitch", 5120),
        ("node 0: nvswitch -> gpu1", 5120),
        ("node 0: gpu1 -> nvswitch", 4),
        ("node 0: nvswitch -> gpu0", 4),
    ]


def test_a_collective_that_was_cut_off_counts_too():
    """What one of two ranks has ended is not lost."""
    cluster = SimpleNamespace(link_name=lambda link: f"link {link}")
    stream = SimpleNamespace(device=SimpleNamespace(network=SimpleNamespace(cluster=cluster)))
    operation = SimpleNamespace(call=Call(), stream=stream)
    links = LinkBytes()
    links.on_operation(operation)
    assert links.busiest() == links.busiest() == [("link 7", 100)]
    links.on_operation(operation)
    assert links.busiest() == [("link 7", 100)]
    links.on_operation(object())
    assert links.busiest() == [("link 7", 100)]


@pytest.mark.parametrize("observer", [LinkBytes, Summary, Timeline])
@pytest.mark.parametrize("folding", [None, Folding(8, [FoldedAxis("world", 8, 1)])])
def test_an_observer_keeps_no_tensor(observer, folding):
    """Of a collective that is over: the memory of devices is as without it, folded or not."""

    def reduce(rank, ctx):
        dist.init_process_group()
        for _ in range(3):
            x = ctx.empty(2**20)
            dist.all_reduce(x)
            del x
            ctx.synchronize()
        assert ctx.devices[rank].memory.used_bytes == 0

    with simrank.Context("hgx_h100", data=False, folding=folding) as ctx:
        ctx.observe(observer())
        ctx.multiprocessing.spawn(reduce, (ctx,), nprocs=8)
