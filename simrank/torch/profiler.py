"""torch's profilers in a rank: what the rank issued, in simulated time.

Kineto, which torch's own write with, belongs to the process: two ranks at a time crash in it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch.autograd import profiler as torch_profiler
from torch.autograd.profiler_util import EventList, FunctionEvent

from simrank.ranks import require_rank
from simrank.ranks.current import rank_program
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from simrank.distributed.work import Work
    from simrank.ranks import Program

    StandIns = list[tuple[Any, str, Any]]

_KEY = "profiles"


class Entry:
    """Something that took simulated time.

    Attributes:
        name: As torch shows it.
        shapes: Of its tensors.
        start_ps: When it was issued.
        end_ps: When it ended; as long as it has not, when it was issued.
        is_async: Whether the host went on meanwhile.
    """

    __slots__ = ("end_ps", "is_async", "name", "shapes", "start_ps")

    def __init__(
        self, name: str, shapes: list[list[int]], start_ps: int, *, is_async: bool
    ) -> None:
        self.name = name
        self.shapes = shapes
        self.start_ps = self.end_ps = start_ps
        self.is_async = is_async


def clock_ps(program: Program) -> int:
    """Return a rank's host clock."""
    return program.engine.now_ps if program.task is None else program.task.clock_ps


def is_recording(program: Program) -> bool:
    """Whether a rank has a profiler open."""
    return bool(program.local.get(_KEY))


def record_call(
    program: Program, name: str, tensors: Sequence[torch.Tensor], works: Sequence[Work]
) -> None:
    """Show a collective or message to the profilers that the rank has open."""
    shapes = [list(tensor.shape) for tensor in tensors]
    entry = Entry(name, shapes, clock_ps(program), is_async=True)
    entry.end_ps = max(entry.end_ps, program.engine.now_ps)
    for work in works:
        operation = work._operation
        operation.on_complete(functools.partial(_end, entry, program))
    for entries in program.local.get(_KEY, ()):
        entries.append(entry)


def _end(entry: Entry, program: Program) -> None:
    entry.end_ps = max(entry.end_ps, program.engine.now_ps)


def stand_ins() -> StandIns:
    """Return what to replace: the parts of torch's profilers that open, close and export."""
    profile, scope = torch_profiler.profile, torch_profiler.record_function
    return [
        (profile, "_prepare_trace", _in_rank(profile._prepare_trace, _prepare)),
        (profile, "_start_trace", _in_rank(profile._start_trace, _start)),
        (profile, "__exit__", _in_rank(profile.__exit__, _stop)),
        (profile, "export_chrome_trace", _in_rank(profile.export_chrome_trace, _export)),
        (scope, "__enter__", _around(scope.__enter__, _open_scope)),
        (scope, "__exit__", _around(scope.__exit__, _close_scope)),
    ]


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
    self._simulated = []
    require_rank("a profiler").local.setdefault(_KEY, []).append(self._simulated)


def _stop(self: Any, *error: object) -> bool:
    """Close it: what it shows is the list of what was issued since, in simulated time."""
    del error
    if not self.enabled:
        return False
    program = require_rank("a profiler")
    entries: list[Entry] = self._simulated
    program.local[_KEY] = [other for other in program.local[_KEY] if other is not entries]
    shown = [
        FunctionEvent(
            id=number,
            name=entry.name,
            trace_name=entry.name,
            thread=program.rank,
            start_us=entry.start_ps / PS_PER_US,
            end_us=entry.end_ps / PS_PER_US,
            input_shapes=entry.shapes if self.record_shapes else [],
            is_async=entry.is_async,
            stack=[],
        )
        for number, entry in enumerate(entries)
    ]
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


def _export(self: Any, path: str, metadata: object = None, use_python_export: bool = False) -> None:
    del metadata, use_python_export
    self._function_events.export_chrome_trace(path)


def _open_scope(program: Program, scope: Any) -> None:
    scope._simulated = Entry(scope.name, [], clock_ps(program), is_async=False)
    for entries in program.local[_KEY]:
        entries.append(scope._simulated)


def _close_scope(program: Program, scope: Any) -> None:
    entry: Entry | None = getattr(scope, "_simulated", None)
    if entry is not None:
        entry.end_ps = clock_ps(program)
