"""torch's profilers in ranks: host and device events in simulated time.

Kineto, which torch's own write with, belongs to the process: two ranks at a time crash in it. What
computes on the host takes no simulated time, and is not shown.
"""

from __future__ import annotations

import enum
import functools
import itertools
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch.autograd import profiler as torch_profiler
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import ProfilerActivity

from simrank.config.files import write_text
from simrank.engine.task import SwitchObserver
from simrank.ranks import require_rank
from simrank.ranks.current import rank_program
from simrank.torch.devices import activation
from simrank.torch.devices.rank_devices import TorchOperation
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch.distributed as dist

    from simrank.device import Operation
    from simrank.ranks import Program

    Patches = list[tuple[Any, str, Any]]

_KEY = "profiles"
_OPEN_SCOPES = "scopes of torch's library"
_NOT_SHOWN = ("wait", "event")
_CUDA: Any = torch.autograd.DeviceType.CUDA


class Kernel(enum.Enum):
    """The family of nccl's kernels in a profile; the simulated time is that of the first one."""

    RING = "ncclDevKernel"
    SYMMETRIC = "ncclSymkDevKernel"
    COPY = "Memcpy PtoP"


class HostEvent:
    """An event of the rank's host.

    Attributes:
        name: As torch shows it.
        shapes: Of its tensors.
        start_ps: When it was issued.
        end_ps: When the host went on, or, of what runs beside the host of gloo, when it ended.
        is_async: Whether the host went on meanwhile.
        is_scope: Whether the program named it.
        kernel: What a device does of it.
        shown: Which kernel that is, if it is a collective's.
        facts: What a trace says of it beside that.
    """

    __slots__ = (
        "end_ps", "facts", "is_async", "is_scope", "kernel", "name", "shapes", "shown", "start_ps",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        shapes: list[list[int]],
        start_ps: int,
        *,
        is_async: bool,
        is_scope: bool = False,
        kernel: Operation | None = None,
    ) -> None:
        self.name = name
        self.shapes = shapes
        self.start_ps = self.end_ps = start_ps
        self.is_async = is_async
        self.is_scope = is_scope
        self.kernel = kernel
        self.shown = Kernel.RING
        self.facts: dict[str, Any] = {}


class Profile(SwitchObserver):
    """The events of one open profiler of a rank.

    Attributes:
        entries: What the rank issued since it was opened.
        calls: Operations of calls, which have entries already.
        facts: What the program adds to the trace.
    """

    def __init__(self, program: Program) -> None:
        self.entries: list[HostEvent] = []
        self.calls: set[Any] = set()
        self.facts: dict[str, Any] = {}
        self._rank, self._program = program.rank, program
        self._start_ps = clock_ps(program)
        program.engine.observers.append(self)
        _open.add(self)
        activation.watch_scopes(_library_scope)

    def close(self) -> None:
        """Stop recording."""
        self._program.engine.observers.remove(self)
        _open.discard(self)
        if not _open:
            activation.watch_scopes(None)

    def on_operation(self, operation: Operation) -> None:
        """Record an operation of a device."""
        start_ps = operation.issue_ps - operation.stream.device.launch_overhead_ps
        is_of_others = operation.rank != self._rank or start_ps < self._start_ps
        if is_of_others or operation.kind in _NOT_SHOWN or operation in self.calls:
            return
        if _is_of_host(operation):
            return
        shapes = (operation.details or {}).get("shapes", [])
        name = _host_name(operation)
        entry = HostEvent(name, shapes, start_ps, is_async=False, kernel=operation)
        entry.end_ps = operation.issue_ps
        self.entries.append(entry)


_open: WeakSet[Profile] = WeakSet()  # Of all ranks.


def _is_of_host(operation: Any) -> bool:
    """Return whether an operation runs on the host, as gloo's calls do."""
    return operation.kind == "collective" and not getattr(operation, "num_sms", 0)


def clock_ps(program: Program) -> int:
    """Return a rank's host clock."""
    return program.engine.now_ps if program.task is None else program.task.clock_ps


def is_any_open() -> bool:
    """Return whether any rank has a profiler open."""
    return bool(_open)


def is_recording(program: Program) -> bool:
    """Return whether a rank has a profiler open."""
    return bool(program.local.get(_KEY))


