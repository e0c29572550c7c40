"""Ranges in flight are kept by id."""

from __future__ import annotations

import torch

from simrank.torch import cuda as simulated


def test_an_id_may_have_several_ranges():
    """Removing it removes all of them, and no others."""
    seen = []
    callbacks = simulated.Callbacks(on_pending=lambda *wait: seen.append(wait[3]))
    with simulated.standalone(1, callbacks=callbacks):
        x, y = (torch.ones(4, device="cuda") for _ in range(2))
        simulated.pending_add(x.data_ptr(), 16, writes=True, pending_id=1)
        simulated.pending_add(y.data_ptr(), 16, writes=True, pending_id=1)
        simulated.pending_add(y.data_ptr(), 16, writes=True, pending_id=2)
        x + y
        assert seen == [1, 1, 2]
        simulated.pending_remove(1)
        x + y
        assert seen == [1, 1, 2, 2]
        simulated.pending_remove(2)
        x + y
        assert len(seen) == 4
