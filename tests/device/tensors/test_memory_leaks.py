"""Device memory that ranks leave behind in globals."""

import simrank

CACHE = {}


class Model:
    def __init__(self, weight):
        self.weight = weight


def test_memory_in_a_global_is_a_finding_and_what_the_parent_gets_is_none():
    """With ranks, bytes, the global and the line."""
    CACHE.clear()
    out = {}

    def program(rank, ctx, out):
        CACHE[rank] = Model([ctx.ones(1000)])
        out[rank] = ctx.ones(10)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx, out), nprocs=3, share_args=True)
    (finding,) = ctx.findings
    assert "ranks 0-2: 4000 bytes of device memory still held by the global" in finding
    assert "test_memory_leaks.CACHE, allocated at test_memory_leaks.py:" in finding
    CACHE.clear()
    assert ctx.findings == []


def test_what_the_main_program_holds_is_no_finding():
    """It has not ended."""
    with simrank.Context("hgx_h100") as ctx:
        CACHE["main"] = ctx.ones(10)
        assert ctx.findings == []
    CACHE.clear()