@contextmanager
def operator(name: str) -> Iterator[None]:
    """Record a call as one of c10d's operators in the rank's open profilers, for a block."""
    program = rank_program()
    if program is None or not is_recording(program):
        yield
        return
    activation.flush()  # What was computed before is none of its.
    entry = HostEvent(f"c10d::{name}", [], clock_ps(program), is_async=False)
    _add(program, entry)
    try:
        yield
    finally:
        entry.end_ps = clock_ps(program)


def record_call(
    program: Program,
    name: str,
    tensors: Sequence[torch.Tensor],
    operations: Sequence[Any],
    nccl: tuple[dict[str, Any] | None, Kernel | None] = (None, None),
) -> None:
    """Record a collective or message in the rank's open profilers.

    Args:
        program: The rank.
        name: As torch shows it.
        tensors: What it reads.
        operations: That it has issued.
        nccl: What torch's trace says of nccl's calls, see `nccl_facts`, and which kernel it shows;
            None: nothing.
    """
    shapes = [list(tensor.shape) for tensor in tensors]
    entry = HostEvent(name, shapes, clock_ps(program), is_async=True)
    entry.end_ps = max(entry.end_ps, program.engine.now_ps)
    comms, kernel = nccl
    launch = entry if comms is None else record_comms(program, comms)
    launch.shown = kernel or launch.shown
    for operation in operations:
        operation.on_complete(functools.partial(_end, entry, program))
        if not _is_of_host(operation):
            launch.kernel = operation
            if launch is not entry:
                launch.start_ps = operation.issue_ps - operation.stream.device.launch_overhead_ps
    _add(program, entry)
    for profile in program.local.get(_KEY, ()):
        profile.calls.update(operations)


def record_comms(program: Program, facts: dict[str, Any]) -> HostEvent:
    """Record torch's operator for calls of nccl and waits for them; return its event."""
    entry = HostEvent("record_param_comms", [], clock_ps(program), is_async=False)
    entry.facts = facts
    _add(program, entry)
    return entry


def _add(program: Program, entry: HostEvent) -> None:
    for profile in program.local.get(_KEY, ()):
        profile.entries.append(entry)


def nccl_facts(
    group: dist.ProcessGroup,
    ranks: Sequence[int],
    name: str,
    sides: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
) -> dict[str, Any]:
    """Return the attributes of an nccl call in torch's traces.

    Args:
        group: Whose call it is.
        ranks: Its members' ranks in the world.
        name: The call.
        sides: What it reads and what it fills.

    Source: torch 2.13, `ParamCommsUtils.hpp`, and the names in Kineto's traces.
    """
    read, filled = (sum(tensor.numel() for tensor in side) for side in sides)
    of_first = next((tensor.dtype for side in sides for tensor in side), torch.uint8)
    steps = {after - before for before, after in itertools.pairwise(ranks)}
    return {
        "Collective name": _NCCL_NAMES.get(name, name),
        "In msg nelems": read,
        "Out msg nelems": filled,
        "Group size": len(ranks),
        "dtype": _DTYPES.get(of_first, str(of_first).removeprefix("torch.").capitalize()),
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group.group_name,
        "Process Group Description": group.group_desc,
        "Process Group Ranks": str(list(ranks)),
        "Global rank start": ranks[0],
        "Global rank stride": steps.pop() if len(steps) == 1 else 0,
    }


_NCCL_NAMES = {"all_reduce": "allreduce", "_all_gather_base": "_allgather_base"}
_DTYPES = {  # As C++ spells them.
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.uint8: "Byte",
    torch.bfloat16: "BFloat16", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int",
    torch.int64: "Long",
}  # fmt: skip


def _end(entry: HostEvent, program: Program) -> None:
    entry.end_ps = max(entry.end_ps, program.engine.now_ps)


def patches() -> Patches:
    """Return the patches of torch's profilers."""
    profile, scope = torch_profiler.profile, torch_profiler.record_function
    autograd: Any = torch.autograd
    return [
        (autograd, "_supported_activities", _activities(autograd._supported_activities)),
        (autograd, "_add_metadata_json", _facts(autograd._add_metadata_json)),
        (profile, "_prepare_trace", _in_rank(profile._prepare_trace, _prepare)),
        (profile, "_start_trace", _in_rank(profile._start_trace, _start)),
        (profile, "__exit__", _in_rank(profile.__exit__, _stop)),
        (profile, "export_chrome_trace", _in_rank(profile.export_chrome_trace, _export)),
        (scope, "__enter__", _around(scope.__enter__, _open_scope)),
        (scope, "__exit__", _around(scope.__exit__, _close_scope)),
    ]


