"""Predictions of series that were left out of the pooled constants, and their scores.

Start with `hold_outs`. Kinds: a site, a kind of network, a device (cluster), an operation or a
group size of a cluster is left out; or all of a site but one small size.

Start with `fit_tables`; `simrank.collectives.nccl.pool` says what is fitted. Every comparison with
measured times uses `without_site`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from simrank.calibration.accuracy import DIRECT, builtin_tables, table_series
from simrank.calibration.pool_fit import Observed, fit_pool, fit_site, shifted
from simrank.collectives.nccl.evidence import of_nccl, shipped_pool
from simrank.collectives.nccl.laws import CONSTANTS, UNCALIBRATED, Calibration
from simrank.collectives.nccl.pool import (
    CALIBRATED,
    FIT,
    HOST_LAUNCHES,
    MESSAGES_BETWEEN_NODES,
    NORMAL_90,
    NUM,
    NUM_KINDS,
    ONE_NODE,
    ONE_NODE_CALIBRATED,
    ONE_NODE_UNSEEN,
    OVER_RACKS,
    SEVERAL_NODES,
    SEVERAL_NODES_CALIBRATED,
    SEVERAL_NODES_UNSEEN,
    Constants,
    Labels,
    Pool,
    labels_of,
    pooled_path,
    pooled_tables,
    row_of,
)
from simrank.collectives.nccl.size_classes import ENDS_BYTES, NAMES
from simrank.config.files import write_text
from simrank.config.measured import load_machine
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from simrank.calibration.accuracy import TableSeries
    from simrank.collectives.nccl.laws import Floats

SITE, NETWORK, ONE_SIZE, DEVICE, OPERATION, GROUP = (
    "site", "network", "one size known", "device", "operation", "group size",
)  # fmt: skip
KIND_WORDS: Final = {  # By row of a pool's noises, in the order of outputs.
    ONE_NODE: "one node",
    ONE_NODE_UNSEEN: "one node, platform or group unseen",
    SEVERAL_NODES: "several nodes",
    MESSAGES_BETWEEN_NODES: "several nodes, messages",
    OVER_RACKS: "racks over a network",
    SEVERAL_NODES_UNSEEN: "several nodes, network or operation unseen",
    HOST_LAUNCHES: "one host thread for several devices",
    ONE_NODE_CALIBRATED: "one node, one small size known",
    SEVERAL_NODES_CALIBRATED: "several nodes, one small size known",
}
LEAST_COVERED: Final = 0.85
_SIGNIFICANT: Final = 0.05
_NUM_RESAMPLES: Final = 2_000
# Of half the interval of times up to 32 KiB between nodes: ranks that are threads of one process
# and ranks that are processes differ by more than sites do. Assumed.
_UNKNOWN_LAUNCH_WIDTH: Final = 1.5
_PENALTY: Final = 20.0  # Of Winkler's score for 90 %: 2 / 0.1.


class LeftOut(NamedTuple):
    """One series, predicted by constants that were not fitted to it.

    Attributes:
        observed: The series.
        errors: [m] Logarithm of predicted over measured time.
        variance: [m] Of that, without noise.
        plain: [m] The errors of NCCL's own constants.
        kind: The row of a pool's noises.
        unit: What was left out: its times are not independent.
        hold_out: The kind of hold-out.
    """

    observed: Observed
    errors: Floats
    variance: Floats
    plain: Floats
    kind: int
    unit: str = ""
    hold_out: str = SITE


def hold_outs(
    observed: Sequence[Observed],
    kinds: Sequence[str] = (SITE, NETWORK, ONE_SIZE),
    progress: Callable[[str], object] = lambda _: None,
) -> Iterator[LeftOut]:
    """Yield the predictions of each series by constants that were fitted without it.

    Args:
        observed: Measured times of many sites.
        kinds: Kinds of hold-outs.
        progress: Gets the name of each fit before it begins.
    """
    for kind in kinds:
        if kind == ONE_SIZE:
            continue  # With the sites.
        units: dict[str, list[Observed]] = {}
        for each in observed:
            unit = _unit_of(kind, each)
            if unit is not None:
                units.setdefault(unit, []).append(each)
        for unit, mine in units.items():
            inside = {id(each) for each in mine}
            others = [each for each in observed if id(each) not in inside]
            if not others:
                continue
            progress(f"without {kind} {unit}")
            pool = fit_pool(others, "others")
            for each in mine:
                left = left_out(each, pool)._replace(unit=unit, hold_out=kind)
                is_of_network = left.kind == SEVERAL_NODES_UNSEEN and NETWORK in kinds
                if kind != SITE or not is_of_network:  # Else it is left out with its network.
                    yield left
                found = with_one_size(each, pool) if kind == SITE and ONE_SIZE in kinds else None
                if found is not None:
                    yield found._replace(unit=unit, hold_out=ONE_SIZE)


def _unit_of(kind: str, observed: Observed) -> str | None:
    """Return the unit that is left out with a series, or None."""
    labels = observed.labels
    if kind == SITE:
        return labels.site
    if kind == NETWORK:
        return labels.network
    if observed.gpus_per_thread > 1 or labels.network is not None:
        return None  # Devices and blocks are of one node, where tables have several of each.
    if kind == DEVICE:
        return observed.device
    return f"{observed.device} {labels.operation if kind == OPERATION else labels.group}"


def left_out(observed: Observed, pool: Pool) -> LeftOut:
    """Predict a series as one of a site that is not known."""
    return _by_constants(observed, pool.constants(observed.labels))


def without_its_site(observed: Observed) -> LeftOut:
    """Predict a series by the shipped constants without its site.

    The variance of small times between nodes is larger where nothing says what ran a rank.
    """
    left = _by_constants(observed, without_site(observed.labels))._replace(
        unit=observed.labels.site
    )
    if observed.labels.network is None or observed.launch:
        return left
    factors = np.where(observed.classes == 0, _UNKNOWN_LAUNCH_WIDTH**2, 1.0)
    return left._replace(variance=left.variance * factors)


def _by_constants(observed: Observed, constants: Constants) -> LeftOut:
    covariance = np.sum(list(constants.covariances.values()), axis=0)
    is_one_thread = observed.gpus_per_thread > 1
    kind = HOST_LAUNCHES if is_one_thread else row_of(observed.labels, constants.unknown)
    return _predicted(observed, constants.calibration, covariance, kind)


def with_one_size(observed: Observed, pool: Pool) -> LeftOut | None:
    """Predict a series of a seen kind from one small size and a pool without its site, or None."""
    small = np.flatnonzero(observed.classes == 0)
    kind = CALIBRATED.get(row_of(observed.labels, pool.constants(observed.labels).unknown))
    if not len(small) or observed.gpus_per_thread > 1 or kind is None:
        return None
    is_known = np.arange(len(observed.classes)) == small[len(small) // 2]
    fitted = fit_site(pool, [observed.part(is_known)])
    return _predicted(observed.part(~is_known), fitted.calibration, fitted.covariance, kind)


def _predicted(
    observed: Observed, calibration: Calibration, covariance: Floats, kind: int
) -> LeftOut:
    """Predict a series by constants of known covariance, and by NCCL's own."""
    bound = np.full(len(observed.time_us), observed.launches_us)
    logs = np.log(observed.time_us)
    (errors, slopes), (plain, _) = (
        shifted(work.terms(each).total, work.slopes(each), bound, logs)
        for each in (calibration, UNCALIBRATED)
        for work in (observed.work(each),)
    )
    variance = np.einsum("cm,cd,dm->m", slopes, covariance, slopes)
    return LeftOut(observed, errors, variance, plain, kind)


