"""The flight recorder: what each rank asked of its groups, in the format of torch's own.

A dump is what torch writes to `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`: a pickled dict per rank, which
`python -m torch.distributed.flight_recorder.fr_trace DIR` reads. Times are simulated, frames are
the program's. Plain data: torch need not be installed.

Source: the keys of torch 2.13's dumps, version 2.10, as `_dump_fr_trace` returns them.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.config.files import written_whole
from simrank.distributed.backends import GLOO, default_timeout
from simrank.distributed.library import MADE_OF
from simrank.engine import user_stack
from simrank.units import PS_PER_MS, PS_PER_NS, PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Buffer, Operation
    from simrank.distributed.group import ProcessGroup, World
    from simrank.distributed.p2p import End
    from simrank.distributed.request import Request
    from simrank.engine import CallSite, Task, TaskGroup

VERSION = "2.10"  # torch 2.13's
PREFIX = "nccl_trace_rank_"  # torch's, in /tmp
SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DEFAULT_SIZE = 2000  # torch's
_GRACE_PS = PS_PER_S // 10  # In which torchelastic looks once at its workers (monitor_interval).
_PROTOCOL = 2  # of pickle, as torch's C++ writes it

Sizes = list[list[int]]


@dataclass(slots=True)
class GroupLog:
    """The calls of one rank on one group so far.

    Attributes:
        group: The group.
        number: Its number among the groups of the spawn, in order of first use.
        num_messages: Single messages, and batches of them.
        num_operations: Calls, each entry of a batch counted.
        last_enqueued: Sequence number of the last collective.
    """

    group: ProcessGroup
    number: int
    num_messages: int = 0
    num_operations: int = 0
    last_enqueued: int = -1


@dataclass(slots=True)
class CallRecord:
    """One call of a rank.

    Attributes:
        log: Of its group.
        facts: What is known as it is made, under torch's keys.
        stack: Where, the innermost line first.
        operation: What runs it, until it has ended; None before it is issued, and if it never is.
        started_ps: When it began, once it has ended.
        ended_ps: When it ended, in picoseconds; -1 before, and if it failed.
    """

    log: GroupLog
    facts: dict[str, Any]
    stack: tuple[CallSite, ...]
    operation: Operation | None = None
    started_ps: int = -1
    ended_ps: int = -1

    def issued(self, operation: Operation) -> None:
        """Follow the operation that the call has become."""
        self.operation = operation
        operation.on_complete(self._ended)

    def _ended(self) -> None:
        operation, self.operation = self.operation, None  # It would keep the tensors alive.
        assert operation is not None, "it ends once"
        self.started_ps = operation.start_ps
        if operation.error is None:
            self.ended_ps = operation.complete_ps

    def as_dict(self, *, stacks: bool = True) -> dict[str, Any]:
        """Return torch's dict of it."""
        started_ps = self.started_ps if self.operation is None else self.operation.start_ps
        is_over = self.ended_ps >= 0
        state = "completed" if is_over else "started" if started_ps >= 0 else "scheduled"
        reported = {
            **self.facts,
            "state": state,
            "time_discovered_started_ns": _ns(started_ps),
            "time_discovered_completed_ns": _ns(self.ended_ps),
            "retired": is_over,
        }
        if is_over:
            reported["duration_ms"] = (self.ended_ps - started_ps) / PS_PER_MS
        if stacks:
            reported["frames"] = [_frame(site) for site in self.stack]
        return reported


def _ns(time_ps: int) -> int | None:
    return time_ps // PS_PER_NS if time_ps >= 0 else None


def _frame(site: CallSite) -> dict[str, Any]:
    file, line = site.line()
    return {"name": site.code.co_name, "filename": file, "line": line}


@dataclass(slots=True)
class RankLog:
    """The last calls of one rank."""

    entries: deque[CallRecord]
    groups: dict[ProcessGroup, GroupLog] = field(default_factory=dict)
    num_entries: int = 0


