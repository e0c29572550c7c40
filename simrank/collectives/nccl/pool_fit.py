"""Fit pooled constants to many series at once; start with `fit_pool`.

Maximum a posteriori over all effects together, by damped Gauss-Newton steps; of the logarithms of
times, so that an error of 10 % counts the same at every size, and single outliers count little
(pseudo-Huber). The covariance is that of the last step (Laplace).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from simrank.collectives.nccl.laws import Work
from simrank.collectives.nccl.pool import (
    NCCL_LOGS,
    NUM,
    SERIES,
    SITE,
    Pool,
    calibration_of,
    constants_in,
    kind_of,
    prior_sigmas,
)
from simrank.collectives.nccl.prediction import predict_times, work_of_choice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Communicator, Floats
    from simrank.collectives.nccl.pool import Labels

# What the laws leave, as a standard deviation by class of size: so much may a time differ from the
# best constants of its series. Assumed: about what a fit to one series leaves.
DATA_SIGMAS: Final = (0.08, 0.08, 0.1, 0.05)
# Where a host thread launches on several devices: its launches decide, and tell little else.
HOST_DATA_SIGMAS: Final = (0.4, 0.3, 0.1, 0.05)
_HUBER: Final = 2.0  # In units of that: beyond it an error counts linearly.
_HOST_POWER: Final = 6  # Of the smooth maximum of a time and the launches of one host thread.
# Of one GPU, before a host thread comes to the next: measured on nccl-tests -g 8, 4.1 to 4.6 us.
HOST_LAUNCH_US: Final = 4.35
_MAX_STEPS: Final = 30
_CONVERGED: Final = 1e-4


class Observed(NamedTuple):
    """Measured times of one series.

    Attributes:
        collective: For example all_reduce.
        size_bytes: [m] The sizes S of nccl-tests.
        time_us: [m] What was measured.
        classes: [m] Class of each size.
        comm: The ranks, and on what they were.
        labels: What its effects are of, site and series included.
        gpus_per_thread: GPUs that a host thread launches on.
    """

    collective: str
    size_bytes: npt.NDArray[np.int64]
    time_us: Floats
    classes: npt.NDArray[np.int64]
    comm: Communicator
    labels: Labels
    gpus_per_thread: int = 1


def work_of(collective: str, sizes_bytes: npt.ArrayLike, comm: Communicator) -> Work:
    """Return the work of NCCL's choice, one entry per size."""
    found = predict_times(collective, sizes_bytes, comm)
    return work_of_choice(collective, sizes_bytes, comm, found)


class _Problem:
    """All series as arrays of one entry per measured time."""

    def __init__(self, observed: Sequence[Observed]) -> None:
        self.num_times = [len(each.size_bytes) for each in observed]
        self.owner = np.repeat(np.arange(len(observed)), self.num_times)
        works = [work_of(each.collective, each.size_bytes, each.comm) for each in observed]
        self.work = Work(*(np.concatenate(parts) for parts in zip(*works, strict=True)))
        self.logs = np.log(np.concatenate([each.time_us for each in observed]))
        self.sigmas = np.concatenate([_sigmas(each) for each in observed])
        hosts = [each.gpus_per_thread for each in observed]
        launches = [HOST_LAUNCH_US * gpus if gpus > 1 else 0.0 for gpus in hosts]
        self.launches_us = np.repeat(launches, self.num_times)
        names: dict[str, None] = {}
        for each in observed:
            names.update(dict.fromkeys((*each.labels.effects, *each.labels.own_effects)))
        # Effects of series last: nothing but its own times tells of one.
        self.effects = sorted(names, key=lambda name: kind_of(name) in (SITE, SERIES))
        starts = np.cumsum([0, *(len(constants_in(each)) for each in self.effects)]).tolist()
        self.slices = {
            name: slice(start, end)
            for name, start, end in zip(self.effects, starts, starts[1:], strict=False)
        }
        self.prior = np.concatenate([prior_sigmas(each) for each in self.effects])
        self.sums = np.zeros((len(observed), NUM, starts[-1]))  # From effects to constants.
        for number, each in enumerate(observed):
            for name in (*each.labels.effects, *each.labels.own_effects):
                columns = np.arange(self.slices[name].start, self.slices[name].stop)
                self.sums[number, constants_in(name), columns] = 1.0

    def errors(self, found: Floats) -> tuple[Floats, Floats]:
        """Return the logarithmic errors [m], and their slopes along the constants [9, m]."""
        logs = NCCL_LOGS[:, None] + (self.sums @ found)[self.owner].T
        calibration = calibration_of(logs)
        times_us = self.work.terms(calibration).total
        slopes = self.work.slopes(calibration)
        return shifted(times_us, slopes, self.launches_us, self.logs)

    def cost(self, errors: Floats, found: Floats) -> float:
        """Return the cost: twice the negative logarithm of the probability."""
        scaled = errors / self.sigmas / _HUBER
        rounded = 2 * _HUBER**2 * (np.sqrt(1 + scaled**2) - 1)
        return float(rounded.sum() + ((found / self.prior) ** 2).sum())

    def normal(self, errors: Floats, slopes: Floats, found: Floats) -> tuple[Floats, Floats]:
        """Return the matrix and the right side of the normal equations."""
        weights = 1 / np.sqrt(1 + (errors / self.sigmas / _HUBER) ** 2) / self.sigmas**2
        squares = np.zeros((len(self.num_times), NUM, NUM))
        sides = np.zeros((len(self.num_times), NUM))
        np.add.at(squares, self.owner, np.einsum("cm,dm,m->mcd", slopes, slopes, weights))
        np.add.at(sides, self.owner, (slopes * errors * weights).T)
        flat = self.sums.reshape(-1, self.sums.shape[2])
        matrix = flat.T @ (squares @ self.sums).reshape(flat.shape)
        matrix[np.diag_indices_from(matrix)] += 1 / self.prior**2
        return matrix, flat.T @ sides.ravel() + found / self.prior**2


