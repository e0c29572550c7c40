"""Aggregates: classes of several values whose methods are device functions."""

import pytest
import triton
import triton.language as tl
from triton.language.core import _aggregate as aggregate

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem


@aggregate
class Window:
    """Some elements behind a pointer; its constructor is the default one."""

    base: tl.tensor
    size: tl.constexpr
    step: tl.constexpr = 1

    @triton.jit
    def load(self, shift):
        """Read `size` elements from `shift` on."""
        return tl.load(self.base + shift + self.step * tl.arange(0, self.size))


@aggregate
class Peers:
    """Where the buffers of all ranks are; made by a function of its own."""

    rank: tl.constexpr
    addresses: tl.tensor

    @triton.constexpr_function
    def __init__(self, rank, addresses):
        self.rank = tl.constexpr(rank)
        self.addresses = addresses

    @staticmethod
    @triton.jit
    def initialize(addresses, rank: tl.constexpr):
        """Return the peers that a table of addresses names."""
        return Peers(rank, addresses.to(tl.pointer_type(tl.uint64)))

    @triton.jit
    def buffer(self, peer):
        """Return where a peer's buffer is."""
        return tl.load(self.addresses + peer).to(tl.pointer_type(tl.int32))

    @triton.jit
    def put(self, peer, offs, value):
        """Write to a peer's buffer."""
        tl.store(self.buffer(peer) + offs, value)

    @triton.jit
    def signal(self, flags, peer):
        """Set my flag at a peer."""
        flag = tl.load(flags.to(tl.pointer_type(tl.uint64)) + peer).to(tl.pointer_type(tl.int32))
        tl.atomic_xchg(flag + self.rank, 1, sem="release", scope="sys")

    @triton.jit
    def look(self, flags, peer):
        """Return what a peer has set my flag to."""
        flag = tl.load(flags.to(tl.pointer_type(tl.uint64)) + self.rank)
        flag = flag.to(tl.pointer_type(tl.int32)) + peer
        return tl.atomic_add(flag, 0, sem="acquire", scope="sys")


@triton.jit
def shifted_sum(x, out, SIZE: tl.constexpr):
    window = Window(x, SIZE, step=2)
    tl.store(out + tl.arange(0, SIZE), window.load(0) + window.load(1))


@triton.jit
def assigns_afterwards(x):
    window = Window(x, 4)
    window.size = 8


@triton.jit
def exchange(addresses, flags, out, RANK: tl.constexpr):
    peers = Peers.initialize(addresses, RANK)
    peers.put(1 - peers.rank, tl.arange(0, 4), RANK + tl.arange(0, 4))
    peers.signal(flags, 1 - peers.rank)
    while peers.look(flags, 1 - peers.rank) != 1:
        pass
    tl.store(out + tl.arange(0, 4), tl.load(peers.buffer(peers.rank) + tl.arange(0, 4)))


@pytest.mark.parametrize("mode", ["batched", "one-by-one"])
def test_methods_read_fields_and_defaults(run, mode):
    """A field may be a pointer of the kernel, or known at compile time."""

    def body(rank, ctx):
        out = ctx.zeros(4)
        shifted_sum[(1,)](ctx.arange(8, dtype=simrank.float32), out, SIZE=4, mode=mode)
        assert out.tolist() == [1.0, 5.0, 9.0, 13.0]

    run(body, 1)


def test_an_aggregate_is_not_changed_once_it_is_made(run):
    """As in Triton."""

    def body(rank, ctx):
        assigns_afterwards[(1,)](ctx.zeros(8))
        with pytest.raises(AttributeError, match="'size' on immutable aggregate Window"):
            ctx.synchronize()

    run(body, 1)


def test_a_loop_over_a_method_that_reads_waits_for_a_peer(run):
    """What a method does is known before the kernel runs: it waits and publishes."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(4, dtype=simrank.int32))
        out = ctx.zeros(4, dtype=simrank.int32)
        operation = exchange[(1,)](
            handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, RANK=rank
        )
        assert out.tolist() == [1 - rank + i for i in range(4)]
        assert operation.mode == "tasks"

    run(body, 2, races="error")
