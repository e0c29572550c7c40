"""Autotune, do_bench and the active driver are simulated inside a Context, else triton's."""

from types import SimpleNamespace

import pytest
import triton
import triton.language as tl
from triton.compiler import ASTSource

import simrank
from simrank.errors import UnsupportedError
from simrank.kernels.compiler.driver import nvidia_target_of, target_of


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


# ---- what triton has compiled is launched, and says what it takes ----


@triton.jit
def doubled(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, 2 * tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


def _compiled():
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(fn=doubled, signature=signature, constexprs={(3,): 64})
    target = triton.runtime.driver.active.get_current_target()
    return triton.compile(
        source, target=target, options={"num_warps": 4, "enable_fp_fusion": False}
    )


def test_what_a_program_has_compiled_itself_is_launched(run):
    """With its own constants, whatever stands at their place."""

    def body(rank, ctx):
        x, out = ctx.arange(100, dtype=simrank.float32), ctx.zeros(100)
        kernel = _compiled()
        kernel[2, 1, 1](x, out, 100, None)
        assert kernel.n_regs > 0
        assert kernel.n_spills == 0
        assert out.tolist() == [2.0 * i for i in range(100)]

    run(body, 1)


def test_a_compiled_kernel_runs_on_the_current_stream_only(run):
    """A number of a stream that is not current is refused by name."""

    def body(rank, ctx):
        x = ctx.zeros(64)
        with pytest.raises(UnsupportedError, match="on stream 0x7, which is not the current one"):
            _compiled()[1, 1, 1](x, x, 64, None, stream=7)

    run(body, 1)


def test_a_launch_says_what_the_compiler_makes_of_its_kernel(run):
    """As Triton's, which returns what it compiled; asked for before the launch ends, or after."""

    def body(rank, ctx):
        x, out = ctx.ones(100), ctx.zeros(100)
        kernel = doubled[2,](x, out, 100, BLOCK=64, num_warps=2)
        for _ in range(2):
            assert kernel.n_regs > 0
            assert kernel.n_spills == 0
            assert kernel.metadata.num_warps == 2
            assert "doubled" in kernel.asm["ptx"]
            ctx.synchronize()
        again = doubled[2,](x, out, 100, BLOCK=64, num_warps=2)
        other = doubled[2,](x, out, 100, BLOCK=64, num_warps=4)
        assert kernel.hash == again.hash != other.hash

    run(body, 1)


def test_registers_of_amds_binaries_are_refused_by_name(run):
    """The compiler builds them, and nothing reads them."""

    def body(rank, ctx):
        with pytest.raises(UnsupportedError, match="MI300"):
            _compiled()[1, 1, 1](ctx.zeros(64), ctx.zeros(64), 64, None)

    run(body, 1, cluster="mi300x")


# ---- what kernels are compiled for ----


@pytest.mark.parametrize(
    ("name", "backend", "arch"),
    [
        ("NVIDIA A100 80GB", "cuda", 80),
        ("nvidia l40s", "cuda", 89),
        ("GB200", "cuda", 100),
        ("GB300", "cuda", 103),
        ("MI300X", "hip", "gfx942"),
        ("MI325X", "hip", "gfx942"),
        ("MI355X", "hip", "gfx950"),
        ("a device of tomorrow", "cuda", 90),
    ],
)
def test_the_name_of_a_device_says_what_its_kernels_are_compiled_for(name, backend, arch):
    """A Hopper where it says nothing."""
    target = target_of(SimpleNamespace(name=name))
    assert (target.backend, target.arch) == (backend, arch)


def test_in_a_kernel_every_device_is_one_of_nvidias():
    """Those of others stand for a Hopper there."""
    assert nvidia_target_of(SimpleNamespace(name="MI300X")).arch == 90
    assert nvidia_target_of(SimpleNamespace(name="A100")).arch == 80
