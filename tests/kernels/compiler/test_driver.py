"""Autotune, do_bench and the active driver are simulated inside a Context, else triton's."""

import pytest
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": size}) for size in (16, 4096)], key=["n"], restore_value=["y"]
)
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def add_one(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + offs, tl.load(x + offs) + tl.load(y + offs))
    else:
        mask = offs < n
        tl.store(y + offs, tl.load(x + offs, mask=mask) + tl.load(y + offs, mask=mask), mask=mask)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def test_autotune_picks_what_is_fastest_in_simulated_time_and_restores_values(run):
    """With heuristics under it; y is added to once, however often it was tried."""

    def body(rank, ctx):
        n = 1 << 20
        x, y = ctx.ones(n), ctx.zeros(n)
        add_one[grid](x, y, n)
        assert y.sum().item() == n
        timings = add_one.configs_timings
        assert add_one.best_config == min(timings, key=timings.get)

    run(body, 1)


@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (128, 64, 16)], key=["n"])
@triton.jit
def double_in_small_blocks(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK <= 64, "too large")
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offs, 2 * tl.load(x + offs, mask=offs < n), mask=offs < n)


def test_autotune_leaves_out_what_a_static_assert_refuses(run):
    """As triton's own does; launched by itself, such a configuration fails."""

    def body(rank, ctx):
        double_in_small_blocks[grid](ctx.ones(100), 100)
        assert double_in_small_blocks.best_config.kwargs["BLOCK"] <= 64
        refused, *taken = double_in_small_blocks.configs_timings.values()
        assert refused[0] == float("inf") > max(times[0] for times in taken)
        double_in_small_blocks.fn[(1,)](ctx.ones(100), 100, BLOCK=128)
        with pytest.raises(AssertionError, match="static assertion failed: too large"):
            ctx.synchronize()

    run(body, 1)


def test_do_bench_measures_the_kernel_in_simulated_milliseconds(run):
    """Without what the host pays for the launch."""

    def body(rank, ctx):
        x = ctx.ones(1 << 24)
        found = triton.testing.do_bench(lambda: x.mul_(1.0), return_mode="all")
        bandwidth = 2 * x.nbytes / (found[0] * 1e-3)
        assert found[0] == found[1] == found[2]
        assert 0.9 < bandwidth / ctx.cluster.device.memory_bandwidth_bytes_per_s <= 1.01
        assert triton.testing.do_bench(lambda: x.mul_(1.0), quantiles=[0.5, 0.2]) == found[:2]

    run(body, 1)


def test_what_benchmarks_fill_between_runs_takes_its_time(run):
    """A program's own loop of measurements fills it as triton's does."""

    def body(rank, ctx):
        before_ps = ctx.now_ps
        triton.runtime.driver.active.get_empty_cache_for_benchmark().zero_()
        ctx.cuda.synchronize()
        assert ctx.now_ps - before_ps > 50_000_000  # 256 MB at less than 5 TB/s

    run(body, 1)


@pytest.mark.parametrize(
    ("cluster", "kilobytes"),
    [("hgx_a100", 163), ("hgx_h100", 227), ("l40s_pcie", 99), ("mi355x", 160)],
)
def test_kernels_are_sized_by_the_shared_memory_of_their_device(run, cluster, kilobytes):
    """Per program, as CUDA's table has it: a kibibyte of an SM's is the system's."""

    def body(rank, ctx):
        properties = triton.runtime.driver.active.utils.get_device_properties(0)
        assert properties["max_shared_mem"] == kilobytes * 1024

    run(body, 1, cluster=cluster)