def covered(left: Sequence[LeftOut], noises: Floats, kind: int, number: int) -> Floats:
    """Return the share of times within the 90 % interval for each unit.

    Args:
        left: Predictions of left-out series.
        noises: As of a pool.
        kind: The row of `noises` whose series count.
        number: The class of size whose times count.
    """
    by_unit: dict[str, list[bool]] = {}
    for each in left:
        mine = each.observed.classes == number
        if each.kind == kind and mine.any():
            sigma = np.sqrt(each.variance[mine] + noises[kind][number] ** 2)
            within = np.abs(each.errors[mine]) <= NORMAL_90 * sigma
            by_unit.setdefault(each.unit, []).extend(within.tolist())
    return np.array([np.mean(each) for each in by_unit.values()])


@dataclass(frozen=True, slots=True)
class Score:
    """Errors and intervals of left-out units in one size class, as shares.

    Attributes:
        error: Mean absolute error of the series.
        plain: That of NCCL's own constants.
        covered: The share of times within the 90 % interval, the mean of the units.
        half_width: Median half-width of the interval.
        winkler: Mean score of the interval of logarithms, of the units: its width, and 20 times
            how far times are outside.
        plain_winkler: That of NCCL's own constants and their interval.
        num_units: Sites, or other units, that were left out.
        num_times: Measured times.
        covers: Whether a coverage of 85 % or more is possible: a binomial test over units.
        is_worse: Whether the error is above that of NCCL's own constants beyond noise: nineteen of
            twenty resamples of the units agree.
    """

    error: float
    plain: float
    covered: float
    half_width: float
    winkler: float
    plain_winkler: float
    num_units: int
    num_times: int
    covers: bool
    is_worse: bool

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table."""
        shares = (self.error, self.plain, self.covered, self.half_width)
        return str(self.num_units), *(f"{100 * share:.0f} %" for share in shares)

    def text(self) -> str:
        """Return error, error of NCCL's constants, half the interval and coverage as one cell."""
        mark = "" if self.covers and not self.is_worse else " !"
        interval = f"+-{100 * self.half_width:.0f} {100 * self.covered:.0f}%"
        return f"{self.text_of_errors()} {interval}{mark}"

    def text_of_errors(self) -> str:
        """Return error and error of NCCL's constants as one cell."""
        return f"{100 * self.error:.0f} ({100 * self.plain:.0f})"

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


