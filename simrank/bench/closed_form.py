"""The algorithm `nccl` of benchmarks: rows that NCCL's closed forms predict; nothing runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrank.bench.predict import forecast, shape_of
from simrank.bench.row import timed_row
from simrank.distributed.planner import NcclOverrides, tuning_of
from simrank.errors import ConfigError

if TYPE_CHECKING:
    from simrank.bench.program import Case
    from simrank.bench.row import Row
    from simrank.bench.series import Series
    from simrank.config import BenchConfig

NCCL = "nccl"


def predicted_rows(series: Series, config: BenchConfig) -> list[tuple[Case, Row]]:
    """Return a row for each case of a series.

    Raises:
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network.
        ConfigError: The benchmark has faults, of which the closed forms know nothing.
    """
    if config.faults:
        expected = f"no faults with the algorithm {NCCL}, which predicts without them"
        raise ConfigError(config.source.problem(("faults",), expected, "some"))
    if series.num_ranks == 1:
        expected = f"two ranks or more for the algorithm {NCCL}"
        raise ConfigError(config.source.problem(("num_ranks",), expected, "1"))
    cases = series.cases(config)
    shape = shape_of(series.cluster, series.num_ranks)
    sizes = np.array([case.size_bytes for case in cases], dtype=np.int64)
    redop = None if series.redop == "none" else series.redop
    tuning = tuning_of(series.call_name, series.dtype, redop, NcclOverrides.of_environment())
    cast = forecast(
        series.collective,
        sizes,
        series.cluster,
        shape,
        algorithms=tuning.algorithms,
        protocols=tuning.protocols,
        tuner_rows=tuning.tuner_rows,
    )
    found, spread = cast.found, cast.spread
    low_us, high_us = found.times_us / (1 + spread), found.times_us * (1 + spread)
    bounds = zip(low_us.tolist(), high_us.tolist(), strict=True)
    rows = []
    times = zip(cases, found.times_us.tolist(), found.chosen, bounds, strict=True)
    for case, time_us, index, interval_us in times:
        algorithm, protocol = found.choices[index]
        row = timed_row(
            case,
            series.cluster.name,
            shape.num_nodes,
            time_us,
            algorithm=algorithm,
            protocol=protocol,
            num_wrong=None,
            cost_level=NCCL,
            calibration=cast.constants.source,
            interval_us=interval_us,
            channels=cast.comm.spec.channels,
        )
        rows.append((case, row))
    return rows


def prediction_interval(
    series: Series, size_bytes: int, time_us: float
) -> tuple[str | None, tuple[float, float]]:
    """Return the source of the constants, and the 90% prediction interval in us.

    Args:
        series: What runs.
        size_bytes: The size S of nccl-tests.
        time_us: NCCL's time for it, in microseconds.
    """
    shape = shape_of(series.cluster, series.num_ranks)
    cast = forecast(series.collective, np.array([size_bytes]), series.cluster, shape)
    spread = float(cast.spread[0])
    return cast.constants.source, (time_us / (1 + spread), time_us * (1 + spread))
