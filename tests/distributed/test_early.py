"""Buffers of pairs: what is sent before its receiver comes is what they hold, and not more."""

import time

import pytest

import simrank
import simrank.distributed as dist
from simrank.distributed.p2p import EarlyMessages, Pair

PAIR = Pair(0, 1, False)
MIB = 1 << 20
BUFFER_BYTES = 64 * MIB  # hgx_h100: 16 channels of 4 MiB.
LATE_PS = 50 * 10**9
NVLINK_BYTES_PER_PS = 0.45  # 450 GB/s, more than NCCL's messages get.


def test_messages_leave_as_long_as_their_sum_fits():
    """Three of ten bytes in 31; a fourth waits until the first is received."""
    early = EarlyMessages(31)
    assert [list(early.admit(PAIR, name, 10)) for name in "abcd"] == [["a"], ["b"], ["c"], []]
    assert list(early.admit(PAIR._replace(dst=2), "x", 30)) == ["x"]
    assert list(early.drop(PAIR, "a")) == ["d"]


def test_messages_do_not_overtake_each_other():
    """A small one waits behind a large one, and leaves when that one's receiver takes it."""
    early = EarlyMessages(30)
    assert list(early.admit(PAIR, "a", 25)) == ["a"]
    assert list(early.admit(PAIR, "large", 31)) == list(early.admit(PAIR, "small", 5)) == []
    assert list(early.drop(PAIR, "a")) == []
    assert list(early.drop(PAIR, "large")) == ["small"]
    assert list(early.drop(PAIR, "small")) == []
    assert not early._buffers


def test_without_buffers_nothing_leaves():
    """Not even nothing."""
    early = EarlyMessages(-1)
    assert list(early.admit(PAIR, "a", 0)) == list(early.drop(PAIR, "a")) == []


def ends_ps(num_messages, size_bytes):
    """Return when rank 0 has sent messages, and rank 1, which comes late, has received them."""
    found = [0, 0]

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.empty(size_bytes // 4)
        if rank == 1:
            time.sleep(LATE_PS / 1e12)
        for _ in range(num_messages):
            dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        ctx.synchronize()
        found[rank] = ctx.now_ps

    with simrank.Context("hgx_h100", data=False) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    return found


@pytest.mark.parametrize("num_messages", [4, 16, 64])
def test_a_late_receiver_waits_for_what_is_beyond_the_buffer(num_messages):
    """Of 256 MiB in messages that all fit, 64 MiB are there when it comes; the rest flows then."""
    sent, received = ends_ps(num_messages, 256 * MIB // num_messages)
    rest_ps = (256 * MIB - BUFFER_BYTES) / NVLINK_BYTES_PER_PS
    assert received >= LATE_PS + rest_ps
    assert sent > LATE_PS


def test_what_fits_is_sent_before_the_receiver_comes():
    """Three messages of 16 MiB leave room: their sender goes on, the receiver finds them."""
    sent, received = ends_ps(3, 16 * MIB)
    assert sent < LATE_PS / 2
    assert received - LATE_PS < 20 * 10**6
