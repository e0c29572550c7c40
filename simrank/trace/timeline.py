"""A timeline of simulated time that opens in Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
import re
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.config.files import written_whole
from simrank.engine.callsite import user_site
from simrank.units import PS_PER_S, PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
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
_new_tuple = tuple.__new__  # What a NamedTuple's constructor calls.


class _Slice(NamedTuple):
    """A slice of a track; it becomes an event as the timeline is written.

    A run makes many: only what it costs to remember them is paid while it goes on.
    """

    rank: int
    track: int
    text: str
    span_ps: tuple[int, int]
    site: CallSite | None
    details: dict[str, Any]
    section: str

    def event(self, lines: dict[tuple[int, int], str]) -> dict[str, Any]:
        """Return the slice as a trace event; a wait names its operation.

        Args:
            lines: Lines of the program that were looked up before.
        """
        name, found = _name_and_details(self.text)
        start_ps, end_ps = self.span_ps
        details = {} if self.site is None else {"at": _line(self.site, lines)}
        details |= {**found, **self.details}
        if self.text.startswith(_WAIT):
            details["for"] = self.text.removeprefix(_WAIT)
        if self.section:
            details["run"] = self.section
        return {
            "ph": "X",
            "pid": self.rank,
            "tid": self.track,
            "name": name,
            "ts": start_ps / PS_PER_US,
            "dur": (end_ps - start_ps) / PS_PER_US,
            "args": details,
        }


class _Part(NamedTuple):
    """One rank's part of a collective: when it ran, and on which track."""

    start_ps: int
    end_ps: int
    rank: int
    track: int


class _Collective:
    """The ended parts of a collective, and its bytes per link."""

    def __init__(
        self,
        name: str,
        link_bytes: dict[int, int],
        link_name: Callable[[int], str],
        *,
        waits: bool,
    ) -> None:
        self.name = name
        self.parts: list[_Part] = []
        self._link_bytes = link_bytes
        self._link_name = link_name
        self._waits = waits

    def rates(self) -> Iterator[tuple[str, tuple[int, int], float]]:
        """Yield the busy times of each link, with its mean rate in GB/s.

        Where every rank needs all others, nothing crosses before the last one has come.
        """
        starts = [part.start_ps for part in self.parts]
        start_ps = max(starts) if self._waits else min(starts)
        end_ps = max(part.end_ps for part in self.parts)
        for link, size_bytes in self._link_bytes.items():
            if end_ps > start_ps:
                rate = _gb_per_s(size_bytes, end_ps - start_ps)
                yield self._link_name(link), (start_ps, end_ps), rate


class Timeline:
    """Timeline of an engine's ranks and streams: a process per rank, a track per stream.

    It is an observer: `ctx.observe(timeline)`. Everything is held in memory until `write`.

    Args:
        ranks: Only these ranks, without the links between all; None for all.

    Source:
        Trace Event Format (Google, 2016): "X" slices, "s"/"f" flows, "C" counters, "M" names.
    """

    def __init__(self, ranks: Collection[int] | None = None) -> None:
        self._ranks = None if ranks is None else frozenset(ranks)
        self._slices: list[_Slice] = []
        self._tracks: dict[tuple[int, str], int] = {}
        self._collectives: dict[object, _Collective] = {}
        self._counters = Counters()
        self._section = ""
        self._offset_ps = 0
        self._last_ps = 0

    def begin_section(self, name: str) -> None:
        """Begin a section: the next run, from time 0, follows the recorded ones."""
        self._section = name
        self._offset_ps = self._last_ps
        self._counters.end_all(self._last_ps)

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Note nothing: tasks show by their waits and their operations."""

    def on_host(self, task: Task, name: str, start_ps: int, end_ps: int) -> None:
        """Add a slice to the rank's host track."""
        rank = task.rank
        if end_ps > start_ps and rank is not None and self._shown(rank):
            self._slice(rank, "host", name, (start_ps, end_ps), user_site(), {})

    def on_operation(self, operation: Operation) -> None:
        """Add a slice to the stream's track; collectives also get a flow between their ranks."""
        rank = operation.rank
        if rank is None:
            rank = operation.stream.device.index
        kind, details = operation.kind, operation.details
        if kind in _SKIPPED_KINDS or not (self._ranks is None or rank in self._ranks):
            return
        details = {"kind": kind, **details} if details else {"kind": kind}
        span_ps = operation.start_ps, operation.complete_ps
        site = operation.issued_at
        made = self._slice(rank, operation.stream.name, operation.name, span_ps, site, details)
        call = getattr(operation, "call", None)
        if call is not None:
            collective = self._collectives.get(call)
            if collective is None:
                collective = _collective(operation, call, with_links=self._ranks is None)
                self._collectives[call] = collective
            collective.parts.append(_new_tuple(_Part, (*made.span_ps, rank, made.track)))

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
        self,
        rank: int,
        track: str,
        text: str,
        span_ps: tuple[int, int],
        site: CallSite | None,
        details: dict[str, Any],
    ) -> _Slice:
        key = (rank, track)
        number = self._tracks.get(key)
        if number is None:
            on_rank = sum(1 for known, name_ in self._tracks if known == rank and name_ != "host")
            number = self._tracks[key] = _HOST_TRACK if track == "host" else on_rank + 1
        if self._offset_ps:
            span_ps = span_ps[0] + self._offset_ps, span_ps[1] + self._offset_ps
        self._last_ps = max(self._last_ps, span_ps[1])
        made = _new_tuple(_Slice, (rank, number, text, span_ps, site, details, self._section))
        self._slices.append(made)
        return made

    def events(self) -> list[dict[str, Any]]:
        """Return the trace events: names, slices in order of their end, flows, counters."""
        counters = self._all_counters()
        lines: dict[tuple[int, int], str] = {}
        shown = {rank for rank, _ in self._tracks} | counters.processes()
        names = {process: f"rank {process}" for process in sorted(shown)}
        if _LINKS in names:
            names[_LINKS] = "links"
        return [
            *(_name("process_name", process, 0, name) for process, name in names.items()),
            *(_name("process_sort_index", process, 0, process) for process in names),
            *(_name("thread_name", rank, n, track) for (rank, track), n in self._ordered_tracks()),
            *(one.event(lines) for one in self._slices),
            *self._flow_events(),
            *counters.events(),
        ]

    def _ordered_tracks(self) -> list[tuple[tuple[int, str], int]]:
        return sorted(self._tracks.items())

    def _all_counters(self) -> Counters:
        """Return the counters, with the bytes of ended collectives."""
        counters = self._counters.copy()
        for collective in self._collectives.values():
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
        with written_whole(path) as file:
            file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
            lines = (json.dumps(event, separators=(",", ":")) for event in self.events())
            file.write(",\n".join(lines))
            file.write("\n]}\n")