def _activities(original: Callable[[], set[Any]]) -> Callable[[], set[Any]]:
    @functools.wraps(original)
    def supported() -> set[Any]:
        program = rank_program()
        sees = program is not None and activation.is_enabled() and activation.sees_devices(program)
        return original() | ({ProfilerActivity.CUDA} if sees else set())

    return supported


def _facts(original: Callable[[str, str], None]) -> Callable[[str, str], None]:
    @functools.wraps(original)
    def add(key: str, value: str) -> None:
        program = rank_program()
        if program is None:
            original(key, value)
        for profile in () if program is None else program.local.get(_KEY, ()):
            profile.facts[key] = json.loads(value)

    return add


def _in_rank(original: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (original if rank_program() is None else simulated)(self, *args, **kwargs)

    return method


def _around(original: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any) -> Any:
        program = rank_program()
        if program is not None and is_recording(program):
            note(program, self)
        return original(self, *args)

    return method


def _prepare(self: Any) -> None:
    self.entered = True


def _start(self: Any) -> None:
    self.entered = True
    activation.flush()  # What came before is not seen.
    program = require_rank("a profiler")
    self._simulated = Profile(program)
    program.local.setdefault(_KEY, []).append(self._simulated)


def _stop(self: Any, *error: object) -> bool:
    """Close a profiler after its devices are idle, and show its events in simulated time."""
    del error
    if not self.enabled:
        return False
    program = require_rank("a profiler")
    if activation.devices_in_use() is not None:
        torch.cuda.synchronize()
    seen: Profile = self._simulated
    seen.close()
    program.local[_KEY] = [other for other in program.local[_KEY] if other is not seen]
    self._seen = seen
    shown = list(_events(self, seen.entries, program.rank))
    before = self._function_events if self.acc_events and self._function_events else []
    events = EventList(
        [*before, *shown],
        use_device=self.use_device,
        profile_memory=self.profile_memory,
        with_flops=self.with_flops,
    )
    events._build_tree()
    self._function_events, self._needs_processing = events, False
    return False


def _events(
    profiler: Any, entries: Sequence[HostEvent], rank: int | None
) -> Iterator[FunctionEvent]:
    """Yield torch's events: of each call of the host, of the launch in it, and of its kernel.

    As Kineto's, a launch and its kernel are linked to the operator that launches: its `id` is their
    `linked_correlation_id`.
    """
    for number, entry in enumerate(entries, start=1):
        event = FunctionEvent(
            id=number,
            name=entry.name,
            trace_name=entry.name,
            thread=rank,
            start_us=entry.start_ps / PS_PER_US,
            end_us=entry.end_ps / PS_PER_US,
            input_shapes=entry.shapes if profiler.record_shapes else [],
            use_device=profiler.use_device,
            is_async=entry.is_async,
            is_user_annotation=entry.is_scope,
            stack=[],
        )
        event.activity_type = "user_annotation" if entry.is_scope or entry.is_async else "cpu_op"
        yield event
        kernel = entry.kernel
        if kernel is None:
            continue
        start_us, end_us = kernel.start_ps / PS_PER_US, kernel.complete_ps / PS_PER_US
        device = kernel.stream.device.index
        event.append_kernel(_kernel_name(kernel, entry.shown), device, end_us - start_us)
        shared = {"id": len(entries) + number, "thread": rank, "use_device": profiler.use_device}
        launch = event
        if entry.name not in _LAUNCHES.values():
            issue_us = kernel.issue_ps / PS_PER_US
            launch = FunctionEvent(
                name=_launch_name(kernel), start_us=min(event.time_range.start, issue_us),
                end_us=issue_us, is_async=entry.is_async, stack=[], **shared,
            )  # fmt: skip
            yield launch
        name = _kernel_name(kernel, entry.shown)
        ran = FunctionEvent(
            name=name, start_us=start_us, end_us=end_us, device_type=_CUDA,
            device_index=device, is_async=False, stack=[], **shared,
        )  # fmt: skip
        launch.activity_type = "cuda_runtime"
        kind = "copy" if entry.shown is Kernel.COPY else kernel.kind
        ran.activity_type = _ACTIVITIES.get(kind, "kernel")
        launch.linked_correlation_id = ran.linked_correlation_id = number
        yield ran


def _host_name(operation: Operation) -> str:
    """Return the name of the host's call that issued an operation."""
    if isinstance(operation, TorchOperation):
        return f"aten::{operation.name.partition('.')[0]}"
    return _launch_name(operation)


def _launch_name(operation: Operation) -> str:
    """Return the name of CUDA's call that issues an operation."""
    return _LAUNCHES.get(operation.kind, _LAUNCHES["kernel"])


_LAUNCHES = {"copy": "cudaMemcpyAsync", "kernel": "cudaLaunchKernel"}
_ACTIVITIES = {"copy": "gpu_memcpy"}


def _kernel_name(operation: Operation, shown: Kernel) -> str:
    """Return the name of an operation's kernel; nccl's names for its collectives."""
    if operation.kind != "collective":
        return operation.name
    if shown is Kernel.COPY:
        return shown.value
    words = operation.name.partition(" ")[0].split("_")
    return f"{shown.value}_{''.join(word.capitalize() for word in words)}"


# ---- the trace ----


def _export(self: Any, path: str, metadata: object = None, use_python_export: bool = False) -> None:
    """Write a trace as Kineto does: for Perfetto, TensorBoard and the Holistic Trace Analysis."""
    del metadata, use_python_export
    program = require_rank("a profiler")
    rank = program.rank or 0
    seen: Profile = self._seen
    cluster = program.context.cluster
    properties = activation.properties_of(cluster)
    own = activation.devices_in_use()
    num_devices = 0 if own is None else own.state.num_devices
    shown = {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                "id": index,
                "name": properties.name,
                "totalGlobalMem": properties.total_memory,
                "numSms": properties.multi_processor_count,
            }
            for index in range(num_devices)
        ],
        "distributedInfo": {"backend": "simrank", "rank": rank},
        **seen.facts,
        "displayTimeUnit": "ms",
        "traceEvents": [*_trace_of(seen.entries, rank)],
        "traceName": str(path),
    }
    write_text(path, json.dumps(shown))


