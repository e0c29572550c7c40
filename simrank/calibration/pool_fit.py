"""Fit pooled constants to many series at once; start with `fit_pool`.

Maximum a posteriori over all effects together, by damped Gauss-Newton steps; of the logarithms of
times, so that an error of 10 % counts the same at every size, and single outliers count little
(pseudo-Huber). The covariance is that of the last step (Laplace).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from simrank.collectives.nccl.laws import UNCALIBRATED, Calibration, NominalTimes
from simrank.collectives.nccl.pool import (
    CALIBRATED,
    NCCL_LOGS,
    NUM,
    NUM_KINDS,
    SERIES,
    SITE,
    Pool,
    calibration_of,
    constants_in,
    kind_of,
    logs_of,
    prior_sigmas,
    row_of,
)
from simrank.collectives.nccl.prediction import predict_times, work_of_choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Communicator, Floats, Numbers
    from simrank.collectives.nccl.pool import Labels

# What the laws leave, as a standard deviation by class of size: so much may a time differ from the
# best constants of its series. Assumed: about what a fit to one series leaves.
DATA_SIGMAS: Final = (0.12, 0.12, 0.15, 0.08)
# Where a host thread launches on several devices: its launches decide, and tell little else.
HOST_DATA_SIGMAS: Final = (0.4, 0.3, 0.1, 0.05)
_HUBER: Final = 2.0  # In units of that: beyond it an error counts linearly.
_HOST_POWER: Final = 6  # Of the smooth maximum of a time and the launches of one host thread.
# Of one GPU, before a host thread comes to the next: measured on nccl-tests -g 8, 4.1 to 4.6 us;
# NVIDIA/nccl-tests issue 123 has 10 us a call on two A100, 16.9 on four and 33.7 on eight.
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
        device: The cluster whose devices were measured.
        launch: What ran a rank: processes or threads; "": not known.
        published_by: The measured machine, and where its times were published.
    """

    collective: str
    size_bytes: npt.NDArray[np.int64]
    time_us: Floats
    classes: npt.NDArray[np.int64]
    comm: Communicator
    labels: Labels
    gpus_per_thread: int = 1
    device: str = ""
    launch: str = ""
    published_by: str = ""

    def part(self, which: npt.NDArray[np.bool_]) -> Observed:
        """Return some of its times."""
        sizes, times_us = self.size_bytes[which], self.time_us[which]
        return self._replace(size_bytes=sizes, time_us=times_us, classes=self.classes[which])

    @property
    def launches_us(self) -> float:
        """Launches of one host thread, if it launches on several devices: the least time."""
        return HOST_LAUNCH_US * self.gpus_per_thread if self.gpus_per_thread > 1 else 0.0

    def work(self, calibration: Calibration = UNCALIBRATED) -> NominalTimes:
        """Return the work of NCCL's choice by constants, one entry per size."""
        comm = replace(self.comm, calibration=calibration)
        found = predict_times(self.collective, self.size_bytes, comm)
        return work_of_choice(self.collective, self.size_bytes, comm, found)


