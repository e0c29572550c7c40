"""Lazy loading: the hang at the first collective is reported as a cycle, and gone with preload."""

from itertools import pairwise

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import ConfigError, DeadlockError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def spin_until_set(flag, out):
    while tl.load(flag, volatile=True) == 0:
        pass
    tl.store(out, 1)


@triton.jit
def double(x, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offs, tl.load(x + offs, mask=offs < n) * 2, mask=offs < n)


def cluster(*, lazy_loading):
    """A node of two devices on a switch."""
    return {
        "name": "two",
        "device": {"like": "hgx_h100", "count": 2, "lazy_loading": lazy_loading},
        "switches": ["switch"],
        "links": [
            {
                "between": ["each gpu", "switch"],
                "bandwidth": "450 GB/s",
                "latency": "1 us",
                "source": "assumed, for this test",
            }
        ],
    }


def program(rank, ctx):
    """Spin on one stream; a reduction behind it; a copy on another stream sets the flag."""
    dist.init_process_group("nccl")
    x, flag = ctx.ones(64), ctx.zeros(1, dtype=simrank.int32)
    one, out = ctx.ones(1, dtype=simrank.int32), ctx.zeros(1, dtype=simrank.int32)
    ctx.synchronize()
    spin, copies = ctx.Stream(), ctx.Stream()
    with ctx.stream(spin):
        spin_until_set[(1,)](flag, out)
        dist.all_reduce(x)
    with ctx.stream(copies):
        flag.copy_(one)
    ctx.synchronize()
    assert out.item() == 1
    assert x[0].item() == 2.0


def run(*, lazy_loading, preload=()):
    """Run it on two ranks."""
    with simrank.Context(cluster(lazy_loading=lazy_loading)) as ctx:
        ctx.preload(preload)
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    return ctx


def test_without_lazy_loading_the_copy_ends_the_spin():
    """As the program was meant."""
    run(lazy_loading=False)


def test_the_first_collective_behind_a_spinning_kernel_is_reported_as_a_cycle():
    """The load waits for the kernel, the kernel for a copy that the host has not issued."""
    with pytest.raises(DeadlockError) as caught:
        run(lazy_loading=True)
    text = str(caught.value)
    assert "the first launch of 'all_reduce'" in text
    assert "waits until the device is quiet: spin_until_set" in text
    assert "kernel 'spin_until_set' program 0 waits for a change" in text
    assert "test_lazy_loading.py:" in text


def test_preloading_the_kernels_removes_the_hang():
    """What was loaded before anything runs needs no quiet device."""
    run(lazy_loading=True, preload=[spin_until_set, "all_reduce"])


def test_a_first_launch_costs_the_load_and_later_ones_do_not():
    """Per device and kernel."""

    def body(rank, ctx):
        x = ctx.ones(64)
        ctx.synchronize()
        times = [ctx.now_ps]
        for _ in range(3):
            double[(1,)](x, 64, BLOCK=64)
            ctx.synchronize()
            times.append(ctx.now_ps)
        first, *later = [b - a for a, b in pairwise(times)]
        assert first > 300e6
        assert later[0] == later[1] < 50e6

    with simrank.Context(cluster(lazy_loading=True)) as ctx:
        ctx.multiprocessing.spawn(body, (ctx,), nprocs=1)


def test_the_key_is_checked():
    """As every key of a cluster."""
    with pytest.raises(ConfigError, match=r"device\.lazy_loading: expected true or false"):
        simrank.Context(cluster(lazy_loading="maybe"))
