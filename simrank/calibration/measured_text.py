"""Measured times in whichever format they come; start with `rows_by_file`.

Formats: a CSV table with simrank's columns, what nccl-tests printed, its JSON file, and the JSON
lines of NCCL Inspector. The content says which one it is, not the file's name.

Format: one object per collective and rank, with a `header` (communicator, rank, ranks, nodes) and
`coll_perf` (what ran, its number in the communicator, bytes, microseconds); since version 4.3 the
header stands once, in the `dump_stats` object before those that it belongs to. A time is that of
the kernel: the launch is not in it. Source: NVIDIA/nccl plugins/profiler/inspector, README.md,
inspector.cc and inspector_json.cc.
"""

from __future__ import annotations

import re
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from simrank.calibration.nccl_tests_output import (
    MAX_RANKS,
    MAX_SIZE_BYTES,
    Bandwidths,
    CollectiveRun,
    RowPosition,
    collective_named,
    dtype_named,
    is_nccl_tests,
    parse_nccl_tests,
    program_collective,
    without_marks,
)
from simrank.config.json_parts import read_parts
from simrank.config.measured import PROCESSES, THREADS, parse_measured
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from simrank.config.json_parts import JsonPart
    from simrank.config.measured import MeasuredRow


# ---- NCCL Inspector's JSON, as rows of a measured table; start with `inspector_rows` ----

_INSPECTOR_KEYS = {"header", "coll_perf", "p2p_perf", "proxy_trace", "dump_stats"}
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

    ran: CollectiveRun
    size_bytes: int
    communicator: str
    number: int


def is_inspector(part: JsonPart) -> bool:
    """Return whether an object is a record of NCCL Inspector."""
    return bool(_INSPECTOR_KEYS & part.data.keys())


def inspector_rows(parts: Iterable[JsonPart], file: str) -> list[MeasuredRow]:
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
    repeats: dict[tuple[CollectiveRun, int], list[float]] = {}
    for call, time_us in slowest.items():
        repeats.setdefault((call.ran, call.size_bytes), []).append(time_us)
    if not repeats:
        expected = "coll_perf of a collective on two ranks or more"
        raise ConfigError(ConfigProblem(file, None, "", expected, "none"))
    return [
        ran.row(file, size_bytes, UNKNOWN_DTYPE, median(times))
        for (ran, size_bytes), times in sorted(repeats.items())
    ]


def _calls(parts: Iterable[JsonPart]) -> Iterator[tuple[_Call, float]]:
    header: JsonPart | None = None
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


def _call(header: JsonPart, perf: JsonPart) -> tuple[_Call, float] | None:
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
        CollectiveRun(collective, num_ranks, per_host),
        size_bytes * (num_ranks if collective in _PER_RANK else 1),
        header.text("id"),
        perf.whole("coll_sn", 0, (1 << 64) - 1),
    )
    return call, perf.time_us("coll_exec_time_us")


# ---- measured times in whichever format they come; start with `rows_by_file` ----

_JSON = re.compile(r"\s*(?:\{|\[\s*(?:[{\[\]]|$))")  # `[1,0]` is a launcher's mark.
_EXPECTED = "nccl-tests' JSON (args, config, results) or NCCL Inspector's (header, coll_perf)"


def rows_by_file(
    texts: Mapping[str, str], collective: str | None = None, num_ranks: int | None = None
) -> dict[str, list[MeasuredRow]]:
    """Read measured times.

    Args:
        texts: The text of each file, by its name.
        collective: What ran, where nccl-tests' output does not say it.
        num_ranks: On how many ranks, where nccl-tests' output does not list them.

    Returns:
        The rows of each file. NCCL Inspector writes a file per process: all of its files together
        are one table, under the name of the first.

    Raises:
        ConfigError: A text is in none of the formats, or something in it is wrong.
    """
    found: dict[str, list[MeasuredRow]] = {}
    of_inspector: dict[str, Iterator[JsonPart]] = {}
    for file, with_mark in texts.items():
        text = with_mark.removeprefix("\ufeff")
        if not _JSON.match(text):
            text = without_marks(text)
        if text.lstrip().startswith(("{", "[")):
            parts = read_parts(text, file)
            first = next(parts, None)
            if first is not None and is_inspector(first):
                of_inspector[file] = chain([first], parts)
                continue
            runs = [] if first is None else [first, *parts]
            found[file] = _rows_of_runs(runs, file, collective, num_ranks)
        elif is_nccl_tests(text):
            found[file] = parse_nccl_tests(text, file, collective, num_ranks)
        else:
            found[file] = parse_measured(text, file)
    if of_inspector:
        name = next(iter(of_inspector))
        found[name] = inspector_rows(chain.from_iterable(of_inspector.values()), name)
    return found