class _Problem:
    """All series as arrays of one entry per measured time.

    The unknowns are the effects that several series may share, those of sites among them; then
    nine of each series, which are eliminated in each step: nothing but its own times tells of them.
    """

    def __init__(self, observed: Sequence[Observed]) -> None:
        num_times = [len(each.size_bytes) for each in observed]
        self._owner = np.repeat(np.arange(len(observed)), num_times)
        self._firsts = np.cumsum([0, *num_times[:-1]])
        works = [each.work() for each in observed]
        self._work = NominalTimes(*(np.concatenate(parts) for parts in zip(*works, strict=True)))
        self._logs = np.log(np.concatenate([each.time_us for each in observed]))
        self._sigmas = np.concatenate([_sigmas(each) for each in observed])
        self._launches_us = np.repeat([each.launches_us for each in observed], num_times)
        names: dict[str, None] = {}
        for each in observed:
            names.update(dict.fromkeys((*each.labels.effects, each.labels.site_effect)))
        self.effects = sorted(names, key=lambda name: kind_of(name) == SITE)
        starts = np.cumsum([0, *(len(constants_in(each)) for each in self.effects)]).tolist()
        self.slices = {
            name: slice(start, end)
            for name, start, end in zip(self.effects, starts, starts[1:], strict=False)
        }
        self._shared_prior = np.concatenate([prior_sigmas(each) for each in self.effects])
        self._series_prior = prior_sigmas(SERIES)
        self._sums = np.zeros((len(observed), NUM, starts[-1]))  # From effects to constants.
        for number, each in enumerate(observed):
            for name in (*each.labels.effects, each.labels.site_effect):
                columns = np.arange(self.slices[name].start, self.slices[name].stop)
                self._sums[number, constants_in(name), columns] = 1.0

    @property
    def num_unknowns(self) -> int:
        """The number of unknowns."""
        return int(self._sums.shape[2]) + NUM * len(self._firsts)

    def _split(self, found: Floats) -> tuple[Floats, Floats]:
        """Return the shared unknowns [p], and those of the series [n, 9]."""
        num = self._sums.shape[2]
        return found[:num], found[num:].reshape(-1, NUM)

    def errors(self, found: Floats) -> tuple[Floats, Floats]:
        """Return the logarithmic errors [m], and their slopes along the constants [9, m]."""
        shared, own = self._split(found)
        logs = NCCL_LOGS[:, None] + (self._sums @ shared + own)[self._owner].T
        calibration = calibration_of(logs)
        times_us, slopes = self._work.terms(calibration).total, self._work.slopes(calibration)
        return shifted(times_us, slopes, self._launches_us, self._logs)

    def cost(self, errors: Floats, found: Floats) -> float:
        """Return the cost: twice the negative logarithm of the probability."""
        shared, own = self._split(found)
        cost = _rounded(errors / self._sigmas) + float(((shared / self._shared_prior) ** 2).sum())
        return cost + float(((own / self._series_prior) ** 2).sum())

    def step(self, errors: Floats, slopes: Floats, found: Floats, damping: float) -> Floats:
        """Return a damped Gauss-Newton step, to be subtracted."""
        shared, own = self._split(found)
        matrix, squares, inverse, sides = self._normal(errors, slopes, damping)
        own_sides = sides + own / self._series_prior**2
        left = sides - np.einsum("ncd,ndk,nk->nc", squares, inverse, own_sides)
        right = np.einsum("ncp,nc->p", self._sums, left) + shared / self._shared_prior**2
        matrix[np.diag_indices_from(matrix)] *= 1 + damping
        by_shared = np.linalg.solve(matrix, right)
        moved = own_sides - np.einsum("ncd,nd->nc", squares, self._sums @ by_shared)
        by_own = np.einsum("ncd,nd->nc", inverse, moved)
        return np.concatenate([by_shared, by_own.ravel()])

    def covariance(self, errors: Floats, slopes: Floats) -> Floats:
        """Return the covariance of the shared unknowns [p, p]."""
        return np.asarray(np.linalg.inv(self._normal(errors, slopes, 0.0)[0]))

    def _normal(self, errors: Floats, slopes: Floats, damping: float) -> tuple[Any, Any, Any, Any]:
        """Return the normal equations without the unknowns of the series.

        Returns:
            The matrix of the shared unknowns [p, p]; and of each series the matrix of its data
            [n, 9, 9], the inverse of that with its prior, and the right side of its data [n, 9].
        """
        weights = _weights(errors, self._sigmas)
        products = np.einsum("cm,dm,m->mcd", slopes, slopes, weights)
        squares = np.add.reduceat(products, self._firsts, axis=0)
        sides = np.add.reduceat((slopes * errors * weights).T, self._firsts, axis=0)
        inverse = np.linalg.inv(squares + (1 + damping) * np.diag(1 / self._series_prior**2))
        reduced = squares - squares @ inverse @ squares
        flat = self._sums.reshape(-1, self._sums.shape[2])
        matrix = flat.T @ (reduced @ self._sums).reshape(flat.shape)
        matrix[np.diag_indices_from(matrix)] += 1 / self._shared_prior**2
        return matrix, squares, inverse, sides


def _sigmas(observed: Observed) -> Floats:
    sigmas = np.array(HOST_DATA_SIGMAS if observed.gpus_per_thread > 1 else DATA_SIGMAS)
    return sigmas[observed.classes]


