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
    registry = getattr(sys.modules["triton.runtime.jit"], "_triton_jit_function_registry", None)
    assert registry is None or any(kernel is shared for kernel in registry.values())


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
