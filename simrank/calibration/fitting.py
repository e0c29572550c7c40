"""A calibration from measured times: the most probable constants, given NCCL's own.

Maximum a posteriori: log errors of the predictions, of which single outliers count little
(pseudo-Huber), and a log-normal prior around NCCL's constants, so that what a table does not tell
apart stays as NCCL has it. Gauss-Newton steps, damped, on nine numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.collectives.nccl.pool import PRIOR_SIGMAS
from simrank.collectives.nccl.prediction import predict_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Calibration, Communicator, Floats

NAMES = tuple(PRIOR_SIGMAS)
DATA_SIGMA = 0.05  # Assumed: so far a repeated measurement is off.
_HUBER = 2.0  # In units of that: beyond it an error counts linearly.
# Where steps begin, in units of the prior's sigma: NCCL's own constants; a network whose steps take
# 11 times as long (TCPX); one over which LL reaches a fifth of its rate (Slingshot).
_STARTS: tuple[dict[str, float], ...] = ({}, {"hop_net": 3.0}, {"bandwidth_ll": -5.0})
_MAX_STEPS = 100
_CONVERGED = 1e-9


class Measured(NamedTuple):
    """Measured times of one collective.

    Attributes:
        collective: For example all_reduce.
        size_bytes: [m] The sizes S of nccl-tests.
        time_us: [m] What was measured.
        comm: The ranks, and on what they were.
    """

    collective: str
    size_bytes: npt.NDArray[np.int64]
    time_us: Floats
    comm: Communicator


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of a fit.

    Attributes:
        calibration: The constants.
        num_steps: Steps that it took.
        cost: What was minimised: twice the negative logarithm of the probability.
    """

    calibration: Calibration
    num_steps: int
    cost: float


def fit(tables: Sequence[Measured], names: Sequence[str] = NAMES) -> Fit:
    """Return the most probable constants for measured times.

    Args:
        tables: What was measured, of one machine.
        names: The constants that may change; the others stay as the tables' communicators say.

    Raises:
        ValueError: There is nothing to fit to.
    """
    if not any(len(table.size_bytes) for table in tables):
        raise ValueError("there are no measured times to fit to")
    start = tables[0].comm.calibration
    starts = [np.array([away.get(name, 0.0) for name in names]) for away in _STARTS]
    kinds = [replace(start, takes_fastest=each) for each in (False, True)]
    if len(names) < len(NAMES):
        kinds = [start]  # Kept constants keep the choice.
    fits = [_fit(x, names, kind, tables) for x in starts for kind in kinds]
    return min(fits, key=lambda found: found.cost)


def _fit(x: Floats, names: Sequence[str], start: Calibration, tables: Sequence[Measured]) -> Fit:
    """Return the optimum next to `x`: logarithms of factors, in units of their prior's sigma."""
    found, jacobian = _residuals(x, names, start, tables), None
    damping, num_steps = 1e-3, 0
    for num_steps in range(1, _MAX_STEPS + 1):  # noqa: B007 - it is what is returned
        jacobian = _jacobian(x, found, names, start, tables)
        gradient = jacobian.T @ found
        normal = jacobian.T @ jacobian
        step = -np.linalg.solve(normal + damping * np.eye(len(x)), gradient)
        tried = _residuals(x + step, names, start, tables)
        gain = found @ found - tried @ tried
        if gain > 0:
            x, found, damping = x + step, tried, damping / 3
            if gain < _CONVERGED * (found @ found):
                break
        else:
            damping *= 4
            if damping > 1 / _CONVERGED:
                break
    return Fit(_calibration(x, names, start), num_steps, float(found @ found))


def _calibration(x: Floats, names: Sequence[str], start: Calibration) -> Calibration:
    changed = {
        name: getattr(start, name) * float(np.exp(each * PRIOR_SIGMAS[name]))
        for name, each in zip(names, x, strict=True)
    }
    return replace(start, **changed)


def _residuals(
    x: Floats, names: Sequence[str], start: Calibration, tables: Sequence[Measured]
) -> Floats:
    """Return the residuals of the data, then of the prior."""
    calibration = _calibration(x, names, start)
    parts = []
    for table in tables:
        comm = replace(table.comm, calibration=calibration)
        predicted = predict_times(table.collective, table.size_bytes, comm).times_us
        error = np.log(predicted / table.time_us) / DATA_SIGMA
        rounded = np.sqrt(2 * _HUBER**2 * (np.sqrt(1 + (error / _HUBER) ** 2) - 1))
        parts.append(np.sign(error) * rounded)
    return np.concatenate([*parts, x])


def _jacobian(
    x: Floats, at: Floats, names: Sequence[str], start: Calibration, tables: Sequence[Measured]
) -> Floats:
    nudge = 1e-4
    columns = [
        (_residuals(x + nudge * unit, names, start, tables) - at) / nudge for unit in np.eye(len(x))
    ]
    return np.stack(columns, axis=1)
