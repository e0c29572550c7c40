"""Lazy loading: the hang at the first collective is reported as a cycle, and gone with preload."""

import threading
import time
from functools import partial
from itertools import pairwise

import pytest

import simrank
import simrank.distributed as dist
from simrank.device.device import LOAD_PS
from simrank.errors import ConfigError, DeadlockError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def spin_until_set(flag, out):
    while tl.load(flag, volatile=True) == 0:
        pass
    tl.store(out, 1)


@triton.jit
def double(x, n, BLOCK: tl.constexpr):  # noqa: N803 - as kernels are written
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
    assert "the first launch of 'all_reduce sum float32'" in text
    assert "waits until the device is quiet: spin_until_set" in text
    assert "kernel 'spin_until_set' program 0 waits for a change" in text
    assert "test_loading.py:" in text
    assert (
        "to fix: what this host would issue next <- load of 'all_reduce sum float32' <- "
        "spin_until_set <- its flag <- what this host would issue next: load kernels before"
    ) in text


def test_preloading_the_kernels_removes_the_hang():
    """What was loaded before anything runs needs no quiet device."""
    run(lazy_loading=True, preload=[spin_until_set, "all_reduce"])


def proxied(rank, ctx, dtype="float32"):
    """Launch a collective behind a kernel that spins; the flag is set by a thread that copies."""
    dist.init_process_group("nccl")
    x, flag = ctx.ones(64, dtype=getattr(simrank, dtype)), ctx.zeros(1, dtype=simrank.int32)
    one, out = ctx.ones(1, dtype=simrank.int32), ctx.zeros(1, dtype=simrank.int32)
    ctx.synchronize()
    main, copies = ctx.Stream(), ctx.Stream()
    is_up = threading.Event()

    def proxy():
        is_up.wait()
        time.sleep(100e-6)
        with ctx.stream(copies):
            flag.copy_(one)

    thread = threading.Thread(target=proxy)
    thread.start()
    with ctx.stream(main):
        spin_until_set[(1,)](flag, out)
        is_up.set()
        dist.all_reduce(x)
    thread.join()
    ctx.synchronize()
    assert x[0].item() == 2.0


def run_proxied(dtype="float32", *, preload=True, lazy_loading=True):
    """Run it on two ranks, each with its proxy."""
    with simrank.Context(cluster(lazy_loading=lazy_loading), carrier="thread") as ctx:
        if preload:
            ctx.preload()
            ctx.preload([spin_until_set])
        ctx.multiprocessing.spawn(proxied, (ctx, dtype), nprocs=2)


def test_a_copy_behind_the_first_collective_is_an_exact_cycle():
    """Mooncake, 2: copy <- module load <- spin kernel <- flag <- copy, proved, at once."""
    with pytest.raises(DeadlockError, match="deadlock \\(proved\\)") as caught:
        run_proxied(preload=False)
    text = str(caught.value)
    assert "the call of 'copy_', behind the first launch of 'all_reduce sum float32'" in text
    cycle = "copy_ <- load of 'all_reduce sum float32' <- spin_until_set <- its flag <- copy_"
    assert f"to fix: {cycle}: load kernels before" in text


def test_preload_at_the_start_removes_the_cycle_for_nine_types_and_not_for_float16():
    """Mooncake, 1: all reduction kernels of these are there before anything runs."""
    run_proxied(preload=False, lazy_loading=False)
    for dtype in ("float32", "bfloat16", "int64"):
        run_proxied(dtype)
    with pytest.raises(DeadlockError, match="load of 'all_reduce sum float16'"):
        run_proxied("float16")


def test_the_first_collective_of_each_type_loads_a_kernel_and_the_next_does_not():
    """A reduction of another type is another kernel; what only moves bytes has one for all."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        for dtype in (simrank.float32, simrank.bfloat16):
            x, y = ctx.ones(64, dtype=dtype), ctx.ones(128, dtype=dtype)
            for call in (partial(dist.all_reduce, x), partial(dist.all_gather_into_tensor, y, x)):
                for _ in range(2):
                    start_ps = ctx.now_ps
                    call()
                    ctx.synchronize()
                    took[rank].append(ctx.now_ps - start_ps > LOAD_PS)

    took = {0: [], 1: []}
    with simrank.Context(cluster(lazy_loading=True)) as ctx:
        ctx.multiprocessing.spawn(body, (ctx,), nprocs=2)
    loads = [True, False, True, False, True, False, False, False]
    assert took == {0: loads, 1: loads}


@pytest.mark.parametrize(("mode", "hangs"), [("EAGER", False), ("LAZY", True), (None, True)])
def test_a_program_that_asks_for_eager_loading_has_all_kernels(monkeypatch, mode, hangs):
    """CUDA_MODULE_LOADING of the program's environment, as its process would read it."""
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    if mode is not None:
        monkeypatch.setenv("CUDA_MODULE_LOADING", mode)
    if hangs:
        with pytest.raises(DeadlockError):
            run(lazy_loading=True)
    else:
        run(lazy_loading=True)


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