def score(left: Sequence[LeftOut], noises: Floats, number: int) -> Score | None:
    """Return the score of predictions in one class of size, or None without any.

    Args:
        left: Predictions of left-out series.
        noises: As of a pool.
        number: The class of size.
    """
    mine = [each for each in left if (each.observed.classes == number).any()]
    if not mine:
        return None
    by_unit: dict[str, list[tuple[Floats, Floats, Floats, Floats]]] = {}
    errors, plains, widths = [], [], []
    for each in mine:
        which = each.observed.classes == number
        half = NORMAL_90 * np.sqrt(each.variance[which] + noises[each.kind][number] ** 2)
        usual = NORMAL_90 * of_nccl(each.observed.collective).noises[number]
        error, plain = np.abs(each.errors[which]), np.abs(each.plain[which])
        parts = (
            (error <= half).astype(np.float64),
            2 * half + _PENALTY * np.maximum(error - half, 0),
            2 * usual + _PENALTY * np.maximum(plain - usual, 0),
            np.abs(np.expm1(each.errors[which])) - np.abs(np.expm1(each.plain[which])),
        )
        by_unit.setdefault(each.unit, []).append(parts)
        errors.append(float(np.abs(np.expm1(each.errors[which])).mean()))
        plains.append(float(np.abs(np.expm1(each.plain[which])).mean()))
        widths.append(np.expm1(half))
    means = np.array(
        [
            [np.concatenate(part).mean() for part in zip(*unit, strict=True)]
            for unit in by_unit.values()
        ]
    )
    shares, winkler, plain_winkler, gaps = means.T
    return Score(
        float(np.mean(errors)),
        float(np.mean(plains)),
        float(shares.mean()),
        float(np.median(np.concatenate(widths))),
        float(winkler.mean()),
        float(plain_winkler.mean()),
        len(by_unit),
        sum(int((each.observed.classes == number).sum()) for each in mine),
        _covers(shares),
        _is_above_zero(gaps),
    )


