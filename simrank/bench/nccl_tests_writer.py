"""Results of a benchmark in the formats of nccl-tests and NCCL Inspector.

Source of the forms: NVIDIA/nccl-tests, `src/common.cu` (the table of one program, `# Rank` lines
included), and NVIDIA/nccl, `plugins/profiler/inspector` (one object per call and rank).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from simrank.bench.table import count_of
from simrank.config.quantity import DTYPES
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.bench.series import Row
    from simrank.config import BenchConfig

NCCL_TESTS, INSPECTOR = "nccl-tests", "inspector"
_PROGRAMS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_to_all": "alltoall",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
}
_TYPES = dict(zip(DTYPES, DTYPES, strict=True)) | {
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
_CALLS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
_PER_RANK = ("all_gather", "reduce_scatter")  # The Inspector's bytes are those of one rank's part.
_KNOWN = {NCCL_TESTS: _PROGRAMS, INSPECTOR: _CALLS}


class Machine(NamedTuple):
    """The machine of a benchmark's rows.

    Attributes:
        cluster: Its name.
        device: The device's name.
        per_node: Devices of a node, which ranks fill one node after the other.
    """

    cluster: str
    device: str
    per_node: int


def machine_of(config: BenchConfig, form: str) -> Machine:
    """Return the machine of a benchmark, if the format can express it.

    Args:
        config: The benchmark.
        form: `NCCL_TESTS` or `INSPECTOR`.

    Raises:
        ConfigError: It is several runs of the other's program, or a collective that has none.
    """
    lists = {
        "collectives": config.collectives,
        "algorithms": tuple(config.algorithms),
        "clusters": config.clusters,
        "num_ranks": config.num_ranks or (1,),
    }
    for key, values in lists.items():
        if len(values) > 1:
            raise _refused(config, key, f"one entry with --{form}", f"{len(values)}")
    (collective,) = config.collectives
    if collective not in _KNOWN[form]:
        expected = f"one of {', '.join(_KNOWN[form])} with --{form}"
        raise _refused(config, "collectives", expected, collective)
    (cluster,) = config.clusters
    return Machine(cluster.name, cluster.device.name, cluster.device.count)


def _refused(config: BenchConfig, key: str, expected: str, got: str) -> ConfigError:
    return ConfigError(ConfigProblem(config.source.file, None, key, expected, got))


def nccl_tests_text(rows: Sequence[Row], machine: Machine) -> str:
    """Return rows as the nccl-tests program of their collective prints them.

    Args:
        rows: Of one collective, algorithm and number of ranks.
        machine: On what they ran.
    """
    if not rows:
        return ""
    program = f"{_PROGRAMS[rows[0].collective]}_perf"
    sizes = [row.size_bytes for row in rows]
    head = [
        f"# Simulated by simrank on {machine.cluster}, as nccl-tests prints it",
        f"# Collective test starting: {program}",
        f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)}",
        "#",
        "# Using devices",
        *_devices(rows[0].num_ranks, machine),
        "#",
        f"#{'out-of-place':>74}{'in-place':>39}",
        f"#{'size':>11}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}{_FORM_HEAD * 2}",
        f"#{'(B)':>11}{'(elements)':>14}{'':>26}{_FORM_UNITS * 2}",
    ]
    wrong = sum(row.num_wrong or 0 for row in rows)
    mean = sum(row.busbw_GBps for row in rows) / len(rows)
    tail = [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {mean:g}",
        "#",
        f"# Collective test concluded: {program}",
    ]
    return "\n".join([*head, *_lines(rows), *tail, ""])


_FORM_HEAD = f"{'time':>9}{'algbw':>8}{'busbw':>8}{'#wrong':>8}"
_FORM_UNITS = f"{'(us)':>9}{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}"


def _devices(num_ranks: int, machine: Machine) -> Iterator[str]:
    for rank in range(num_ranks):
        node, device = divmod(rank, machine.per_node)
        where = f"on {f'node{node}':>10} device {device:>2} [0000:00:00] {machine.device}"
        yield f"#  Rank {rank:>2} Group  0 Pid {0:>6} {where}"


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    by_call: dict[tuple[object, ...], dict[bool, Row]] = {}
    for row in rows:
        call = (row.dtype, row.redop, row.root, row.size_bytes)
        by_call.setdefault(call, {})[row.in_place] = row
    for forms in by_call.values():
        row = next(iter(forms.values()))
        left = f"{row.size_bytes:>12}  {count_of(row):>12}  {_TYPES[row.dtype]:>8}"
        left += f"  {row.redop:>6}  {row.root:>6}"
        yield left + "".join(_form(forms.get(in_place)) for in_place in (False, True))


def _form(row: Row | None) -> str:
    """Return the columns of one form; `N/A` where it did not run."""
    if row is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    decimals = 0 if row.time_us >= 10_000 else 1 if row.time_us >= 100 else 2
    wrong = "N/A" if row.num_wrong is None else str(row.num_wrong)
    rates = f"{row.algbw_GBps:>6.2f}  {row.busbw_GBps:>6.2f}"
    return f"  {row.time_us:>7.{decimals}f}  {rates}  {wrong:>6}"


def inspector_text(rows: Sequence[Row], machine: Machine) -> str:
    """Return rows as NCCL Inspector's JSON lines: each call as every rank saw it.

    Times are whole microseconds, as there. They contain the launch, which the Inspector's do not.

    Args:
        rows: Of one collective, algorithm and number of ranks.
        machine: On what they ran.
    """
    return "".join(f"{json.dumps(each)}\n" for each in _records(rows, machine))


def _records(rows: Sequence[Row], machine: Machine) -> Iterator[dict[str, object]]:
    for number, row in enumerate(rows):
        parts = row.num_ranks if row.collective in _PER_RANK else 1
        for rank in range(row.num_ranks):
            yield {
                "header": {
                    "id": "0x1",
                    "rank": rank,
                    "n_ranks": row.num_ranks,
                    "nnodes": row.num_nodes,
                },
                "metadata": {
                    "inspector_output_format_version": "v4.0",
                    "git_rev": "",
                    "rec_mechanism": "simrank",
                    "dump_timestamp_us": 0,
                    "hostname": f"node{rank // machine.per_node}",
                    "pid": rank,
                },
                "coll_perf": {
                    "coll": _CALLS[row.collective],
                    "coll_sn": number,
                    "coll_msg_size_bytes": row.size_bytes // parts,
                    "coll_exec_time_us": max(1, round(row.time_us)),
                    "coll_algobw_gbs": round(row.algbw_GBps, 6),
                    "coll_busbw_gbs": round(row.busbw_GBps, 6),
                },
            }