def _sigmas(observed: Observed) -> Floats:
    sigmas = np.array(HOST_DATA_SIGMAS if observed.gpus_per_thread > 1 else DATA_SIGMAS)
    return sigmas[observed.classes]


def shifted(
    times_us: Floats, slopes: Floats, launches_us: Floats, logs: Floats
) -> tuple[Floats, Floats]:
    """Return logarithmic errors and slopes of times that launches of one host thread bound."""
    powered = times_us**_HOST_POWER
    bounded = powered + launches_us**_HOST_POWER
    return np.log(bounded) / _HOST_POWER - logs, slopes * (powered / bounded)


def fit_pool(
    observed: Sequence[Observed], source: str, start: Mapping[str, Floats] | None = None
) -> Pool:
    """Return the most probable effects, their covariance, and no noise yet.

    Args:
        observed: Series of many sites.
        source: Words for them.
        start: Effects to begin with, of another fit.

    Raises:
        ValueError: There is nothing to fit to.
    """
    if not observed:
        raise ValueError("there are no measured times to fit to")
    problem = _Problem(observed)
    found = np.zeros(len(problem.prior))
    for name, values in (start or {}).items():
        if name in problem.slices:
            found[problem.slices[name]] = values
    errors, slopes = problem.errors(found)
    cost, damping = problem.cost(errors, found), 1e-3
    for _ in range(_MAX_STEPS):
        matrix, side = problem.normal(errors, slopes, found)
        matrix[np.diag_indices_from(matrix)] *= 1 + damping
        tried = found - np.linalg.solve(matrix, side)
        errors, slopes = problem.errors(tried)
        gain = cost - problem.cost(errors, tried)
        if gain > 0:
            found, cost, damping = tried, cost - gain, max(damping / 5, 1e-6)
            if gain < _CONVERGED * cost:
                break
        else:
            damping *= 8
            errors, slopes = problem.errors(found)
            if damping > 1 / _CONVERGED:
                break
    matrix, _ = problem.normal(errors, slopes, found)
    covariance = np.linalg.inv(matrix)
    shared = [name for name in problem.effects if kind_of(name) not in (SITE, SERIES)]
    end = problem.slices[shared[-1]].stop
    effects = {name: found[problem.slices[name]] for name in problem.effects}
    return Pool(
        effects,
        np.asarray(covariance[:end, :end], dtype=np.float64),
        np.zeros((3, len(DATA_SIGMAS))),
        {name: _num_sites(name, observed) for name in shared},
        source,
    )


def _num_sites(effect: str, observed: Sequence[Observed]) -> int:
    return len({each.labels.site for each in observed if effect in each.labels.effects})