class FlightRecorder:
    """Keeps the last calls of every rank, and writes them where a run fails, or at its end.

    Args:
        prefix: Path of the files, to which the rank is added; empty: none are written.

    Attributes:
        prefix: As given.
        written: The files of the last dump.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.written: list[Path] = []
        self._world: World | None = None
        self._ranks: dict[int, RankLog] = {}
        self._numbers: dict[ProcessGroup, int] = {}

    @classmethod
    def of(cls, given: str | os.PathLike[str] | FlightRecorder) -> FlightRecorder:
        """Return the recorder that was given, or one that writes to a folder, which is made.

        Raises:
            OSError: The folder cannot be made.
        """
        if isinstance(given, FlightRecorder):
            return given
        Path(given).mkdir(parents=True, exist_ok=True)
        return cls(str(Path(given) / PREFIX))

    def begin(self, world: World) -> None:
        """Restart: ranks are about to be spawned."""
        self._world = world
        self._ranks = {}
        self._numbers = {}
        self.written = []

    # ---- what ranks call ----

    def collective(
        self, group: ProcessGroup, rank: int, backend: str, request: Request
    ) -> CallRecord:
        """Note a call that is about to be matched."""
        own = group.group_rank(rank)
        name, inputs, outputs = _described(request, backend)
        rank_log = self._log_of(rank)
        log = self._group_log(rank_log, group)
        log.last_enqueued = group.num_calls(own) + 1
        log.num_operations += 1
        dtype = request.signature.dtype
        facts = {
            "collective_seq_id": log.last_enqueued,
            "profiling_name": f"{backend}:{name}",
            "is_p2p": False,
            **_shapes(dtype, inputs, outputs),
        }
        return self._add(rank, rank_log, log, backend, facts)

    def messages(
        self, group: ProcessGroup, rank: int, backend: str, ends: Sequence[End]
    ) -> list[CallRecord]:
        """Note a message, or a batch of them with the entry that ends it."""
        rank_log = self._log_of(rank)
        log = self._group_log(rank_log, group)
        log.num_messages += 1
        entries = []
        common = {"collective_seq_id": group.num_calls(group.group_rank(rank)), "is_p2p": True}
        for end in ends:
            log.num_operations += 1
            sizes = [list(end.tensor.shape)]
            facts = {
                **common,
                "profiling_name": f"{backend}:{_name_of(end)}",
                **_shapes(end.tensor.dtype.name, sizes, sizes),
            }
            entries.append(self._add(rank, rank_log, log, backend, facts))
        if ends[0].route.batched:
            facts = {**common, "profiling_name": f"{backend}:coalesced", **_shapes("", [], [])}
            entries.append(self._add(rank, rank_log, log, backend, facts))
        return entries

    def _log_of(self, rank: int) -> RankLog:
        log = self._ranks.get(rank)
        if log is None:
            log = self._ranks[rank] = RankLog(deque(maxlen=_buffer_size()))
        return log

    def _group_log(self, rank_log: RankLog, group: ProcessGroup) -> GroupLog:
        log = rank_log.groups.get(group)
        if log is None:
            number = self._numbers.setdefault(group, len(self._numbers))
            log = rank_log.groups[group] = GroupLog(group, number)
        return log

    def _add(
        self, rank: int, rank_log: RankLog, log: GroupLog, backend: str, facts: dict[str, Any]
    ) -> CallRecord:
        engine = log.group.engine
        task = engine.running
        created_ps = engine.now_ps if task is None else task.clock_ps
        facts |= {
            "record_id": rank_log.num_entries,
            "pg_id": log.number,
            "process_group": (_id(log.group), log.group.name),
            "p2p_seq_id": log.num_messages,
            "op_id": log.num_operations,
            "time_created_ns": _ns(created_ps),
            "timeout_ms": round(default_timeout(backend).total_seconds() * 1000),
            "thread_id": "0",
            "thread_name": f"rank {rank}",
        }
        rank_log.num_entries += 1
        entry = CallRecord(log, facts, user_stack())
        rank_log.entries.append(entry)
        return entry

    # ---- dumps ----

    def dump(
        self,
        rank: int,
        *,
        includes_collectives: bool = True,
        stacks: bool = True,
        only_active: bool = False,
    ) -> dict[str, Any]:
        """Return torch's dict of a rank."""
        rank_log = self._ranks.get(rank) or RankLog(deque())
        entries = [entry for entry in rank_log.entries if includes_collectives]
        reported = [entry.as_dict(stacks=stacks) for entry in entries]
        logs = rank_log.groups.values()
        return {
            "version": VERSION,
            "comm_lib_version": "",
            "pg_config": {_id(log.group): _config(log) for log in logs},
            "pg_status": {str(log.number): _status(log, rank_log.entries) for log in logs},
            "entries": [e for e in reported if not (only_active and e["state"] == "completed")],
        }

    def follow(self, ranks: TaskGroup) -> None:
        """Write the dumps when ranks are ended because one of them has failed.

        Until then the others run on as long as real ones would, and come to where they wait for
        it; else those that had not had their turn yet would look like its cause.
        """
        if self.prefix:
            ranks.grace_ps, ranks.before_abort = _GRACE_PS, self.finish

    def failed(self, task: Task | None) -> None:
        """Write the dumps of a hang. Reports say nothing of it."""
        if task is None:
            self.write()

    def finish(self) -> None:
        """Write the dumps at the end of a run or before ranks are ended, unless it hung before."""
        if not self.written:
            self.write()

    def write(self) -> None:
        """Write a file for every rank, whether it has called anything or not."""
        if self._world is None or not self.prefix:
            return
        self.written = []
        for rank in range(self._world.size):
            path = Path(f"{self.prefix}{rank}")
            with written_whole(path, "wb") as file:
                pickle.dump(self.dump(rank), file, protocol=_PROTOCOL)
            self.written.append(path)


