"""A rank that imports a module is not interrupted by what the module asks of the clock."""

import sys
import textwrap

import pytest

import simrank


@pytest.fixture
def slow_module(tmp_path, monkeypatch):
    """A module that reads the clock before it has defined anything."""
    source = """
        import time
        START_NS = time.time_ns()
        for _ in range({num_reads}):
            time.perf_counter()
        class Model:
            pass
    """

    def write(num_reads):
        (tmp_path / "slow_model.py").write_text(textwrap.dedent(source).format(num_reads=num_reads))
        monkeypatch.syspath_prepend(str(tmp_path))
        sys.modules.pop("slow_model", None)

    yield write
    sys.modules.pop("slow_model", None)


@pytest.mark.parametrize("taken", ["lock = threading.RLock()", "import logging"])
def test_so_does_one_that_takes_a_lock_while_it_loads(taken, tmp_path, monkeypatch):
    """A rank whose clock runs ahead does not meet the others there."""
    source = f"import threading\n{taken}\nwith threading.Lock():\n    pass\nclass Model: ...\n"
    (tmp_path / "locking_model.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("locking_model", None)

    def program(rank, ctx):
        ctx.ones(4).add_(1)
        from locking_model import Model

        assert Model.__name__ == "Model"

    with simrank.Context() as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=4)
    sys.modules.pop("locking_model", None)


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_every_rank_gets_the_whole_of_a_module_that_reads_clocks_while_it_loads(
    slow_module, carrier
):
    """Half a module is an ImportError that no real process would have."""
    slow_module(num_reads=10)
    times = []

    def program(rank):
        import time

        from slow_model import START_NS, Model

        times.append(time.time_ns() - START_NS)
        assert Model.__name__ == "Model"

    with simrank.Context(carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=4)
    assert len(times) == 4
    assert max(times) > 0, "the clock moves all the same"
