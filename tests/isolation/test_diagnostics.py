"""Hooks of exceptions: each rank's own, and the main program's as they were."""

import sys
import threading

import pytest

import simrank


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
@pytest.mark.parametrize("module", [sys, threading])
def test_a_hook_that_a_rank_sets_is_its_own(carrier, module):
    """Each finds the main program's before its own, never another rank's."""
    before, found = module.excepthook, []

    def program(rank, ctx):
        own = module.excepthook
        found.append(own)

        def hook(*args):
            return own(*args)

        module.excepthook = hook
        ctx.engine.sleep(1)
        assert module.excepthook is hook

    with simrank.Context("hgx_h100", carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
        assert module.excepthook is before
    assert module.excepthook is before
    assert found == [before] * 3


@pytest.mark.parametrize("module", [sys, threading])
def test_a_hook_that_the_main_program_sets_meanwhile_stays(module, monkeypatch):
    """As streams do."""
    monkeypatch.setattr(module, "excepthook", module.excepthook)

    def hook(*_):
        """Do nothing."""

    with simrank.Context("hgx_h100"):
        module.excepthook = hook
        assert module.excepthook is hook
    assert module.excepthook is hook


def test_threads_of_a_rank_tell_its_own_hook():
    """And nobody else's."""
    reported = []

    def program(rank):
        threading.excepthook = lambda args: reported.append((rank, args.thread.name, args.exc_type))
        thread = threading.Thread(target=lambda: 1 // 0, name=f"of {rank}")
        thread.start()
        thread.join()

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    assert reported == [(rank, f"of {rank}", ZeroDivisionError) for rank in range(2)]