def _buffer_size() -> int:
    """Return the number of kept calls from the running rank's environment."""
    for name in SIZE_VARIABLES:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return _DEFAULT_SIZE


def _id(group: ProcessGroup) -> str:
    """Return the name that torch gives a group: "0" is the default one."""
    return group.label


def _config(log: GroupLog) -> dict[str, str]:
    ranks = [int(rank) for rank in log.group.ranks]
    return {"name": _id(log.group), "desc": log.group.name, "ranks": str(ranks)}


def _status(log: GroupLog, entries: Sequence[CallRecord]) -> dict[str, int]:
    own = [entry for entry in entries if entry.log is log and not entry.facts["is_p2p"]]
    reported = [
        (entry.facts["collective_seq_id"], entry.as_dict(stacks=False)["state"]) for entry in own
    ]
    started = [seq for seq, state in reported if state != "scheduled"]
    completed = [seq for seq, state in reported if state == "completed"]
    return {
        "last_enqueued_collective": log.last_enqueued,
        "last_started_collective": max(started, default=-1),
        "last_completed_collective": max(completed, default=-1),
    }


# ---- names and sizes, as torch has them ----

DTYPE_NAMES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16",
    "int8": "Char", "uint8": "Byte", "int16": "Short", "int32": "Int", "int64": "Long",
    "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip


def dtype_name(dtype: str) -> str:
    """Return C++'s name of a type, which torch's recorder shows."""
    return DTYPE_NAMES.get(dtype, dtype.capitalize())


def _shapes(dtype: str, inputs: Sizes, outputs: Sizes) -> dict[str, Any]:
    name = dtype_name(dtype)
    return {
        "input_sizes": inputs,
        "input_dtypes": [name] * len(inputs),
        "output_sizes": outputs,
        "output_dtypes": [name] * len(outputs),
    }


def _name_of(end: End) -> str:
    src, dst = end.route.src, end.route.dst
    if src is None:
        return "recvAnySource"
    return f"send {src}->{dst}" if end.is_send else f"recv {dst}<-{src}"


_COALESCED = {
    "all_reduce": "allreduce_coalesced",
    "all_gather": "all_gather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter_tensor_coalesced",
}
_OF_ONE_TENSOR = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}


def _described(request: Request, backend: str) -> tuple[str, Sizes, Sizes]:
    """Return a collective's name and its sizes of inputs and outputs, as torch records them.

    Source: the `initWork` calls of ProcessGroupNCCL: lists are one tensor with a dim more.
    """
    op = MADE_OF.get(request.signature.op, request.signature.op)
    if request.signature.op == "barrier":
        return ("barrier", [], []) if backend == GLOO else ("all_reduce_barrier", [[1]], [[1]])
    inputs, outputs = _sizes(request.reads), _sizes(request.results)
    is_list = {"all_gather": len(request.targets) > 0, "reduce_scatter": len(request.sources) > 0}
    is_coalesced = min(len(request.sources), len(request.targets)) > 1 and op in _COALESCED
    if is_coalesced:
        if op != "all_reduce":
            inputs, outputs = _sizes([request.source]), _sizes([request.target])
        return (op if backend == GLOO else _COALESCED[op]), inputs, outputs
    if op == "all_gather":
        outputs = _stacked(outputs) if is_list[op] else outputs
    elif op == "reduce_scatter":
        inputs = _stacked(inputs) if is_list[op] else inputs
    if backend != GLOO and op in is_list and not is_list[op]:
        op = _OF_ONE_TENSOR[op]
    return op, inputs, outputs


def _sizes(tensors: Sequence[Buffer]) -> Sizes:
    return [[int(size) for size in tensor.shape] for tensor in tensors]


def _stacked(sizes: Sizes) -> Sizes:
    """Return the size of a list of tensors as one."""
    if all(size == sizes[0] for size in sizes):
        return [[len(sizes), *sizes[0]]]
    return [[sum(map(prod, sizes))]]
