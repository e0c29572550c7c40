"""Predictions of NCCL's choices and times by size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from simrank.collectives.nccl import laws, plugin, tuner
from simrank.collectives.nccl.environment import only
from simrank.collectives.nccl.laws import Communicator

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Floats
    from simrank.collectives.nccl.machine import GroupShape
    from simrank.collectives.nccl.tuner import Candidate
    from simrank.config.tuner import TunerRow
    from simrank.hardware.spec import NcclSpec


@dataclass(frozen=True, slots=True)
class Prediction:
    """Times of one collective.

    Attributes:
        times_us: [m] One time per size, in microseconds.
        chosen: [m] Which of `choices` each size takes.
        choices: Pairs of an algorithm and a protocol.
        compared_us: [c, m] What decides: the least of each size's is chosen.
    """

    times_us: Floats
    chosen: npt.NDArray[np.int64]
    choices: tuple[tuple[str, str], ...]
    compared_us: Floats


def considered(
    collective: str,
    sizes_bytes: npt.ArrayLike,
    comm: Communicator,
    algorithms: Collection[str] | None = None,
    protocols: Collection[str] | None = None,
) -> list[Candidate]:
    """Return the candidates with NCCL's estimates.

    Args:
        collective: For example all_reduce.
        sizes_bytes: [m] The sizes S of nccl-tests.
        comm: The ranks, and on what they are.
        algorithms: Those that a user leaves; None: those that the cluster leaves.
        protocols: Likewise.

    Raises:
        ValueError: Nothing is left.
    """
    spec, sizes = comm.spec, np.asarray(sizes_bytes, dtype=np.float64)
    if tuner.is_ready_made(collective):
        every = _ready_made(collective, sizes.tobytes(), comm.shape, spec)
    else:
        every = tuner.candidates(collective, sizes, comm)
    return only(
        every,
        (spec.algorithms or None) if algorithms is None else algorithms,
        (spec.protocols or None) if protocols is None else protocols,
    )


@lru_cache(maxsize=8)  # A fit changes the constants only, of which these estimates know nothing.
def _ready_made(
    collective: str, sizes: bytes, shape: GroupShape, spec: NcclSpec
) -> list[Candidate]:
    return tuner.candidates(collective, np.frombuffer(sizes), Communicator(shape, spec))


def predict_times(
    collective: str,
    sizes_bytes: npt.ArrayLike,
    comm: Communicator,
    *,
    algorithms: Collection[str] | None = None,
    protocols: Collection[str] | None = None,
    tuner_rows: Sequence[TunerRow] = (),
) -> Prediction:
    """Predict the times that nccl-tests would print.

    Args:
        collective: For example all_reduce.
        sizes_bytes: [m] The sizes S of nccl-tests.
        comm: The ranks, and on what they are.
        algorithms: Those that may be taken; None: those that the cluster leaves.
        protocols: Likewise.
        tuner_rows: What a tuner plugin asks for.

    Raises:
        ValueError: No algorithm and protocol are left, or there is one rank.
    """
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    if comm.shape.num_ranks == 1:
        raise ValueError("one rank sends nothing: a collective of it is a copy")
    left = considered(collective, sizes, comm, algorithms, protocols)
    choices = tuple((each.algorithm, each.protocol) for each in left)
    rows = plugin.matching(tuner_rows, collective, comm.shape)
    if comm.calibration.takes_fastest:
        every = np.stack([laws.terms(collective, *each, sizes, comm).total for each in choices])
        chosen = plugin.overridden(every.argmin(axis=0), sizes, choices, rows)
        return Prediction(every[chosen, np.arange(len(sizes))], chosen, choices, every)
    estimates = np.stack([each.estimate_us for each in left])
    chosen = plugin.overridden(estimates.argmin(axis=0), sizes, choices, rows)
    times = np.empty(len(sizes))
    for index, choice in enumerate(choices):
        mine = chosen == index
        if mine.any():
            times[mine] = laws.terms(collective, *choice, sizes[mine], comm).total
    return Prediction(times, chosen, choices, estimates)


def work_of_choice(
    collective: str, sizes_bytes: npt.ArrayLike, comm: Communicator, found: Prediction
) -> laws.NominalTimes:
    """Return the work of the chosen algorithms, one entry per size."""
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    fields = np.empty((len(laws.NominalTimes._fields), len(sizes)))
    for index, choice in enumerate(found.choices):
        mine = found.chosen == index
        if mine.any():
            each = laws.work(collective, *choice, sizes[mine], comm)
            for row, part in zip(fields, each, strict=True):
                row[mine] = part
    return laws.NominalTimes(*fields)