def _rows_of_runs(
    runs: list[JsonPart], file: str, collective: str | None, num_ranks: int | None
) -> list[MeasuredRow]:
    """Return the rows of nccl-tests' JSON, run by run."""
    rows = []
    for run in runs:
        if not is_nccl_tests_json(run):
            got = f"an object with {', '.join(run.data) or 'nothing'}"
            raise ConfigError(ConfigProblem(file, run.line, "", _EXPECTED, got))
        rows += nccl_tests_rows(run, collective, num_ranks)
    if not rows:
        raise ConfigError(ConfigProblem(file, 1, "", _EXPECTED, "nothing"))
    return rows


# ---- The JSON file of nccl-tests (`-J FILE`), as rows of a measured table ----
# Format: one object with `args` (the command), `config` (threads and GPUs of a process, and
# `devices`: the first device of each process) and `results`, one per size. Out-of-place times
# are taken. Source: NVIDIA/nccl-tests src/util.cu, JSON file version 2.

_KEYS = {"args", "config", "results"}


def is_nccl_tests_json(part: JsonPart) -> bool:
    """Return whether an object is nccl-tests' JSON."""
    return bool(_KEYS & part.data.keys())


def nccl_tests_rows(
    run: JsonPart, collective: str | None = None, num_ranks: int | None = None
) -> list[MeasuredRow]:
    """Return the rows of one run.

    Args:
        run: What nccl-tests wrote.
        collective: What ran, where the command does not say it.
        num_ranks: On how many ranks, where no devices are listed.

    Raises:
        ConfigError: A key is missing or wrong.
    """
    args = run.data.get("args")
    command = args[0] if isinstance(args, list) and args and isinstance(args[0], str) else ""
    name = collective_named(collective or program_collective(command), run.file, run.line)
    ran = CollectiveRun(name, num_ranks) if num_ranks else _ran(name, run.part("config"))
    rows = list(_rows(run, ran))
    if not rows:
        raise run.error("results", "a size above 0", "none")
    return rows


def _ran(collective: str, config: JsonPart) -> CollectiveRun:
    """Return the ranks of a run; of split runs, those of the first group."""
    gpus = config.whole("ngpus", 1, MAX_RANKS)
    each = config.whole("nthreads", 1, MAX_RANKS) * gpus
    devices = config.parts("devices")
    groups = [device.whole("group", 0, MAX_RANKS) for device in devices]
    hosts = [
        device.text("hostname")
        for device, group in zip(devices, groups, strict=True)
        if group == groups[0]
    ]
    if not 1 <= each * len(hosts) <= MAX_RANKS:
        raise config.error("devices", f"1 to {MAX_RANKS} ranks", f"{each * len(hosts)}")
    per_host = tuple(each * hosts.count(host) for host in dict.fromkeys(hosts))
    launch = PROCESSES if each == 1 else THREADS
    return CollectiveRun(collective, each * len(hosts), per_host, gpus, launch=launch)


def _rows(run: JsonPart, ran: CollectiveRun) -> Iterator[MeasuredRow]:
    for result in run.parts("results"):
        size_bytes = result.whole("size", 0, MAX_SIZE_BYTES)
        if size_bytes == 0:
            continue  # Less than an element of each rank.
        dtype = dtype_named(result.text("type"), run.file, run.line)
        placed = result.part("out_of_place")
        if "cpu_time" in placed.data:
            raise placed.error("time", "the devices' time", "cpu_time: run it without -C")
        time_us = placed.time_us("time")
        algbw, busbw = placed.data.get("alg_bw"), placed.data.get("bus_bw")
        if isinstance(algbw, float) and isinstance(busbw, float):
            printed = Bandwidths(time_us, algbw, busbw)
            ran.check_bandwidth(size_bytes, printed, RowPosition(run.file, run.line))
        yield ran.row(run.file, size_bytes, dtype, time_us)
