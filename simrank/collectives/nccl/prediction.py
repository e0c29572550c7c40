"""What NCCL would choose for each size, and how long that would take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simrank.collectives.nccl import laws, tuner
from simrank.collectives.nccl.forced import only

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Communicator, Floats


@dataclass(frozen=True, slots=True)
class Prediction:
    """Times of one collective.

    Attributes:
        times_us: [m] One time per size, in microseconds.
        chosen: [m] Which of `choices` each size takes.
        choices: Pairs of an algorithm and a protocol.
    """

    times_us: Floats
    chosen: npt.NDArray[np.int64]
    choices: tuple[tuple[str, str], ...]


def predict_times(
    collective: str,
    sizes_bytes: npt.ArrayLike,
    comm: Communicator,
    *,
    algorithms: Collection[str] | None = None,
    protocols: Collection[str] | None = None,
) -> Prediction:
    """Predict what nccl-tests would print.

    Args:
        collective: For example all_reduce.
        sizes_bytes: [m] The sizes S of nccl-tests.
        comm: The ranks, and on what they are.
        algorithms: Those that may be taken; None: any.
        protocols: Likewise.

    Raises:
        ValueError: No algorithm and protocol are left.
    """
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    if comm.shape.num_ranks == 1:  # Nothing is sent.
        alone = np.full(len(sizes), comm.calibration.launch_us)
        return Prediction(alone, np.zeros(len(sizes), np.int64), (("none", "none"),))
    considered = tuner.candidates(collective, sizes, comm)
    considered = only(considered, algorithms, protocols)
    chosen = np.argmin([each.estimate_us for each in considered], axis=0)
    times = np.empty(len(sizes))
    for index, (algorithm, protocol, _) in enumerate(considered):
        mine = chosen == index
        if mine.any():
            parts = laws.terms(collective, algorithm, protocol, sizes[mine], comm)
            times[mine] = parts.total
    return Prediction(times, chosen, tuple((each[0], each[1]) for each in considered))
