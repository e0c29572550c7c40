"""Custom operators: each rank that executes a module defines them, and calls its own."""

import gc
import importlib
import sys
import textwrap
import time
import weakref

import pytest
import torch
from torch._subclasses import FakeTensorMode

import simrank
from simrank.errors import SpawnException
from simrank.ranks.current import current_program

SOURCE = """
    import os
    import torch

    RANK = int(os.environ.get("RANK", -1))

    @torch.library.custom_op("simrank_mine::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor + RANK

    @scaled.register_fake
    def _(x, factor):
        return x.new_empty((x.shape[0], RANK + 1))

    def backward(ctx, grad):
        return grad * 10 * (RANK + 1), None

    scaled.register_autograd(backward, setup_context=lambda ctx, inputs, output: None)

    library = torch.library.Library("simrank_whole", "DEF")
    library.define("shifted(Tensor x) -> Tensor")
    library.impl("shifted", lambda x: x + 100 + RANK, "CompositeExplicitAutograd")
    part = torch.library.Library("simrank_mine", "FRAGMENT")
    torch.library.define("simrank_mine::plain", "(Tensor x) -> Tensor", lib=part)

    @torch.library.impl("simrank_mine::plain", "default", lib=part)
    def plain(x):
        return x - RANK
"""


@pytest.fixture(name="mine")
def fixture_mine(tmp_path, monkeypatch):
    """Write a module that defines operators, and forget it afterwards."""
    (tmp_path / "mine_ops.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(tmp_path)
    yield "mine_ops"
    sys.modules.pop("mine_ops", None)


def run(program, nprocs=3, private=("mine_ops",)):
    """Run a program on ranks that have modules for themselves."""
    with simrank.Context("hgx_h100", private=private) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=nprocs)


def destroy(ops):
    """Take out of torch what a module that all share has defined."""
    libraries = torch._library.custom_ops.OPDEF_TO_LIB
    for library in (ops.library, ops.part, libraries.pop("simrank_mine::scaled")):
        library._destroy()


def is_known(name):
    """Whether torch's dispatcher has an operator."""
    try:
        torch._C._get_schema(name, "")
    except RuntimeError:
        return False
    return True


def test_each_rank_calls_its_own_kernels(mine):
    """Forward, backward and fake, by name and by function, though the ranks take turns."""

    def program(rank):
        ops = importlib.import_module(mine)
        x = torch.ones(2, requires_grad=True)
        for _ in range(2):
            time.sleep(1e-6)
            y = ops.scaled(x, 3.0)
            assert y.tolist() == [3.0 + rank] * 2
            time.sleep(1e-6)
            x.grad = None
            y.sum().backward()
            assert x.grad.tolist() == [10.0 * (rank + 1)] * 2
            assert torch.ops.simrank_mine.scaled(x, 1.0).tolist() == [1.0 + rank] * 2
            assert torch.ops.simrank_whole.shifted(x).tolist() == [101.0 + rank] * 2
            assert torch.ops.simrank_mine.plain(x).tolist() == [1.0 - rank] * 2
        with FakeTensorMode():
            assert ops.scaled(torch.empty(4), 1.0).shape == (4, rank + 1)
        assert ops.scaled(torch.ones(1, device="cuda"), 2.0).tolist() == [2.0 + rank]

    run(program)


def test_nothing_is_left_and_another_run_may_define_otherwise(mine, tmp_path):
    """The operators are torch's as long as the Context is entered."""

    def program(rank):
        importlib.import_module(mine)
        assert is_known("simrank_mine::scaled")

    gc.collect()  # A library that was destroyed leaves `_defs` as it is freed.
    before = set(torch.library._defs)
    run(program)
    assert not is_known("simrank_mine::scaled")
    assert not hasattr(torch.ops.simrank_mine, "scaled")
    assert type(torch.library._impls) is set
    assert torch.library._defs == before
    (tmp_path / "other_ops.py").write_text(
        textwrap.dedent(SOURCE).replace("factor: float", "factor: int")
    )

    def again(rank):
        ops = importlib.import_module("other_ops")
        assert ops.scaled(torch.ones(1), 2).tolist() == [2.0 + rank]

    try:
        run(again, private=["other_ops"])
    finally:
        sys.modules.pop("other_ops", None)


def test_what_the_main_program_has_defined_is_its_own_again(mine):
    """Ranks that execute the module have theirs in between."""
    ops = importlib.import_module(mine)
    try:
        assert ops.scaled(torch.ones(1), 1.0).tolist() == [0.0]

        def program(rank):
            own = importlib.import_module(mine)
            assert own is not ops
            assert own.scaled(torch.ones(1), 1.0).tolist() == [1.0 + rank]
            assert torch.ops.simrank_whole.shifted(torch.ones(1)).tolist() == [101.0 + rank]

        run(program)
        assert ops.scaled(torch.ones(1), 1.0).tolist() == [0.0]
        assert torch.ops.simrank_whole.shifted(torch.ones(1)).tolist() == [100.0]
    finally:
        destroy(ops)


