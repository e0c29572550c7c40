"""Constants pooled over many sites, and how well they predict sites that were left out.

Start with `fit_tables`; `simrank.collectives.nccl.pool` says what is fitted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import yaml

from simrank.bench.accuracy import DIRECT
from simrank.bench.size_classes import ENDS_BYTES, NAMES
from simrank.collectives.nccl.laws import CONSTANTS, UNCALIBRATED
from simrank.collectives.nccl.pool import (
    HOST_LAUNCHES,
    NORMAL_90,
    ONE_NODE,
    SEVERAL_NODES,
    Pool,
    constants_in,
    labels_of,
)
from simrank.collectives.nccl.pool_fit import (
    HOST_LAUNCH_US,
    Observed,
    fit_pool,
    shifted,
    work_of,
)
from simrank.config.pooled import NoisesConfig, load_pooled, pooled_path
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from simrank.bench.accuracy import TableSeries
    from simrank.collectives.nccl.laws import Floats
    from simrank.config.pooled import PooledConfig

_DIGITS = 4
_COVERED: Final = 0.9  # What an interval promises.
_NOISES: Final = np.arange(0.02, 0.61, 0.01)


class LeftOut(NamedTuple):
    """One series, predicted by constants that know nothing of its site.

    Attributes:
        observed: The series.
        errors: [m] Logarithm of predicted over measured time.
        variance: [m] Of that, without noise.
        plain: [m] The errors of NCCL's own constants.
    """

    observed: Observed
    errors: Floats
    variance: Floats
    plain: Floats


def observed_of(series: TableSeries) -> Observed:
    """Return a measured series as a fit of many takes it."""
    of = series.measured
    labels = labels_of(of.collective, of.comm)
    shape = of.comm.shape
    name = f"{series.table} {of.collective} {shape.num_ranks}"
    return Observed(
        of.collective,
        of.size_bytes,
        of.time_us,
        np.searchsorted(ENDS_BYTES, of.size_bytes),
        of.comm,
        labels._replace(site=series.site or series.table, series=name),
        series.gpus_per_thread,
    )


def fit_tables(
    series: Sequence[TableSeries], progress: Callable[[str], object] = lambda _: None
) -> tuple[Pool, list[LeftOut]]:
    """Fit all series of back-to-back calls together, and predict each site from the others.

    Args:
        series: Measured times of many sites.
        progress: Is told the name of each site before it is left out.

    Returns:
        The constants, with the noise at which the 90% interval covers 90% of the times of
        left-out sites; and the predictions of the left-out series.

    Raises:
        ValueError: There is nothing to fit to.
    """
    observed = [observed_of(each) for each in series if each.mode == DIRECT]
    sites = sorted({each.labels.site for each in observed})
    source = f"fitted to {len(observed)} series of {len(sites)} sites"
    pool = fit_pool(observed, source)
    left: list[LeftOut] = []
    for site in sites:
        progress(site)
        others = [each for each in observed if each.labels.site != site]
        if others:
            known = fit_pool(others, source, pool.effects)
            left += [left_out(each, known) for each in observed if each.labels.site == site]
    return replace(pool, noises=_noises(left)), left


def left_out(observed: Observed, pool: Pool) -> LeftOut:
    """Predict a series as one of a site that is not known."""
    constants = pool.constants(observed.labels)
    work = work_of(observed.collective, observed.size_bytes, observed.comm)
    launches_us = HOST_LAUNCH_US * observed.gpus_per_thread if observed.gpus_per_thread > 1 else 0.0
    bound, logs = np.full(len(observed.time_us), launches_us), np.log(observed.time_us)
    found = [
        shifted(work.terms(each).total, work.slopes(each), bound, logs)
        for each in (constants.calibration, UNCALIBRATED)
    ]
    (errors, slopes), (plain, _) = found
    covariance = sum(constants.covariances.values())
    variance = np.einsum("cm,cd,dm->m", slopes, covariance, slopes)
    return LeftOut(observed, errors, variance, plain)


def noise_kind(observed: Observed) -> int:
    """Return the row of a pool's noises for a series."""
    if observed.gpus_per_thread > 1:
        return HOST_LAUNCHES
    return SEVERAL_NODES if observed.comm.shape.num_nodes > 1 else ONE_NODE


def covered(left: Sequence[LeftOut], noises: Floats, kind: int, number: int) -> Floats:
    """Return the share of times within the 90 % interval for each site.

    Args:
        left: Predictions of left-out series.
        noises: As of a pool.
        kind: The row of `noises` whose series count.
        number: The class of size whose times count.
    """
    by_site: dict[str, list[bool]] = {}
    for each in left:
        mine = each.observed.classes == number
        if noise_kind(each.observed) == kind and mine.any():
            sigma = np.sqrt(each.variance[mine] + noises[kind][number] ** 2)
            within = np.abs(each.errors[mine]) <= NORMAL_90 * sigma
            by_site.setdefault(each.observed.labels.site, []).extend(within.tolist())
    return np.array([np.mean(each) for each in by_site.values()])


