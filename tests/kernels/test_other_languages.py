"""Kernels in languages that are not emulated are refused by name, where they are used."""

import importlib
import sys
import textwrap

import pytest
import triton.language as tl

from simrank.errors import UnsupportedError

gluon = pytest.importorskip("triton.experimental.gluon")

MODULES = {
    "cuda.tile": "def launch(*args): return 'launched'",
    "cutlass.base_dsl.dsl": """
        class BaseDSL:
            def _func(self, body, *args): return 'launched'
        """,
    "tilelang.jit.kernel": """
        class JITKernel:
            def __init__(self, function=None): pass
            def __call__(self, *args): return 'launched'
        """,
}
USES = {
    "cuda.tile": ("cuTile", lambda module: module.launch(0, (1,), None, ())),
    "cutlass.base_dsl.dsl": ("CuTe DSL", lambda module: module.BaseDSL()._func(None)),
    "tilelang.jit.kernel": ("TileLang", lambda module: module.JITKernel()()),
}


@gluon.jit
def in_gluon(x):
    tl.store(x, 1.0)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Packages with the entries of other languages, importable until the test ends."""
    for name, source in MODULES.items():
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("cuda", "cutlass", "tilelang"):
            del sys.modules[name]


@pytest.mark.parametrize("name", MODULES)
def test_another_language_is_refused_where_a_simulated_program_uses_it(packages, on_rank, name):
    """Its import is fine, and outside of a Context it is as before."""
    language, use = USES[name]

    def body(ctx):
        module = importlib.import_module(name)
        with pytest.raises(UnsupportedError, match=f"{language} kernel: not supported, only"):
            use(module)

    on_rank(body)
    assert use(importlib.import_module(name)) == "launched"


def test_gluon_is_refused_by_name(on_rank):
    """With the kernel's name, and what runs."""

    def body(ctx):
        with pytest.raises(UnsupportedError) as caught:
            in_gluon[(1,)](ctx.zeros(1))
        text = str(caught.value)
        assert "Gluon kernel 'in_gluon': not supported, only kernels in Triton's" in text
        assert "to fix: in simulated runs, call a Triton or torch implementation" in text

    on_rank(body)
