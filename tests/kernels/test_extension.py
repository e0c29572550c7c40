"""What of triton is changed, and when."""

import gc
import importlib
import sys
import weakref

import pytest
import triton
import triton.language as tl

import simrank


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


def test_the_active_driver_is_simulated_only_within_a_context():
    """And knows the device: its target and its SMs."""
    config = sys.modules["triton.runtime.driver"].driver
    before = config._active
    with simrank.Context("hgx_a100") as ctx:
        assert triton.runtime.driver.active.get_current_target().arch == 80
        assert triton.runtime.driver.active.get_active_torch_device() is ctx.devices[0]
        properties = triton.runtime.driver.active.utils.get_device_properties(0)
        assert properties["multiprocessor_count"] == 108
    assert config._active is before


def test_triton_forgets_the_kernels_of_ranks_own_modules(tmp_path, monkeypatch):
    """It would keep them for good, and with them all globals of the module: tensors, say."""
    source = (
        "import triton\nclass Kept: pass\nkept = Kept()\n@triton.jit\ndef kernel(x):\n    pass\n"
    )
    (tmp_path / "own.py").write_text(source)

    def body(_):
        left.append(weakref.ref(importlib.import_module("own").kept))

    left = []
    shared = triton.jit(add_one.fn.fn.fn)  # Of a module that is everybody's.
    monkeypatch.syspath_prepend(tmp_path)
    with simrank.Context("hgx_a100", private=["own"], carrier="thread") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2)
    del ctx
    gc.collect()
    assert [kept() for kept in left] == [None, None]
    registry = sys.modules["triton.runtime.jit"]._triton_jit_function_registry
    assert any(kernel is shared for kernel in registry.values())


def test_a_launch_outside_of_every_context_is_tritons_own():
    """Which has no GPU here, and says so."""
    with pytest.raises(RuntimeError, match="active driver"):
        add_one.fn.fn[(1,)](None, None, 4, BLOCK=4, EVEN=True)


def test_simrank_works_without_triton():
    """Nothing imports it until a kernel is launched."""
    import subprocess

    source = "import sys, simrank\nwith simrank.Context(): pass\nassert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", source], check=True)


def test_triton_imported_after_the_context_was_entered_is_simulated_too():
    """As a script under `simrank run` does."""
    import subprocess

    source = """
import simrank
with simrank.Context() as ctx:
    import triton
    assert triton.runtime.driver.active.get_current_target().arch == 90
    assert triton.runtime.jit.JITFunction.run.is_simrank
    assert triton.testing.do_bench.is_simrank
"""
    subprocess.run([sys.executable, "-c", source], check=True)


# ---- autotuners keep what they find for each program; nothing goes to a file ----


@triton.autotune(
    configs=[triton.Config({"BLOCK": size}) for size in (16, 1024)],
    key=["n"],
    restore_value=["y"],
    cache_results=True,
)
@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(y + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def test_ranks_tune_one_kernel_side_by_side(run):
    """Each restores its own values, and launches what it has found itself."""
    found = {}

    def body(rank, ctx):
        n = 2048 + 16 * rank
        x, y = ctx.ones(n), ctx.full((n,), 10.0 * rank)
        for _ in range(2):
            add[grid](x, y, n)
        assert y.tolist() == [10.0 * rank + 2] * n
        found[rank] = [*add.cache]

    run(body, 4)
    assert [keys[0][0] for _, keys in sorted(found.items())] == [2048, 2064, 2080, 2096]
    assert all(len(keys) == 1 for keys in found.values())


def test_another_context_tunes_anew_and_no_file_is_written_or_read(tmp_path, monkeypatch):
    """A real GPU would find them, of the same architecture as the simulated one."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    times_ps = []
    for _ in range(2):
        with simrank.Context.for_ranks(1) as ctx:
            x, y = ctx.ones(4096), ctx.zeros(4096)
            add[grid](x, y, 4096)
            ctx.synchronize()
            first = ctx.engine.now_ps
            add[grid](x, y, 4096)
            ctx.synchronize()
            times_ps.append((first, ctx.engine.now_ps - first))
            assert y.sum().item() == 2 * 4096
    assert times_ps[0] == times_ps[1]
    assert times_ps[0][0] > 4 * times_ps[0][1]
    assert [*tmp_path.rglob("*.json")] == []
    assert add.cache == {}, "outside, where a GPU may be"
    assert add.best_config in add.configs_timings


def test_what_nobody_has_found_yet_is_no_attribute():
    """In triton's words."""
    tuner = triton.autotune(configs=[triton.Config({"BLOCK": 16})], key=[])(add.fn)
    with pytest.raises(AttributeError, match="'Autotuner' object has no attribute 'best_config'"):
        tuner.best_config  # noqa: B018 - asked for
