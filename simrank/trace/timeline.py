"""A timeline of simulated time that opens in Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from simrank.device import Operation
    from simrank.engine import Task


_HOST_TRACK = 0
_SKIPPED_KINDS = ("wait", "event")


class Timeline:
    """Records what an engine's ranks and streams do; one process per rank, a track per stream.

    It is an observer: `ctx.observe(timeline)`. Everything is held in memory until `write`.

    Args:
        ranks: Only these ranks; None for all.

    Source:
        Trace Event Format (Google, 2016): "X" slices, "s"/"f" flows, "M" names.
    """

    def __init__(self, ranks: Collection[int] | None = None) -> None:
        self._ranks = None if ranks is None else frozenset(ranks)
        self._slices: list[dict[str, Any]] = []
        self._tracks: dict[tuple[int, str], int] = {}
        self._calls: dict[object, int] = {}
        self._flows: dict[int, list[tuple[int, int, int]]] = {}
        self._flow_names: dict[int, str] = {}
        self._section = ""
        self._offset_ps = 0
        self._last_ps = 0

    def begin_section(self, name: str) -> None:
        """Put what follows (another run, from time 0) after what is there."""
        self._section = name
        self._offset_ps = self._last_ps

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Note nothing: tasks show by their waits and their operations."""

    def on_host(self, task: Task, name: str, start_ps: int, end_ps: int) -> None:
        """Add a slice to the rank's host track."""
        if self._shown(task.rank) and end_ps > start_ps and task.rank is not None:
            self._slice(task.rank, "host", name, start_ps, end_ps, {})

    def on_operation(self, operation: Operation) -> None:
        """Add a slice to the stream's track; collectives also get a flow between their ranks."""
        rank = operation.rank
        if rank is None:
            rank = operation.stream.device.index
        if operation.kind in _SKIPPED_KINDS or not self._shown(rank):
            return
        details = {"kind": operation.kind, **(operation.details or {})}
        start_ps, end_ps = operation.start_ps, operation.complete_ps
        track = self._slice(rank, operation.stream.name, operation.name, start_ps, end_ps, details)
        call = getattr(operation, "call", None)
        if call is not None:
            # Numbered by first sight: an id() would differ from run to run.
            key = self._calls.setdefault(call, len(self._calls))
            self._flows.setdefault(key, []).append((self._offset_ps + start_ps, rank, track))
            self._flow_names[key] = operation.name

    def on_transfer(self, name: str, links: tuple[int, ...], start_ps: int, end_ps: int) -> None:
        """Note nothing: the copy that moves the bytes is shown."""

    def _shown(self, rank: int | None) -> bool:
        return self._ranks is None or rank in self._ranks

    def _slice(
        self, rank: int, track: str, name: str, start_ps: int, end_ps: int, details: dict[str, Any]
    ) -> int:
        key = (rank, track)
        if key not in self._tracks:
            on_rank = sum(1 for known, name_ in self._tracks if known == rank and name_ != "host")
            self._tracks[key] = _HOST_TRACK if track == "host" else on_rank + 1
        number = self._tracks[key]
        start_ps, end_ps = start_ps + self._offset_ps, end_ps + self._offset_ps
        self._last_ps = max(self._last_ps, end_ps)
        event = {
            "ph": "X",
            "pid": rank,
            "tid": number,
            "name": name,
            "ts": start_ps / PS_PER_US,
            "dur": (end_ps - start_ps) / PS_PER_US,
        }
        if self._section:
            details = {**details, "run": self._section}
        if details:
            event["args"] = details
        self._slices.append(event)
        return number

    def events(self) -> list[dict[str, Any]]:
        """Return the trace events: names, slices in order of their end, then flows."""
        ranks = sorted({rank for rank, _ in self._tracks})
        tracks = sorted(self._tracks.items())
        return [
            *(_name("process_name", rank, 0, f"rank {rank}") for rank in ranks),
            *(_name("process_sort_index", rank, 0, rank) for rank in ranks),
            *(_name("thread_name", rank, number, track) for (rank, track), number in tracks),
            *self._slices,
            *self._flow_events(),
        ]

    def _flow_events(self) -> list[dict[str, Any]]:
        flows = []
        shared = [(key, ends) for key, ends in self._flows.items() if len(ends) > 1]
        for number, (key, ends) in enumerate(shared):
            for index, (start_ps, rank, track) in enumerate(sorted(ends)):
                phase = "s" if index == 0 else "f" if index + 1 == len(ends) else "t"
                flow = {
                    "ph": phase,
                    "id": number,
                    "pid": rank,
                    "tid": track,
                    "name": self._flow_names[key],
                    "cat": "collective",
                    "ts": start_ps / PS_PER_US,
                }
                if phase == "f":
                    flow["bp"] = "e"
                flows.append(flow)
        return flows

    def write(self, path: str | Path) -> None:
        """Write the timeline; equal runs give equal bytes."""
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
            lines = (json.dumps(event, separators=(",", ":")) for event in self.events())
            file.write(",\n".join(lines))
            file.write("\n]}\n")


def _name(kind: str, rank: int, track: int, value: str | int) -> dict[str, Any]:
    key = "sort_index" if kind.endswith("sort_index") else "name"
    return {"ph": "M", "pid": rank, "tid": track, "name": kind, "args": {key: value}}
