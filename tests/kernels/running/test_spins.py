"""The guard of a loop that may wait."""

import numpy as np
import pytest

from simrank.kernels import machine
from simrank.kernels.machine import Programs, Setting, Statistics
from simrank.kernels.running.spins import spin


class Sync:
    """Notes what a guard tells the program that waits."""

    num_effects = 3

    def __init__(self):
        self.reported = []

    def enter_spin(self):
        self.num_effects += 1
        self.reported.append("enter")

    def next_round(self, effects_before, *, is_pure):
        self.reported.append((effects_before, self.num_effects, is_pure))

    def leave_spin(self, *, for_value):
        self.reported.append(("leave", for_value))


def guarded(sync):
    def body():
        guard = spin(True, False)
        assert guard.again()
        if sync is not None:
            sync.num_effects += 1
        assert guard.again()
        guard.over()

    setting = Setting("k", (1, 1, 1), None, Statistics())
    machine.run(Programs(setting, np.array([0]), sync=sync), body)


def test_each_round_is_compared_with_what_the_one_before_left():
    """A round that changed memory is no reason to park."""
    sync = Sync()
    guarded(sync)
    assert sync.reported == ["enter", (4, 4, True), (4, 5, True), ("leave", False)]


@pytest.mark.parametrize("sync", [None])
def test_in_lockstep_nothing_is_asked(sync):
    """Programs that neither wait nor publish just go round."""
    guarded(sync)
