"""Low-latency protocols: the flag sits in the data's own word, and no fence is needed."""

import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank import multiprocessing as mp
from simrank.kernels import channels


@triton.jit
def send_words(pointers, peer, x, flag, N: tl.constexpr):
    at = tl.arange(0, N)
    words = (flag.to(tl.int64) << 32) | tl.load(x + at).to(tl.int64)
    tl.store(channels.peer_pointer(pointers, peer, tl.int64) + at, words)


@triton.jit
def receive_words(pointers, own, out, flag, N: tl.constexpr):
    at = tl.arange(0, N)
    mailbox = channels.peer_pointer(pointers, own, tl.int64) + at
    words = tl.load(mailbox, volatile=True)
    while tl.max((words >> 32 != flag).to(tl.int32)) > 0:
        words = tl.load(mailbox, volatile=True)
    tl.store(out + at, (words & 0xFFFFFFFF).to(tl.int32))


@triton.jit
def receive_word_by_word(pointers, own, out, flag, N: tl.constexpr):
    mailbox = channels.peer_pointer(pointers, own, tl.int64)
    for index in range(N):
        word = tl.load(mailbox + index, volatile=True)
        while word >> 32 != flag:
            word = tl.load(mailbox + index, volatile=True)
        tl.store(out + index, (word & 0xFFFFFFFF).to(tl.int32))


@triton.jit
def receive_late(pointers, own, out, flag, N: tl.constexpr):
    mailbox = channels.peer_pointer(pointers, own, tl.int64)
    while tl.load(mailbox, volatile=True) >> 32 != flag:
        pass
    at = tl.arange(0, N)
    tl.store(out + at, (tl.load(mailbox + at) & 0xFFFFFFFF).to(tl.int32))


def exchange(rank, ctx, receive, results):
    """Send a row of numbers to the next rank, twice, into the same words under another flag."""
    dist.init_process_group("nccl")
    world, n = dist.get_world_size(), 16
    words = symm_mem.empty(n, dtype=simrank.int64)
    words.fill_(0)
    handle = symm_mem.rendezvous(words)
    handle.barrier()
    for flag in (1, 2):
        x = ctx.arange(n, dtype=simrank.int32) + 100 * rank + 1000 * flag
        out = ctx.zeros(n, dtype=simrank.int32)
        send_words[(1,)](handle.buffer_ptrs_dev, (rank + 1) % world, x, flag, N=n)
        receive[(1,)](handle.buffer_ptrs_dev, rank, out, flag, N=n)
        results[rank, flag] = out.tolist()
        handle.barrier()  # The words may be written again.


@pytest.mark.parametrize("receive", [receive_words, receive_word_by_word], ids=lambda k: k.__name__)
@pytest.mark.parametrize("world", [2, 4])
def test_data_that_comes_with_its_flag_needs_no_fence(run, receive, world):
    """Each word is written and read as one: no race, no stale signal, and right numbers."""
    results = mp.Manager().dict()
    ctx = run(exchange, world, receive, results, races="error")
    for rank in range(world):
        for flag in (1, 2):
            first = 100 * ((rank - 1) % world) + 1000 * flag
            assert results[rank, flag] == list(range(first, first + 16))
    assert [line for line in ctx.findings if "stale" in line or "race" in line] == []


def test_a_flag_says_nothing_of_the_words_beside_it(run):
    """Who looks at the first word's flag only may read the others too early."""
    with pytest.raises(simrank.errors.SpawnException, match="race"):
        run(exchange, 2, receive_late, mp.Manager().dict(), races="error")
