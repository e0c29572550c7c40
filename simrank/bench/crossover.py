"""Crossovers of NCCL's algorithms and protocols over size; start with `crossover`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simrank.bench.accuracy import DIRECT, builtin_tables, table_series
from simrank.bench.predict import collective_of, forecast, shape_of_ranks
from simrank.collectives.nccl import laws
from simrank.config.choices import AUTO
from simrank.config.locate import locate
from simrank.config.machine import load_machine
from simrank.config.tuner import load_tuner
from simrank.hardware import load_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Floats
    from simrank.collectives.nccl.machine import Shape
    from simrank.config.load import ClusterRef

SIZES_BYTES = tuple(2**power for power in range(10, 34))  # 1 KiB to 8 GiB.


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Published times of the same collective, ranks and cluster.

    Attributes:
        table: The table's name.
        size_bytes: [k] The sizes S of nccl-tests, of those that are shown.
        time_us: [k] What was measured, in microseconds.
    """

    table: str
    size_bytes: npt.NDArray[np.int64]
    time_us: Floats


@dataclass(frozen=True, slots=True)
class Crossover:
    """Times of everything that NCCL has to choose from.

    Attributes:
        size_bytes: [m] Sizes, one per power of two.
        choices: [c] Pairs of an algorithm and a protocol.
        times_us: [c, m] The predicted time of each.
        chosen: [m] Which of them each size takes.
        spread: [m] Half-width of the 90% interval, as a share of the chosen time.
        measured: Times of the built-in tables, if there are any.
    """

    size_bytes: npt.NDArray[np.int64]
    choices: tuple[tuple[str, str], ...]
    times_us: Floats
    chosen: npt.NDArray[np.int64]
    spread: Floats
    measured: tuple[MeasuredTimes, ...]


def crossover(  # noqa: PLR0913 - as `predict`
    collective: str,
    num_ranks: int | None = None,
    cluster: ClusterRef = "hgx_h100",
    *,
    nodes: int | None = None,
    ranks: Sequence[int] | None = None,
    nccl_tuner: str | Path | None = None,
    calibration: str | None = AUTO,
) -> Crossover:
    """Predict all sizes from 1 KiB to 8 GiB by everything that NCCL has for a collective.

    Args:
        collective: For example all_reduce.
        num_ranks: As for `simrank.predict`; so are the others.
        cluster: Likewise.
        nodes: Likewise.
        ranks: Likewise.
        nccl_tuner: Likewise.
        calibration: Likewise.

    Raises:
        ValueError: An argument is none of what it may be.
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network.
        ConfigError: The cluster or a file is wrong.
    """
    name, built = collective_of(collective), load_cluster(cluster, nodes)
    shape = shape_of_ranks(built, ranks, num_ranks)
    sizes = np.array(SIZES_BYTES)
    rows = () if nccl_tuner is None else load_tuner(nccl_tuner)
    cast = forecast(name, sizes, built, shape, calibration, tuner_rows=rows)
    found = cast.found
    times = [laws.terms(name, *choice, sizes, cast.comm).total for choice in found.choices]
    return Crossover(
        sizes,
        found.choices,
        np.stack(times),
        found.chosen,
        cast.spread,
        _measured(name, shape, built.name),
    )


def _measured(collective: str, shape: Shape, cluster: str) -> tuple[MeasuredTimes, ...]:
    """Return the built-in tables of the same calls, without tables of framework loops."""
    found = []
    for name in builtin_tables():
        machine = load_machine(Path(locate("measured", name)))
        if machine is None or machine.cluster != cluster or machine.mode != DIRECT:
            continue
        for each in table_series(name):
            of = each.measured
            if (of.collective, of.comm.shape) == (collective, shape):
                shown = (of.size_bytes >= SIZES_BYTES[0]) & (of.size_bytes <= SIZES_BYTES[-1])
                found.append(MeasuredTimes(name, of.size_bytes[shown], of.time_us[shown]))
    return tuple(found)
