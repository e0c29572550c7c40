"""The schedule level remembers, and forgets."""

import numpy as np

from simrank.collectives import Problem, ScheduleCost, build
from simrank.collectives import cost as module
from simrank.collectives.data import NOT_ARRIVED, NOT_KNOWN
from simrank.collectives.time_rounds import TimePlayer
from simrank.hardware import load_cluster

CLUSTER = load_cluster("hgx_h100")
DEVICES = np.arange(8)


def test_repeated_skew_is_looked_up(monkeypatch):
    """Iterations that begin later with the same differences are not played again."""
    played = []
    original = TimePlayer.completions

    def counting(self, arrivals):
        played.append(1)
        return original(self, arrivals)

    monkeypatch.setattr(TimePlayer, "completions", counting)
    cost, schedule = ScheduleCost(CLUSTER), build(Problem("all_reduce", 8, 64), "two_shot")
    arrivals = np.array([0, 3, 0, 9, 0, 0, 0, 1])
    first = cost.completions(schedule, arrivals, devices=DEVICES, itemsize=4)
    again = cost.completions(schedule, arrivals + 777, devices=DEVICES, itemsize=4)
    assert np.array_equal(again, first + 777)
    assert len(played) == 1
    cost.completions(schedule, arrivals, devices=DEVICES[::-1], itemsize=4)
    cost.completions(schedule, arrivals, devices=DEVICES, itemsize=8)
    assert len(played) == 3
    assert cost.level == "schedule"


def test_absent_ranks_are_not_times():
    """Partial answers are relative to the ranks that came; without any, nothing is known."""
    cost, schedule = ScheduleCost(CLUSTER), build(Problem("broadcast", 8, 64), "binomial")
    arrivals = np.full(8, NOT_ARRIVED)
    done = cost.completions(schedule, arrivals, devices=DEVICES, itemsize=4)
    assert (done == NOT_KNOWN).all()
    arrivals[0] = 10**12
    done = cost.completions(schedule, arrivals, devices=DEVICES, itemsize=4)
    assert 10**12 < done[0] < 10**12 + 10**8
    assert (done[1:] == NOT_KNOWN).all()


def test_memory_is_bounded(monkeypatch):
    """Old skews are dropped; answers stay right."""
    monkeypatch.setattr(module, "MAX_MEMO_ELEMENTS", 20)
    cost, schedule = ScheduleCost(CLUSTER), build(Problem("reduce", 8, 64), "chain")
    answers = []
    for late in (1, 2, 3, 1):
        arrivals = np.arange(8) * late
        answers.append(cost.completions(schedule, arrivals, devices=DEVICES, itemsize=4))
    assert np.array_equal(answers[0], answers[3])
    assert sum(map(len, cost._memo.values())) <= 20