def _covers(shares: Floats) -> bool:
    """Return whether so many units may be covered if each is with a probability of 85 %."""
    num, inside = len(shares), round(float(shares.sum()))
    below = sum(
        comb(num, k) * LEAST_COVERED**k * (1 - LEAST_COVERED) ** (num - k)
        for k in range(inside + 1)
    )
    return below >= _SIGNIFICANT


def _is_above_zero(gaps: Floats) -> bool:
    """Return whether a mean is above zero in nineteen of twenty resamples of the units."""
    if len(gaps) < 2:
        return False
    picks = np.random.default_rng(0).integers(0, len(gaps), (_NUM_RESAMPLES, len(gaps)))
    return bool(np.quantile(gaps[picks].mean(axis=1), _SIGNIFICANT) > 0)


# ---- constants pooled over many sites, with the noise that predictions of left-out sites show ----

_COVERED: Final = 0.9  # What an interval promises.
_NOISES: Final = np.unique(np.round(np.geomspace(0.02, 3.0, 80), 2))


def observed_of(series: TableSeries) -> Observed:
    """Return a measured series as a fit of many takes it."""
    of = series.measured
    labels = labels_of(of.collective, of.comm)
    shape = of.comm.shape
    name = f"{series.table} {of.collective} {shape.num_ranks}"
    # A size that was measured again is one piece of evidence: its geometric mean.
    sizes, places = np.unique(of.size_bytes, return_inverse=True)
    time_us = np.exp(np.bincount(places, np.log(of.time_us)) / np.bincount(places))
    return Observed(
        of.collective,
        sizes,
        time_us,
        np.searchsorted(ENDS_BYTES, sizes),
        of.comm,
        labels._replace(site=series.site or series.table, series=name),
        series.gpus_per_thread,
        series.cluster,
        series.launch,
        series.published_by,
    )


def fit_tables(
    series: Sequence[TableSeries], progress: Callable[[str], object] = lambda _: None
) -> tuple[Pool, list[LeftOut]]:
    """Fit all series of back-to-back calls together, and predict each site from the others.

    Args:
        series: Measured times of many sites.
        progress: Gets the name of each site before it is left out.

    Returns:
        The constants, with the noise at which the 90% interval covers 90% of the times of
        left-out sites; and the predictions of the left-out series: again with one small size
        known, and those between nodes with every site of the same kind of network left out.

    Raises:
        ValueError: There is nothing to fit to.
    """
    observed = [observed_of(each) for each in series if each.mode == DIRECT]
    sites = {each.labels.site for each in observed}
    pool = fit_pool(observed, f"fitted to {len(observed)} series of {len(sites)} sites")
    left = list(hold_outs(observed, progress=progress))
    return replace(pool, noises=_noises(left)), left


def _noises(left: Sequence[LeftOut]) -> Floats:
    """Return the least noises at which 90% intervals cover 90% of the mean site's times."""
    found = np.full((NUM_KINDS, len(NAMES)), _NOISES[-1])
    for kind, number in np.ndindex(found.shape):
        for noise in _NOISES:
            shares = covered(left, np.full(found.shape, noise), kind, number)
            if len(shares) and shares.mean() >= _COVERED:
                found[kind, number] = noise
                break
    return found


# ---- the shipped constants without each of their sites ----

_DIGITS: Final = 7
_SUFFIX: Final = ".jsonl"  # Beside a file of pooled constants: a line for each series of a site.


