"""When a benchmark's rows have errors against a measured table; start with `comparison_of`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simrank.bench.closed_form import NCCL
from simrank.collectives.nccl.pool_fit import HOST_LAUNCH_US
from simrank.config.machine import load_machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simrank.bench.row import Row
    from simrank.bench.series import Series
    from simrank.config import BenchConfig

_CHOSEN_BY_NCCL = ("auto", NCCL)
_DIRECT = "back_to_back"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether a series is comparable with the measured times.

    Attributes:
        difference: How the measurement differs from the series; None where it does not.
        floor_us: Shorter times are not comparable: one host thread launched on several GPUs.
    """

    difference: str | None = None
    floor_us: float = 0.0

    def shown(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows without errors and intervals that are not comparable."""
        found = []
        for row in rows:
            if self.difference is not None:
                found.append(replace(row, error_pct=None, interval_us=None))
            elif min(row.time_us, row.measured_us or 0.0) < self.floor_us:
                found.append(replace(row, error_pct=None))
            else:
                found.append(row)
        return found

    def notes(self) -> Iterable[str]:
        """Yield comment lines about errors and intervals that are missing."""
        if self.difference is not None:
            yield f"# No 90% interval and no error: {self.difference}"
        elif self.floor_us:
            yield (
                f"# No error below {self.floor_us:g} us: "
                "one host thread launched on several GPUs in the measured run"
            )


COMPARABLE = Comparison()


def comparison_of(series: Series, config: BenchConfig) -> Comparison:
    """Return whether the measured tables, and the tables behind intervals, fit a series.

    They were measured with the algorithm that NCCL chose, and with calls back to back.
    """
    if series.kernel is not None:
        return Comparison(f"{series.algorithm} is a Triton kernel, NCCL's kernels were measured")
    if series.algorithm not in _CHOSEN_BY_NCCL:
        return Comparison(f"{series.algorithm} is forced, NCCL's own choice was measured")
    if config.iterations.blocking and series.algorithm != NCCL:
        return Comparison("iterations wait for each other, back to back was measured")
    machines = [load_machine(path) for path in config.measured]
    modes = sorted({each.mode for each in machines if each is not None} - {_DIRECT})
    if modes:
        return Comparison(f"calls run back to back, loops of {' and '.join(modes)} were measured")
    num_gpus = max(
        (each.gpus_per_thread for each in machines if each is not None and not each.cuda_graph),
        default=1,
    )
    return Comparison(floor_us=HOST_LAUNCH_US * num_gpus if num_gpus > 1 else 0.0)