def _name(kind: str, rank: int, track: int, value: str | int) -> dict[str, Any]:
    key = "sort_index" if kind.endswith("sort_index") else "name"
    return {"ph": "M", "pid": rank, "tid": track, "name": kind, "args": {key: value}}


def _line(site: CallSite, known: dict[tuple[int, int], str]) -> str:
    """Return a line of the user's program as in reports; `known` is a cache."""
    key = id(site.code), site.instruction  # Equal code may stand in several files.
    line = known.get(key)
    if line is None:
        line = known[key] = str(site.line())
    return line


def _name_and_details(text: str) -> tuple[str, dict[str, Any]]:
    """Return a call's name, by which Perfetto groups, and its number and group."""
    found = _CALL.match(text)
    if found is None:
        return text, {}
    details: dict[str, Any] = {"number": int(found["number"])}
    if found["group"] is not None:
        details["group"] = found["group"]
    return found["name"], details


def _collective(operation: Operation, call: Any, *, with_links: bool) -> _Collective:  # noqa: ANN401 - a Call
    name, _ = _name_and_details(operation.name)
    link_name = operation.stream.device.network.cluster.link_name
    link_bytes = call.link_bytes if with_links else {}  # Of many ranks they take seconds.
    return _Collective(name, link_bytes, link_name, waits=call.is_synchronizing)


def _gb_per_s(size_bytes: int, took_ps: int) -> float:
    return size_bytes * PS_PER_S / took_ps / _GB


# ---- Counter tracks of a timeline: what rises and falls, added up from its changes ----

_DIGITS = 6  # Of a sum of rates, which leaves a trace of rounding where it should be zero.


class Counters:
    """Changes of values over time, in any order; one track per process and name."""

    def __init__(self) -> None:
        self._changes: dict[tuple[int, str], list[tuple[int, float]]] = {}
        self._units: dict[tuple[int, str], str] = {}

    def add(self, process: int, name: str, unit: str, time_ps: int, change: float) -> None:
        """Add to a value.

        Args:
            process: Number of the process that shows it.
            name: Of the track.
            unit: What is counted, for example `bytes`.
            time_ps: When, in picoseconds.
            change: By how much.
        """
        self._changes.setdefault((process, name), []).append((time_ps, change))
        self._units[process, name] = unit

    def span(
        self, process: int, name: str, unit: str, span_ps: tuple[int, int], value: float
    ) -> None:
        """Add a value from one time to another."""
        self.add(process, name, unit, span_ps[0], value)
        self.add(process, name, unit, span_ps[1], -value)

    def is_known(self, process: int, name: str) -> bool:
        """Return whether a track has begun."""
        return (process, name) in self._changes

    def end_all(self, time_ps: int) -> None:
        """Set every value to zero at the end of a section."""
        for (process, name), changes in self._changes.items():
            left = sum(change for _, change in changes)
            if round(left, _DIGITS):
                self.add(process, name, self._units[process, name], time_ps, -left)

    def copy(self) -> Counters:
        """Return counters of their own with the same changes."""
        copied = Counters()
        copied._changes = {track: list(changes) for track, changes in self._changes.items()}
        copied._units = dict(self._units)
        return copied

    def processes(self) -> set[int]:
        """Return the processes that have a track."""
        return {process for process, _ in self._changes}

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the trace: each value at each time that it changes."""
        events = []
        for (process, name), changes in sorted(self._changes.items()):
            unit, before = self._units[process, name], 0.0
            ordered = sorted(changes, key=itemgetter(0))
            values = accumulate(change for _, change in ordered)
            timed = zip((time_ps for time_ps, _ in ordered), values, strict=True)
            for time_ps, at_once in groupby(timed, key=itemgetter(0)):
                value = round([value for _, value in at_once][-1], _DIGITS)
                if value != before:
                    event = {"ph": "C", "pid": process, "name": name, "ts": time_ps / PS_PER_US}
                    events.append({**event, "args": {unit: value}})
                before = value
        return events
