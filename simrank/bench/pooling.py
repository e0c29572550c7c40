"""Constants pooled over many sites, with the noise that predictions of left-out sites show.

Start with `fit_tables`; `simrank.collectives.nccl.pool` says what is fitted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from simrank.bench.accuracy import DIRECT
from simrank.bench.hold_outs import LeftOut, covered, hold_outs
from simrank.collectives.nccl.pool import NUM_KINDS, Pool, labels_of
from simrank.collectives.nccl.pool_fit import Observed, fit_pool
from simrank.collectives.nccl.size_classes import ENDS_BYTES, NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.bench.accuracy import TableSeries
    from simrank.collectives.nccl.laws import Floats

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