def shifted(
    times_us: Floats, slopes: Floats, launches_us: Floats, logs: Floats
) -> tuple[Floats, Floats]:
    """Return logarithmic errors and slopes of times that launches of one host thread bound."""
    with_launches_us = bounded(times_us, launches_us)
    shares = (times_us / with_launches_us) ** _HOST_POWER
    return np.log(with_launches_us) - logs, slopes * shares


def bounded(times_us: Floats, launches_us: Numbers) -> Floats:
    """Return times of calls of which each waits for so many microseconds of launches."""
    powered: Floats = times_us**_HOST_POWER + launches_us**_HOST_POWER
    return powered ** (1 / _HOST_POWER)


def fit_pool(observed: Sequence[Observed], source: str) -> Pool:
    """Return the most probable effects, their covariance, and no noise yet.

    Args:
        observed: Series of many sites.
        source: Words for them.

    Raises:
        ValueError: There is nothing to fit to.
    """
    if not observed:
        raise ValueError("there are no measured times to fit to")
    problem = _Problem(observed)
    at = _minimum(problem, np.zeros(problem.num_unknowns))
    covariance = problem.covariance(at.errors, at.slopes)
    shared = [name for name in problem.effects if kind_of(name) != SITE]
    end = problem.slices[shared[-1]].stop
    effects = {name: at.found[problem.slices[name]] for name in problem.effects}
    return Pool(
        effects,
        covariance[:end, :end],
        np.zeros((NUM_KINDS, len(DATA_SIGMAS))),
        {name: _num_sites(name, observed) for name in shared},
        source,
        _evidence(observed),
    )


class SiteFit(NamedTuple):
    """The constants of one site, given pooled ones and its measured times.

    Attributes:
        calibration: The most probable constants of the first series.
        covariance: [9, 9] Of their logarithms.
        noises: [4] What they leave, by class of size, as a standard deviation of logarithms; of
            classes with few times about what pooled constants leave.
    """

    calibration: Calibration
    covariance: Floats
    noises: Floats


# A machine that is calibrated may differ from pooled constants by more than the sites of tables do,
# and its own times are to be met. Assumed; one small size of a left-out site predicts its other
# sizes as well as with factors of 1.
_SITE_FACTOR: Final = 2.0
_OWN_FACTOR: Final = 0.5  # Of `DATA_SIGMAS`.
# NCCL's choice follows the other rule only where the times say so: odds of 10 to 1, assumed.
_RULE_COST: Final = 2 * float(np.log(10.0))
_NOISE_TIMES: Final = 4  # Assumed: a pool's noise counts like so many times of a class.


def fit_site(pool: Pool, observed: Sequence[Observed]) -> SiteFit:
    """Return the constants of a site: pooled ones, moved alike for all series.

    Args:
        pool: The prior: its constants, with their variance at an unknown site.
        observed: Measured times of one machine, at least one.
    """
    known = [pool.constants(each.labels) for each in observed]
    covariances = dict(known[0].covariances)
    covariances[SITE] = covariances[SITE] * _SITE_FACTOR**2
    prior = np.sum(list(covariances.values()), axis=0)
    bases = [logs_of(each.calibration) for each in known]
    usual_rule = known[0].calibration.takes_fastest
    sites = [_Site(prior, bases, observed, rule) for rule in (usual_rule, not usual_rule)]
    found = [_minimum(site, np.zeros(NUM)) for site in sites]
    is_other = found[1].cost < found[0].cost - _RULE_COST
    site, at = sites[is_other], found[is_other]
    kind = row_of(observed[0].labels, known[0].unknown)
    usual = pool.noises[CALIBRATED.get(kind, kind)]
    classes = np.concatenate([each.classes for each in observed])
    squares = np.bincount(classes, at.errors**2, minlength=len(DATA_SIGMAS))
    counts = np.bincount(classes, minlength=len(DATA_SIGMAS))
    noises = np.sqrt((squares + _NOISE_TIMES * usual**2) / (counts + _NOISE_TIMES))
    covariance = site.covariance(at.errors, at.slopes)
    return SiteFit(site.calibration(bases[0], at.found), covariance, noises)