def test_a_rank_that_has_not_defined_an_operator_is_told(mine):
    """In a process of its own it would not be there."""

    def program(rank):
        if rank == 0:
            importlib.import_module(mine)
        time.sleep(1e-6)
        torch.ops.simrank_mine.plain(torch.ones(1))

    text = "simrank_mine::plain is not defined on this rank.*\n  to fix: import the module"
    with pytest.raises(SpawnException, match=text) as failure:
        run(program)
    assert sorted(failure.value.errors) == [1, 2]


def test_ranks_that_define_an_operator_differently_are_refused(mine, tmp_path):
    """There is one schema for a name."""
    source = textwrap.dedent(SOURCE).replace(
        '"(Tensor x) -> Tensor"', 'f"(Tensor x{RANK}) -> Tensor"'
    )
    (tmp_path / "mine_ops.py").write_text(source)

    def program(rank):
        importlib.import_module(mine)
        time.sleep(1e-6)

    text = r"operator simrank_mine::plain differently: 'plain\((.|\n)*  to fix: give one of them"
    with pytest.raises(SpawnException, match=text):
        run(program)


def test_an_operator_is_defined_otherwise_when_no_rank_has_it_any_more(tmp_path, monkeypatch):
    """It was destroyed by all ranks, or they have ended."""
    source = """
        import time
        import torch

        def one(schema, scale):
            with torch.library._scoped_library("simrank_again", "FRAGMENT") as library:
                library.define("one" + schema)
                library.impl("one", lambda x, *a: x * scale, "CompositeExplicitAutograd")
                result = torch.ops.simrank_again.one(torch.ones(1)).item()
                time.sleep(1e-6)
            time.sleep(1e-6)
            return result

        kept = []

        def keep(schema):
            kept.append(torch.library.Library("simrank_again", "FRAGMENT"))
            kept[0].define("one" + schema)
    """
    (tmp_path / "mine_ops.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)

    def program(rank):
        ops = importlib.import_module("mine_ops")
        assert ops.one("(Tensor x) -> Tensor", rank) == rank
        assert ops.one("(Tensor x, int a=1) -> Tensor", rank + 1) == rank + 1
        ops.keep("(Tensor x, int b=1) -> Tensor")

    with simrank.Context("hgx_h100", private=["mine_ops"]) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
        ctx.multiprocessing.spawn(program, nprocs=2)
    assert not is_known("simrank_again::one")


def test_what_operators_change_counts_versions_on_every_rank(tmp_path, monkeypatch):
    """Autograd tells by them that a tensor which it has saved was changed."""
    source = """
        import torch

        @torch.library.custom_op("simrank_mine::grow", mutates_args=("x",))
        def grow(x: torch.Tensor) -> None:
            x.add_(1)
    """
    (tmp_path / "mine_ops.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)

    def program(rank):
        ops = importlib.import_module("mine_ops")
        time.sleep(1e-6)
        x = torch.ones(1, requires_grad=True)
        y = x.exp()
        ops.grow(y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()

    run(program)


def test_a_namespace_is_whole_once_in_each_rank(mine, tmp_path):
    """As torch has it for processes."""
    source = textwrap.dedent(SOURCE) + '\ntorch.library.Library("simrank_whole", "DEF")\n'
    (tmp_path / "mine_ops.py").write_text(source)

    def program(rank):
        with pytest.raises(RuntimeError, match="Only a single TORCH_LIBRARY can be used"):
            importlib.import_module(mine)

    run(program)


def test_operators_of_modules_that_all_share_are_everybodys(mine):
    """Defined by the first that imports it, called by all, and there afterwards."""

    def program(rank):
        importlib.import_module(mine)
        time.sleep(1e-6)
        assert torch.ops.simrank_mine.plain(torch.ones(1)).tolist() == [1.0]

    try:
        run(program, private=())
        assert torch.ops.simrank_mine.plain(torch.ones(1)).tolist() == [1.0]
    finally:
        destroy(sys.modules[mine])


def test_a_context_is_freed_whose_ranks_have_defined_operators(mine):
    """For each library torch keeps functions that hold the module of the rank."""
    seen = []

    def program(rank):
        importlib.import_module(mine)
        seen.append(weakref.ref(current_program().context))

    run(program)
    gc.collect()
    assert [context() for context in seen] == [None] * 3
