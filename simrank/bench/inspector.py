"""NCCL Inspector's JSON, as rows of a measured table; start with `inspector_rows`.

Format: one object per collective and rank, with a `header` (communicator, rank, ranks, nodes) and
`coll_perf` (what ran, its number in the communicator, bytes, microseconds); since version 4.3 the
header stands once, in the `dump_stats` object before those that it belongs to. A time is that of
the kernel: the launch is not in it. Source: NVIDIA/nccl plugins/profiler/inspector, README.md,
inspector.cc and inspector_json.cc.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from simrank.bench.run_facts import MAX_RANKS, MAX_SIZE_BYTES, Ran
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from simrank.bench.json_parts import Part
    from simrank.config.measured import MeasuredRow

_KEYS = {"header", "coll_perf", "p2p_perf", "proxy_trace", "dump_stats"}
_COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
_MESSAGES = ("Send", "Recv", "SendRecv")
_PER_RANK = ("all_gather", "reduce_scatter")  # Whose bytes are those of one rank's part.
UNKNOWN_DTYPE = "unknown"  # The Inspector counts bytes.


class _Call(NamedTuple):
    """One collective, as all its ranks name it."""

    ran: Ran
    size_bytes: int
    communicator: str
    number: int


def is_inspector(part: Part) -> bool:
    """Return whether an object is a record of NCCL Inspector."""
    return bool(_KEYS & part.data.keys())


def inspector_rows(parts: Iterable[Part], file: str) -> list[MeasuredRow]:
    """Return a row per collective, ranks and size: the median of its calls' slowest ranks.

    Args:
        parts: What the processes wrote, file after file; ranks that are missing are not waited for.
        file: Name of the rows' source.

    Raises:
        ConfigError: A key is missing or wrong, or no collective is among them.
    """
    slowest: dict[_Call, float] = {}
    for call, time_us in _calls(parts):
        slowest[call] = max(time_us, slowest.get(call, 0.0))
    repeats: dict[tuple[Ran, int], list[float]] = {}
    for call, time_us in slowest.items():
        repeats.setdefault((call.ran, call.size_bytes), []).append(time_us)
    if not repeats:
        expected = "coll_perf of a collective on two ranks or more"
        raise ConfigError(ConfigProblem(file, None, "", expected, "none"))
    return [
        ran.row(file, size_bytes, UNKNOWN_DTYPE, median(times))
        for (ran, size_bytes), times in sorted(repeats.items())
    ]


def _calls(parts: Iterable[Part]) -> Iterator[tuple[_Call, float]]:
    header: Part | None = None
    file = None
    for part in parts:
        if part.file != file:
            header, file = None, part.file
        own = part.part("header") if "header" in part.data else header
        if "dump_stats" in part.data:
            header = own
        if "coll_perf" not in part.data:
            continue  # Messages, the proxy's steps, or only a header.
        if own is None:
            raise part.error("header", "an object, here or in a dump_stats before it")
        found = _call(own, part.part("coll_perf"))
        if found is not None:
            yield found


def _call(header: Part, perf: Part) -> tuple[_Call, float] | None:
    """Return one rank's record of a collective; None for other records and single ranks."""
    name = perf.text("coll")
    if name in _MESSAGES:
        return None
    if name not in _COLLECTIVES:
        raise perf.error("coll", f"one of {', '.join(_COLLECTIVES)}")
    num_ranks = header.whole("n_ranks", 1, MAX_RANKS)
    if num_ranks == 1:
        return None
    num_nodes = header.whole("nnodes", 1, num_ranks)
    size_bytes = perf.whole("coll_msg_size_bytes", 0, MAX_SIZE_BYTES // num_ranks)
    if size_bytes == 0:
        return None
    collective = _COLLECTIVES[name]
    fewest, more = divmod(num_ranks, num_nodes)  # Spread evenly: hosts are not listed.
    per_host = (fewest + 1,) * more + (fewest,) * (num_nodes - more)
    call = _Call(
        Ran(collective, num_ranks, per_host),
        size_bytes * (num_ranks if collective in _PER_RANK else 1),
        header.text("id"),
        perf.whole("coll_sn", 0, (1 << 64) - 1),
    )
    return call, perf.time_us("coll_exec_time_us")