class _Site:
    """The shift of the constants of one site as the unknown."""

    def __init__(
        self,
        prior: Floats,
        bases: Sequence[Floats],
        observed: Sequence[Observed],
        takes_fastest: bool,
    ) -> None:
        self._inverse = np.linalg.inv(prior)
        self._series = list(zip(observed, bases, strict=True))
        self._sigmas = _OWN_FACTOR * np.concatenate([_sigmas(each) for each in observed])
        self._takes_fastest = takes_fastest

    def calibration(self, base: Floats, shift: Floats) -> Calibration:
        """Return shifted constants."""
        return replace(calibration_of(base + shift), takes_fastest=self._takes_fastest)

    def errors(self, found: Floats) -> tuple[Floats, Floats]:
        """Return the logarithmic errors [m], and their slopes along the constants [9, m]."""
        parts = []
        for each, base in self._series:
            calibration = self.calibration(base, found)
            work = each.work(calibration)
            bound, logs = np.full(len(each.time_us), each.launches_us), np.log(each.time_us)
            times_us, slopes = work.terms(calibration).total, work.slopes(calibration)
            parts.append(shifted(times_us, slopes, bound, logs))
        errors, slopes_of = zip(*parts, strict=True)
        return np.concatenate(errors), np.concatenate(slopes_of, axis=1)

    def cost(self, errors: Floats, found: Floats) -> float:
        """Return the cost: twice the negative logarithm of the probability."""
        return _rounded(errors / self._sigmas) + float(found @ self._inverse @ found)

    def step(self, errors: Floats, slopes: Floats, found: Floats, damping: float) -> Floats:
        """Return a damped Gauss-Newton step, to be subtracted."""
        weighted = slopes * _weights(errors, self._sigmas)
        matrix = weighted @ slopes.T + self._inverse
        matrix[np.diag_indices_from(matrix)] *= 1 + damping
        return np.asarray(np.linalg.solve(matrix, weighted @ errors + self._inverse @ found))

    def covariance(self, errors: Floats, slopes: Floats) -> Floats:
        """Return the covariance of the constants [9, 9]."""
        weighted = slopes * _weights(errors, self._sigmas)
        return np.asarray(np.linalg.inv(weighted @ slopes.T + self._inverse))


class _Minimum(NamedTuple):
    found: Floats
    cost: float
    errors: Floats
    slopes: Floats


def _minimum(problem: _Problem | _Site, found: Floats) -> _Minimum:
    """Return the least cost next to a start, by damped Gauss-Newton steps."""
    errors, slopes = problem.errors(found)
    cost, damping = problem.cost(errors, found), 1e-3
    for _ in range(_MAX_STEPS):
        tried = found - problem.step(errors, slopes, found, damping)
        tried_errors, tried_slopes = problem.errors(tried)
        gain = cost - problem.cost(tried_errors, tried)
        if gain > 0:
            found, errors, slopes = tried, tried_errors, tried_slopes
            cost, damping = cost - gain, max(damping / 5, 1e-6)
            if gain < _CONVERGED * cost:
                break
        else:
            damping *= 8
            if damping > 1 / _CONVERGED:
                break
    return _Minimum(found, cost, errors, slopes)


def _weights(errors: Floats, sigmas: Floats) -> Floats:
    """Return the weight of each error: outliers count little."""
    return np.asarray(1 / np.sqrt(1 + (errors / sigmas / _HUBER) ** 2) / sigmas**2)


def _rounded(scaled: Floats) -> float:
    """Return the cost of errors in units of their sigma: outliers count linearly."""
    return float((2 * _HUBER**2 * (np.sqrt(1 + (scaled / _HUBER) ** 2) - 1)).sum())


def _num_sites(effect: str, observed: Sequence[Observed]) -> int:
    return len({each.labels.site for each in observed if effect in each.labels.effects})


def _evidence(observed: Sequence[Observed]) -> dict[str, int]:
    """Return the number of sites with tables of each operation, span and network."""
    sites: dict[str, set[str]] = {}
    for each in observed:
        for name in each.labels.evidence:
            sites.setdefault(name, set()).add(each.labels.site)
    return {name: len(found) for name, found in sites.items()}
