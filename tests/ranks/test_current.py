"""Who runs: the hub, a rank, a bare greenlet, or nobody."""

import pytest
from greenlet import greenlet

from simrank import Context
from simrank.errors import NoRankError
from simrank.ranks.current import (
    current_engine,
    current_program,
    require_program,
    require_rank,
    running_task,
)


def test_outside_every_context_nobody_runs():
    """Calls that need somebody are refused by name, with what to do."""
    assert (current_program(), current_engine(), running_task()) == (None, None, None)
    with pytest.raises(NoRankError, match="get_rank was called outside a rank"):
        require_rank("get_rank")
    with pytest.raises(NoRankError, match="zeros was called outside a Context"):
        require_program("zeros")


def test_the_main_program_of_a_context_is_no_rank():
    """It has a program and an engine; nothing that could be resumed."""
    with Context("hgx_h100") as ctx:
        assert current_program() is ctx.program
        assert current_engine() is ctx.engine
        assert running_task() is None
        with pytest.raises(NoRankError):
            require_rank("get_rank")


def test_each_rank_is_its_own_program_and_task():
    """Also after it has waited and others have run."""
    seen = []

    def body(rank):
        ctx.wait(ctx.timer(10))
        program = require_rank("get_rank")
        assert running_task() is program.task
        seen.append((rank, program.rank, program.world_size, program.parent is ctx.program))

    with Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=3)

    assert seen == [(rank, rank, 3, True) for rank in range(3)]


def test_a_bare_greenlet_belongs_to_the_context_entered_last():
    """It starts without contextvars, so it has no program; its engine is known all the same."""
    seen = []
    with Context("hgx_h100"), Context("hgx_h100") as inner:
        greenlet(lambda: seen.append((current_program(), current_engine()))).switch()

        assert seen == [(None, inner.engine)]
