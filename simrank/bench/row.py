"""One result of a benchmark, with the columns of its JSON file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from simrank.collectives.bounds import busbw_factor

if TYPE_CHECKING:
    from simrank.bench.program import Case


@dataclass(frozen=True, slots=True)
class Row:
    """One result, with the columns of the JSON file; None where one does not apply.

    Attributes:
        cluster: Name of the cluster; a column of the file only where there are several.
        collective: Its name.
        algorithm: What ran ("auto" is resolved).
        protocol: None at the schedule cost level.
        num_ranks: Ranks that took part.
        num_nodes: Nodes that they span.
        in_place: Whether output and input shared memory.
        redop: Reduce operation, or "none".
        root: Root rank, or -1.
        dtype: Element type.
        size_bytes: nccl-tests size.
        time_us: Mean time of one iteration over all ranks.
        algbw_GBps: size / time.
        busbw_GBps: algbw times the collective's factor.
        num_wrong: Elements that rounding does not explain; None if not checked.
        cost_level: Where the time comes from.
        calibration: None at the schedule cost level.
        interval_us: None at the schedule cost level.
        channels: Lanes of the schedule.
        measured_us: Published time of the same call, if there is one.
        error_pct: (time_us - measured_us) / measured_us in percent.
    """

    cluster: str
    collective: str
    algorithm: str
    protocol: str | None
    num_ranks: int
    num_nodes: int
    in_place: bool
    redop: str
    root: int
    dtype: str
    size_bytes: int
    time_us: float
    algbw_GBps: float  # noqa: N815 - nccl-tests' name
    busbw_GBps: float  # noqa: N815 - nccl-tests' name
    num_wrong: int | None
    cost_level: str
    calibration: str | None
    interval_us: tuple[float, float] | None
    channels: int
    measured_us: float | None
    error_pct: float | None


def timed_row(
    case: Case,
    cluster: str,
    num_nodes: int,
    time_us: float,
    **found: Any,  # noqa: ANN401 - as the columns are
) -> Row:
    """Return the row of a case.

    Args:
        case: What was called.
        cluster: Name of the cluster.
        num_nodes: Nodes that the ranks span.
        time_us: Mean time of one iteration.
        found: The columns that do not follow from these, by the names of `Row`.
    """
    algbw = case.size_bytes / time_us / 1e3 if time_us else 0.0
    return Row(
        cluster=cluster,
        collective=case.collective,
        num_ranks=case.num_ranks,
        num_nodes=num_nodes,
        in_place=case.in_place,
        redop=case.redop,
        root=case.root,
        dtype=case.dtype,
        size_bytes=case.size_bytes,
        time_us=time_us,
        algbw_GBps=algbw,
        busbw_GBps=algbw * busbw_factor(case.collective, case.num_ranks),
        **{"measured_us": None, "error_pct": None, **found},
    )


def as_columns(row: Row, *, several_clusters: bool) -> dict[str, Any]:
    """Return a row as in the JSON file; only with several clusters it says which one."""
    columns = asdict(row)
    cluster = columns.pop("cluster")
    return {"cluster": cluster, **columns} if several_clusters else columns
