"""A timeline of simulated time that opens in Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.engine.callsite import user_site
from simrank.trace.counters import Counters
from simrank.units import PS_PER_S, PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from simrank.device import Operation
    from simrank.engine import Task
    from simrank.engine.callsite import CallSite

_HOST_TRACK = 0
_SKIPPED_KINDS = ("wait", "event")
_WAIT = "wait: "
_CALL = re.compile(r"(?P<name>.*?) #(?P<number>\d+)(?: on group '(?P<group>[^']*)')?")
_LINKS = 1 << 30  # The process that shows links, behind all ranks.
_GB = 1e9


class _Part(NamedTuple):
    """One rank's part of a collective: when it ran, and on which track."""

    start_ps: int
    end_ps: int
    rank: int
    track: int


class _Collective:
    """The parts of a collective that have ended, and what it sends over which links."""

    def __init__(self, name: str, link_bytes: dict[str, int], *, waits: bool) -> None:
        self.name = name
        self.parts: list[_Part] = []
        self._link_bytes = link_bytes
        self._waits = waits

    def rates(self) -> Iterator[tuple[str, tuple[int, int], float]]:
        """Yield for each link when it is used, and its mean rate in GB/s.

        Where every rank needs all others, nothing crosses before the last one has come.
        """
        starts = [part.start_ps for part in self.parts]
        start_ps = max(starts) if self._waits else min(starts)
        end_ps = max(part.end_ps for part in self.parts)
        for link, size_bytes in self._link_bytes.items():
            if end_ps > start_ps:
                yield link, (start_ps, end_ps), _gb_per_s(size_bytes, end_ps - start_ps)