def without_site(labels: Labels) -> Constants:
    """Return pooled constants that were not fitted to a site.

    They are shipped for the series of each site, since a fit takes half a second; for further
    series of a site they are fitted here.

    Args:
        labels: A series, with its site.

    Raises:
        ConfigError: The shipped file is missing, or something in it is wrong.
    """
    labels = labels._replace(series="")
    if not is_fitted_to(labels.site):
        return shipped_pool().constants(labels)
    shipped = _shipped_left_out()
    return shipped[labels] if labels in shipped else _pool_without(labels.site).constants(labels)


def is_fitted_to(site: str) -> bool:
    """Return whether the shipped constants are fitted to a site."""
    return any(labels.site == site for labels in _shipped_left_out())


def site_of(table: Path) -> str:
    """Return the site of a measured table: that of the machine file beside it, or its name."""
    machine = load_machine(table)
    return table.stem if machine is None else machine.site or table.stem


def known_series() -> list[Observed]:
    """Return the series that the shipped constants are fitted to."""
    names = [*builtin_tables(), *pooled_tables()]
    series = (each for name in names for each in table_series(name))
    return [observed_of(each) for each in series if each.mode == DIRECT]


def write_left_out(observed: Sequence[Observed], path: Path) -> None:
    """Write the constants without each site, beside the pooled constants.

    Args:
        observed: The series that the pooled constants are fitted to.
        path: The file of the pooled constants.
    """
    found: dict[Labels, Any] = {each.labels._replace(series=""): None for each in observed}
    for site in dict.fromkeys(labels.site for labels in found):
        others = [each for each in observed if each.labels.site != site]
        if others:
            pool = _fit(others)
            mine = [labels for labels in found if labels.site == site]
            found |= {labels: _constants_json(labels, pool.constants(labels)) for labels in mine}
    lines = [json.dumps(each) + "\n" for each in found.values() if each is not None]
    write_text(path.with_suffix(_SUFFIX), "".join(lines))


def _fit(observed: Sequence[Observed]) -> Pool:
    sites = {each.labels.site for each in observed}
    return fit_pool(observed, f"fitted to {len(observed)} series of {len(sites)} sites")


@lru_cache(maxsize=4)
def _pool_without(site: str) -> Pool:
    pool = _fit([each for each in known_series() if each.labels.site != site])
    return replace(pool, noises=shipped_pool().noises)


def _constants_json(labels: Labels, constants: Constants) -> dict[str, Any]:
    """Return constants as plain data: factors, and the lower triangle of their covariance."""
    covariance = np.sum(list(constants.covariances.values()), axis=0)
    packed = covariance[np.tril_indices(NUM)]
    return {
        "labels": labels[:5],
        "factors": [
            float(f"{getattr(constants.calibration, name):.{_DIGITS}g}") for name in CONSTANTS
        ],
        "covariance": [float(f"{value:.{_DIGITS}g}") for value in packed],
        "source": constants.source,
        "unknown": constants.unknown,
    }


@lru_cache(maxsize=1)
def _shipped_left_out() -> dict[Labels, Constants]:
    """Read the shipped constants without each site.

    Raises:
        ConfigError: The file is missing, or something in it is wrong.
    """
    path = pooled_path().with_suffix(_SUFFIX)
    try:
        return dict(_read_constants(json.loads(each)) for each in path.read_text().splitlines())
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected, got = "constants that `simrank calibrate --pool` wrote", repr(error)
        raise ConfigError(ConfigProblem(str(path), None, "", expected, got)) from None


def _read_constants(data: dict[str, Any]) -> tuple[Labels, Constants]:
    labels, unknown = Labels(*data["labels"]), tuple(data["unknown"])
    covariance = np.zeros((NUM, NUM))
    covariance[np.tril_indices(NUM)] = data["covariance"]
    covariance += np.tril(covariance, -1).T
    factors = dict(zip(CONSTANTS, data["factors"], strict=True))
    calibration = Calibration(takes_fastest=labels.network is None, **factors)
    noises = shipped_pool().noises[row_of(labels, unknown)]
    return labels, Constants(calibration, {FIT: covariance}, noises, data["source"], unknown)
