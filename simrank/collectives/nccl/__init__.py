"""NCCL's collectives in closed form: its constants, its choice, and how long that takes.

Reading order: `constants`, `laws` (times), `tuner` (the choice), `prediction`.
"""

from simrank.collectives.nccl.laws import Calibration, Communicator, Terms
from simrank.collectives.nccl.machine import GroupShape
from simrank.collectives.nccl.prediction import Prediction, predict_times

__all__ = ["Calibration", "Communicator", "GroupShape", "Prediction", "Terms", "predict_times"]