def _trace_of(entries: Sequence[HostEvent], rank: int) -> Iterator[dict[str, Any]]:
    for number, entry in enumerate(entries):
        category = "user_annotation" if entry.is_scope else "cpu_op"
        arguments: dict[str, Any] = {"External id": number, "Input Dims": entry.shapes}
        arguments |= entry.facts
        spent = _slice(category, entry.name, (entry.start_ps, entry.end_ps))
        yield {**spent, "pid": rank, "tid": rank, "args": arguments}
        kernel = entry.kernel
        if kernel is None:
            continue
        track = {"pid": kernel.stream.device.index, "tid": kernel.stream.name}
        arguments = {
            "External id": number,
            "correlation": number,
            "device": kernel.stream.device.index,
            "stream": kernel.stream.name,
        }
        ran = _slice(
            "kernel", _kernel_name(kernel, entry.shown), (kernel.start_ps, kernel.complete_ps)
        )
        yield {**ran, **track, "args": arguments}
        for phase, where, at_ps in (
            ("s", {"pid": rank, "tid": rank}, entry.start_ps),
            ("f", track, kernel.start_ps),
        ):
            flow = {"ph": phase, "id": number, "cat": "ac2g", "name": "ac2g", "bp": "e"}
            yield {**flow, **where, "ts": at_ps / PS_PER_US}


def _slice(category: str, name: str, span_ps: tuple[int, int]) -> dict[str, Any]:
    start_ps, end_ps = span_ps
    duration_us = (end_ps - start_ps) / PS_PER_US
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": start_ps / PS_PER_US,
        "dur": duration_us,
    }


# ---- what programs name ----


def _open_scope(program: Program, scope: Any) -> None:
    activation.flush()  # What was computed before belongs to what was open then.
    scope._simulated = HostEvent(scope.name, [], clock_ps(program), is_async=False, is_scope=True)
    _add(program, scope._simulated)


def _library_scope(program: Program, name: str | None, number: int) -> None:
    """Record a scope of torch's C++, such as a node of autograd."""
    if not is_recording(program):
        return
    opened: dict[int, HostEvent] = program.local.setdefault(_OPEN_SCOPES, {})
    if name is not None:
        activation.flush()
        opened[number] = HostEvent(name, [], clock_ps(program), is_async=False)
        _add(program, opened[number])
    elif number in opened:
        activation.flush()
        opened.pop(number).end_ps = clock_ps(program)


def _close_scope(program: Program, scope: Any) -> None:
    entry: HostEvent | None = getattr(scope, "_simulated", None)
    if entry is not None:
        activation.flush()
        entry.end_ps = clock_ps(program)
