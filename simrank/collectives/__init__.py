"""Collective algorithms as schedules, their results and their simulated time.

Reading order: `schedule` (the data), `algorithms/ring.py` (one pure function), `play` (data and
time of all ranks), then `cost` and `choice`. Beside them: `bounds` (theory),
`reference` (what results must be). Ranks are plain positions here: this package works on
numpy arrays and knows no tensors, tasks or groups.
"""

from simrank.collectives.algorithms import algorithms_for, build, register_algorithm
from simrank.collectives.choice import Choice, Chooser
from simrank.collectives.cost import CostModel, ScheduleCost
from simrank.collectives.data import DataPlayer, play_data, play_time
from simrank.collectives.problem import Problem
from simrank.collectives.schedule import Schedule

__all__ = [
    "Choice",
    "Chooser",
    "CostModel",
    "DataPlayer",
    "Problem",
    "Schedule",
    "ScheduleCost",
    "algorithms_for",
    "build",
    "play_data",
    "play_time",
    "register_algorithm",
]