class Timeline:
    """Records what an engine's ranks and streams do; one process per rank, a track per stream.

    It is an observer: `ctx.observe(timeline)`. Everything is held in memory until `write`.

    Args:
        ranks: Only these ranks, without the links between all; None for all.

    Source:
        Trace Event Format (Google, 2016): "X" slices, "s"/"f" flows, "C" counters, "M" names.
    """

    def __init__(self, ranks: Collection[int] | None = None) -> None:
        self._ranks = None if ranks is None else frozenset(ranks)
        self._slices: list[dict[str, Any]] = []
        self._tracks: dict[tuple[int, str], int] = {}
        self._collectives: dict[object, _Collective] = {}
        self._counters = Counters()
        self._section = ""
        self._offset_ps = 0
        self._last_ps = 0

    def begin_section(self, name: str) -> None:
        """Put what follows (another run, from time 0) after what is there."""
        self._section = name
        self._offset_ps = self._last_ps
        self._counters.end_all(self._last_ps)

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Note nothing: tasks show by their waits and their operations."""

    def on_host(self, task: Task, name: str, start_ps: int, end_ps: int) -> None:
        """Add a slice to the rank's host track; that of a wait says what for."""
        if self._shown(task.rank) and end_ps > start_ps and task.rank is not None:
            what = name.removeprefix(_WAIT)
            shown, details = _name_and_details(name)
            details = {**_where(user_site()), **details}
            if what is not name:
                details["for"] = what
            self._slice(task.rank, "host", shown, (start_ps, end_ps), details)

    def on_operation(self, operation: Operation) -> None:
        """Add a slice to the stream's track; collectives also get a flow between their ranks."""
        rank = operation.rank
        if rank is None:
            rank = operation.stream.device.index
        if operation.kind in _SKIPPED_KINDS or not self._shown(rank):
            return
        name, details = _name_and_details(operation.name)
        details = {**_where(operation.issued_at), "kind": operation.kind, **details}
        details |= operation.details or {}
        span_ps = operation.start_ps, operation.complete_ps
        track = self._slice(rank, operation.stream.name, name, span_ps, details)
        call = getattr(operation, "call", None)
        if call is not None:
            collective = self._collectives.get(call)
            if collective is None:
                collective = self._collectives[call] = _collective(operation, call, name)
            start_ps, end_ps = (time_ps + self._offset_ps for time_ps in span_ps)
            collective.parts.append(_Part(start_ps, end_ps, rank, track))

    def on_transfer(
        self, size_bytes: int, links: tuple[str, ...], start_ps: int, end_ps: int
    ) -> None:
        """Add to the links; the slice is that of the copy which moves the bytes."""
        if end_ps > start_ps and self._ranks is None:
            span_ps = start_ps + self._offset_ps, end_ps + self._offset_ps
            for link in links:
                rate = _gb_per_s(size_bytes, end_ps - start_ps)
                self._counters.span(_LINKS, link, "GB/s", span_ps, rate)

    def on_memory(self, device: int, used_bytes: int, change_bytes: int, time_ps: int) -> None:
        """Add to the memory of a device, which is shown with the rank of its number."""
        if not self._shown(device):
            return
        facts = device, f"memory of device {device}", "bytes", time_ps + self._offset_ps
        if not self._counters.is_known(*facts[:2]):
            self._counters.add(*facts, used_bytes - change_bytes)
        self._counters.add(*facts, change_bytes)

    def _shown(self, rank: int | None) -> bool:
        return self._ranks is None or rank in self._ranks

    def _slice(
        self, rank: int, track: str, name: str, span_ps: tuple[int, int], details: dict[str, Any]
    ) -> int:
        key = (rank, track)
        if key not in self._tracks:
            on_rank = sum(1 for known, name_ in self._tracks if known == rank and name_ != "host")
            self._tracks[key] = _HOST_TRACK if track == "host" else on_rank + 1
        number = self._tracks[key]
        start_ps, end_ps = (time_ps + self._offset_ps for time_ps in span_ps)
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
        """Return the trace events: names, slices in order of their end, flows, counters."""
        counters = self._all_counters()
        shown = {rank for rank, _ in self._tracks} | counters.processes()
        names = {process: f"rank {process}" for process in sorted(shown)}
        if _LINKS in names:
            names[_LINKS] = "links"
        return [
            *(_name("process_name", process, 0, name) for process, name in names.items()),
            *(_name("process_sort_index", process, 0, process) for process in names),
            *(_name("thread_name", rank, n, track) for (rank, track), n in self._ordered_tracks()),
            *self._slices,
            *self._flow_events(),
            *counters.events(),
        ]

    def _ordered_tracks(self) -> list[tuple[tuple[int, str], int]]:
        return sorted(self._tracks.items())

    def _all_counters(self) -> Counters:
        """Return the counters, with what collectives add to links: known when they have ended."""
        counters = self._counters.copy()
        for collective in self._collectives.values() if self._ranks is None else ():
            for link, span_ps, rate in collective.rates():
                counters.span(_LINKS, link, "GB/s", span_ps, rate)
        return counters

    def _flow_events(self) -> list[dict[str, Any]]:
        flows = []
        shared = [one for one in self._collectives.values() if len(one.parts) > 1]
        for number, collective in enumerate(shared):
            parts = sorted((part.start_ps, part.rank, part.track) for part in collective.parts)
            for index, (start_ps, rank, track) in enumerate(parts):
                phase = "s" if index == 0 else "f" if index + 1 == len(parts) else "t"
                flow = {
                    "ph": phase,
                    "id": number,
                    "pid": rank,
                    "tid": track,
                    "name": collective.name,
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


def _name_and_details(text: str) -> tuple[str, dict[str, Any]]:
    """Return a call's name, by which Perfetto groups, and its number and group."""
    found = _CALL.match(text)
    if found is None:
        return text, {}
    details: dict[str, Any] = {"number": int(found["number"])}
    if found["group"] is not None:
        details["group"] = found["group"]
    return found["name"], details


def _where(site: CallSite | None) -> dict[str, Any]:
    """Return the file and line of the user's program, as reports show them."""
    return {} if site is None else {"at": str(site.line())}


def _collective(operation: Operation, call: Any, name: str) -> _Collective:  # noqa: ANN401 - a Call
    cluster = operation.stream.device.network.cluster
    link_bytes = {cluster.link_name(link): size for link, size in call.link_bytes.items()}
    return _Collective(name, link_bytes, waits=call.is_synchronizing)


def _gb_per_s(size_bytes: int, took_ps: int) -> float:
    return size_bytes * PS_PER_S / took_ps / _GB
