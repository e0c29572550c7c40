"""Cross-validation: constants fitted to some measured times predict other ones; see `FITS`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.calibration.accuracy import AIMED
from simrank.calibration.fitting import fit
from simrank.collectives.nccl.size_classes import ENDS_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.calibration.accuracy import SeriesErrors, TableSeries
    from simrank.collectives.nccl.laws import Calibration
    from simrank.hardware.spec import NcclSpec

_REDUCED, *_OTHERS = AIMED


class FittedSeries:
    """Measured series, with the constants fitted to each.

    Args:
        tried: What is to be predicted.
        known: Whose constants may be tried.
    """

    def __init__(self, tried: Sequence[TableSeries], known: Sequence[TableSeries]) -> None:
        self.tried, self._known = tried, [each for each in known if each.is_fittable]
        self._found: dict[int, tuple[TableSeries, Calibration]] = {}

    def constants_of(self, series: TableSeries) -> Calibration:
        """Return the constants that were fitted to all of a series."""
        if id(series) not in self._found:
            self._found[id(series)] = series, fit([series.measured]).calibration
        return self._found[id(series)][1]

    def pairs(
        self, are_paired: Callable[[TableSeries, TableSeries], bool]
    ) -> list[tuple[TableSeries, TableSeries]]:
        """Return the pairs of a fitted and a predicted series."""
        return [
            (fitted, tried)
            for tried in self.tried
            for fitted in self._known
            if fitted.mode == tried.mode and are_paired(fitted, tried)
        ]


class FitKind(NamedTuple):
    """One way to come by constants.

    Attributes:
        what: Words for it.
        aims_pct: Of the mean error of `AIMED`, by class of size; None: there are none.
        errors: What is left of each series, or of each pair of them.
    """

    what: str
    aims_pct: tuple[float, ...] | None
    errors: Callable[[FittedSeries], list[SeriesErrors]]


def _of_nccl(bench: FittedSeries) -> list[SeriesErrors]:
    return [each.errors() for each in bench.tried]


def _of_table(bench: FittedSeries) -> list[SeriesErrors]:
    return [
        each.errors(bench.constants_of(each), each.table)
        for each in bench.tried
        if each.is_fittable
    ]


def _of_halves(bench: FittedSeries) -> list[SeriesErrors]:
    return [cross_validation_errors(each) for each in bench.tried if each.is_fittable]


def cross_validation_errors(series: TableSeries) -> SeriesErrors:
    """Return the errors of each half of the sizes by constants fitted to the other half.

    Raises:
        ValueError: It has fewer than two sizes.
    """
    halves = [series.part(slice(start, None, 2)) for start in (0, 1)]
    found = [
        tried.errors(fit([fitted.measured]).calibration, series.table)
        for tried, fitted in zip(halves, reversed(halves), strict=True)
    ]
    sizes = np.concatenate([each.size_bytes for each in found])
    order = np.argsort(sizes, kind="stable")
    chosen = [choice for each in found for choice in each.chosen]
    return replace(
        found[0],
        size_bytes=sizes[order],
        measured_us=np.concatenate([each.measured_us for each in found])[order],
        predicted_us=np.concatenate([each.predicted_us for each in found])[order],
        chosen=tuple(chosen[index] for index in order),
        parts_us=np.concatenate([each.parts_us for each in found], axis=1)[:, order],
    )


def _of_site(bench: FittedSeries) -> list[SeriesErrors]:
    pairs = bench.pairs(_are_sites)
    return [tried.errors(bench.constants_of(fitted), fitted.table) for fitted, tried in pairs]


def _of_site_one(bench: FittedSeries) -> list[SeriesErrors]:
    found = []
    for fitted, tried in bench.pairs(_are_sites):
        one, others = _small_size(tried)
        if one is None:
            continue
        comm = replace(one.measured.comm, calibration=bench.constants_of(fitted))
        moved = fit([one.measured._replace(comm=comm)], ("launch_us",)).calibration
        found.append(others.errors(moved, fitted.table))
    return found


def _small_size(series: TableSeries) -> tuple[TableSeries | None, TableSeries]:
    """Return a small size, the middle one of its class, and all sizes but that."""
    small = np.flatnonzero(series.measured.size_bytes <= ENDS_BYTES[0])
    if not len(small):
        return None, series
    middle = int(small[len(small) // 2])
    every = np.arange(len(series.measured.size_bytes))
    return series.part(every == middle), series.part(every != middle)


def _are_sites(fitted: TableSeries, tried: TableSeries) -> bool:
    """Return whether two series are the same measurement at different sites."""
    one, other = fitted.measured, tried.measured
    same = (one.collective, one.comm.shape, _numbers_of(one.comm.spec))
    return fitted.table != tried.table and same == (
        other.collective,
        other.comm.shape,
        _numbers_of(other.comm.spec),
    )


def _numbers_of(spec: NcclSpec) -> NcclSpec:
    """Return NCCL's view without the kind of network, of which the laws know only numbers."""
    return replace(spec, network="")


def _of_nodes(bench: FittedSeries) -> list[SeriesErrors]:
    pairs = bench.pairs(_are_node_counts)
    return [tried.errors(bench.constants_of(fitted), fitted.table) for fitted, tried in pairs]


def _are_node_counts(fitted: TableSeries, tried: TableSeries) -> bool:
    """Return whether two series differ only in the number of nodes.

    A table of one node knows no network: such constants are tried on no more nodes.
    """
    one, other = fitted.measured, tried.measured
    nodes, tried_nodes = one.comm.shape.num_nodes, other.comm.shape.num_nodes
    if one.collective != other.collective or nodes in (1, tried_nodes):
        return False
    if tried_nodes > 1:
        return _numbers_of(one.comm.spec) == _numbers_of(other.comm.spec)
    return _node_of(one.comm.spec) == _node_of(other.comm.spec)


def _node_of(spec: NcclSpec) -> NcclSpec:
    """Return NCCL's view of a node, without the network."""
    own = replace(_numbers_of(spec), nics=0, nic_bytes_per_s=0, nic_latency_ps=0)
    return replace(own, algorithms=(), protocols=())


def _of_collective(bench: FittedSeries) -> list[SeriesErrors]:
    pairs = bench.pairs(_are_collectives)
    return [tried.errors(bench.constants_of(fitted), fitted.table) for fitted, tried in pairs]


def _are_collectives(fitted: TableSeries, tried: TableSeries) -> bool:
    one, other = fitted.measured, tried.measured
    return (
        fitted.cluster == tried.cluster
        and (one.collective, other.collective in _OTHERS) == (_REDUCED, True)
        and one.comm.shape == other.comm.shape
        and _numbers_of(one.comm.spec) == _numbers_of(other.comm.spec)
    )


FITS = {
    "none": FitKind("NCCL's own constants", (28.0, 32.0, 22.0, 10.0), _of_nccl),
    "table": FitKind("fitted to the table itself", None, _of_table),
    "halves": FitKind(
        "fitted to every second size, tried on the others", (8.0, 12.0, 9.0, 4.0), _of_halves
    ),
    "site": FitKind("fitted to another site of the platform", (28.0, 28.0, 12.0, 5.0), _of_site),
    "site-one": FitKind(
        "the same, launch refitted to one small size", (9.0, 13.0, 13.0, 4.0), _of_site_one
    ),
    "nodes": FitKind("fitted to another number of nodes", (24.0, 18.0, 28.0, 8.0), _of_nodes),
    "collective": FitKind(
        "fitted to all_reduce, tried on others", (25.0, 18.0, 12.0, 8.0), _of_collective
    ),
}