class Reached(NamedTuple):
    """Errors and intervals of left-out sites in one size class, as shares.

    Attributes:
        error: Mean absolute error.
        plain: That of NCCL's own constants.
        covered: The share of times within the 90 % interval, the mean of sites.
        half_width: Median half-width of the interval.
        num_sites: Sites that were left out.
    """

    error: float
    plain: float
    covered: float
    half_width: float
    num_sites: int

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table."""
        shares = (self.error, self.plain, self.covered, self.half_width)
        return str(self.num_sites), *(f"{100 * share:.0f} %" for share in shares)


def reached(left: Sequence[LeftOut], pool: Pool, kind: int, number: int) -> Reached | None:
    """Return errors and intervals of left-out sites, or None; arguments of `covered`."""
    mine = [
        (each, each.observed.classes == number)
        for each in left
        if noise_kind(each.observed) == kind and (each.observed.classes == number).any()
    ]
    if not mine:
        return None
    shares = covered(left, pool.noises, kind, number)
    widths = [
        pool.half_widths(each.variance[which], each.observed.classes[which], kind)
        for each, which in mine
    ]
    return Reached(
        float(np.mean([np.abs(np.expm1(each.errors[which])).mean() for each, which in mine])),
        float(np.mean([np.abs(np.expm1(each.plain[which])).mean() for each, which in mine])),
        float(shares.mean()),
        float(np.median(np.concatenate(widths))),
        len(shares),
    )


def _noises(left: Sequence[LeftOut]) -> Floats:
    """Return the least noises at which 90% intervals cover 90% of the mean site's times."""
    found = np.full((3, len(NAMES)), _NOISES[-1])
    for kind, number in np.ndindex(found.shape):
        for noise in _NOISES:
            shares = covered(left, np.full(found.shape, noise), kind, number)
            if len(shares) and shares.mean() >= _COVERED:
                found[kind, number] = noise
                break
    return found


def write_pool(pool: Pool, path: Path) -> None:
    """Write the constants as YAML, and their covariance beside it."""
    shared = list(pool.num_sites)
    effects: dict[str, Any] = {
        name: {
            "sites": pool.num_sites[name],
            "factors": {
                CONSTANTS[number]: float(f"{np.exp(value):.{_DIGITS}g}")
                for number, value in zip(constants_in(name), pool.effects[name], strict=True)
            },
        }
        for name in shared
    }
    rows = [[float(f"{each:.2f}") for each in row] for row in pool.noises]
    data = {
        "source": pool.source,
        "noises": dict(zip(NoisesConfig.model_fields, rows, strict=True)),
        "effects": effects,
    }
    head = "# Written by `simrank calibrate --pool`.\n"
    path.write_text(head + yaml.safe_dump(data, sort_keys=False, width=100))
    num = len(pool.covariance)
    np.save(path.with_suffix(".npy"), pool.covariance[np.tril_indices(num)].astype(np.float32))


def read_pool(path: Path | None = None) -> Pool:
    """Read pooled constants; None: those that simrank ships.

    Raises:
        ConfigError: A file is missing, or something in it is wrong.
    """
    path = pooled_path() if path is None else path
    found = load_pooled(path)
    covariance = _covariance(path.with_suffix(".npy"), found)
    effects = {
        name: np.log([each.factors[CONSTANTS[number]] for number in constants_in(name)])
        for name, each in found.effects.items()
    }
    noises = np.array([getattr(found.noises, name) for name in NoisesConfig.model_fields])
    sites = {name: each.sites for name, each in found.effects.items()}
    return Pool(effects, covariance, noises, sites, found.source)


def _covariance(path: Path, found: PooledConfig) -> Floats:
    """Read the covariance of all factors.

    Raises:
        ConfigError: It is missing, or of other factors.
    """
    num = sum(len(each.factors) for each in found.effects.values())
    try:
        packed = np.load(path)
    except (OSError, ValueError) as error:
        expected = "an array that numpy.save wrote"
        raise ConfigError(ConfigProblem(str(path), None, "", expected, str(error))) from None
    if packed.shape != (num * (num + 1) // 2,):
        expected = f"the lower triangle of {num} x {num} numbers"
        raise ConfigError(ConfigProblem(str(path), None, "", expected, str(packed.shape)))
    covariance: Floats = np.zeros((num, num))
    covariance[np.tril_indices(num)] = packed
    return covariance + np.tril(covariance, -1).T
