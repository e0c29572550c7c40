"""A kernel's source as text or a page, with counts and times per line.

A line's time is its share of what the whole kernel takes of a resource: of the tensor cores by its
operations, of memory and L2 by its bytes. Resources work beside each other: times do not add up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simrank.errors import ranks_text
from simrank.pages import (
    Bar,
    Curve,
    Point,
    bars,
    chart,
    document,
    notes,
    pictures,
    section,
    table,
)
from simrank.pages.chart import powers_axis
from simrank.pages.document import Markup, element
from simrank.pages.text_table import text_table
from simrank.units import PS_PER_US, format_size, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from simrank.kernels.machine.statistics import KernelProfile, Line, Roof

PARTS = ("tensor", "vector", "special", "memory", "L2", "links", "waiting")
COLUMNS = ("most time", "local", "links", "masked", "flops", "atomics", "parked")
_UNEVEN = 1.05  # Assumed: less is not worth a word.
_FUSED_PER_SIMPLE = 4  # Additions and multiplications that take as long as a comparison.


class KernelLine(NamedTuple):
    """A line of a kernel, or of a device function that it calls.

    Attributes:
        number: In its file.
        source: Its text.
        texts: What it did, by column.
        parts_ps: Time per resource, by the names of `PARTS`; empty if it did nothing.
    """

    number: int
    source: str
    texts: Mapping[str, str]
    parts_ps: Mapping[str, float]


def source_lines(profile: KernelProfile) -> Iterator[KernelLine]:
    """Yield the lines of a kernel in order, then lines of called functions in other files."""
    weights = {key: _weights(line) for key, line in profile.lines.items()}
    totals = {part: sum(own[part] for own in weights.values()) for part in PARTS}
    spent = {**profile.parts_ps, "waiting": _waiting_ps(profile)}

    def reported(key: tuple[str, int], source: str) -> KernelLine:
        line = profile.lines.get(key)
        if line is None:
            return KernelLine(key[1], source, {}, {})
        parts_ps = {
            part: spent.get(part, 0) * weights[key][part] / totals[part]
            for part in PARTS
            if totals[part] and weights[key][part]
        }
        return KernelLine(key[1], source, _texts(line, parts_ps), parts_ps)

    last = profile.first_line + len(profile.source)
    for number, text in enumerate(profile.source, profile.first_line):
        yield reported((profile.file, number), text)
    for file, number in sorted(profile.lines):
        if file != profile.file or not profile.first_line <= number < last:
            yield reported((file, number), _source(file, number))


def _weights(line: Line) -> dict[str, float]:
    """Return a line's share of each resource's time."""
    fused, simple, special = line.operations
    return {
        "tensor": line.flops,
        "vector": fused + _FUSED_PER_SIMPLE * simple,
        "special": special,
        "memory": line.local_bytes,
        "L2": line.local_bytes + line.num_atomics,
        "links": sum(line.peer_bytes.values()),
        "waiting": line.parked_ps,
    }


def _waiting_ps(profile: KernelProfile) -> float:
    """Return the mean waiting time of a program."""
    parked_ps = sum(line.parked_ps for line in profile.lines.values())
    return parked_ps / max(profile.num_programs, 1)


def _source(file: str, number: int) -> str:
    import linecache  # noqa: PLC0415 - only for lines of device functions

    return linecache.getline(file, number).rstrip("\n")


def _texts(line: Line, parts_ps: Mapping[str, float]) -> dict[str, str]:
    cells = {}
    if parts_ps:
        part = max(parts_ps, key=lambda name: parts_ps[name])
        cells["most time"] = f"{format_time(round(parts_ps[part]))} {part}"
    if line.local_bytes:
        cells["local"] = format_size(line.local_bytes)
    if line.peer_bytes:
        total = format_size(sum(line.peer_bytes.values()))
        cells["links"] = f"{total} ({len(line.peer_bytes)} peers)"
    if line.num_masked_lanes:
        cells["masked"] = f"{line.masked_share:.1%}"
    if line.flops:
        cells["flops"] = f"{line.flops:.3g}"
    if line.num_atomics:
        cells["atomics"] = str(line.num_atomics)
    if line.parked_ps:
        cells["parked"] = format_time(line.parked_ps)
    return cells


def _used(rows: Sequence[KernelLine]) -> list[str]:
    return [name for name in COLUMNS if any(name in row.texts for row in rows)]


# Limiters with another name in reports.
_LIMITERS = {"programs": "waiting (barriers, flags)"}


def headline(profile: KernelProfile) -> str:
    """Return a kernel's total time and its limiter."""
    limiters = ", ".join(
        f"{_LIMITERS.get(name, name)} ({count})"
        for name, count in sorted(profile.limiters.items(), key=lambda i: -i[1])
    )
    on = f" on ranks {ranks_text(sorted(profile.ranks))}" if len(profile.ranks) > 1 else ""
    return (
        f"{profile.name}: {profile.num_launches} launch(es){on}, {profile.num_programs} programs, "
        f"{format_time(profile.duration_ps)} simulated; limited by {limiters or 'nothing'}"
    )


def _parts(profile: KernelProfile) -> str:
    """Return a kernel's time per resource, without overlap."""
    parts = {**profile.parts_ps, "waiting": round(_waiting_ps(profile))}
    reported = [f"{name} {format_time(parts[name])}" for name in PARTS if parts.get(name)]
    return f"time per resource, without overlap: {', '.join(reported) or 'nothing'}"


def _balance(profile: KernelProfile) -> str:
    """Return the SM load balance of a kernel with dots; empty for other kernels."""
    if not profile.parts_ps.get("tensor"):
        return ""
    held = "one program" if profile.per_sm == 1 else f"{profile.per_sm} programs"
    reported = f"an SM holds {held} at a time"
    if profile.busiest_share < _UNEVEN:
        return reported
    return (
        f"{reported}; the busiest has {profile.busiest_share:.2f} times the mean work: give long "
        "programs the lowest ids, and launch a multiple of the number of SMs if all are equal"
    )


def _hints(profile: KernelProfile) -> Iterator[str]:
    """Yield advice for costs that belong to no line."""
    if "latency" in profile.limiters:
        yield (
            "too few loads are in flight to saturate the memory: use more stages, larger tiles or "
            "more programs"
        )
    if profile.num_spilled:
        yield (
            f"{profile.num_spilled} registers of each thread are spilled, and moved in each step "
            "as vector operations: use smaller blocks or more warps"
        )


def summary(profile: KernelProfile) -> list[str]:
    """Return the text above a kernel's lines."""
    reported = (headline(profile), _parts(profile), _balance(profile), *_hints(profile))
    return [*filter(None, reported)]


def report_text(profiles: Sequence[KernelProfile]) -> str:
    """Return all kernels as text, each with its source."""
    parts = []
    for profile in profiles:
        rows = list(source_lines(profile))
        used = _used(rows)
        cells = [
            (f"{row.number:5d}", *(row.texts.get(name, "") for name in used), row.source)
            for row in rows
        ]
        lines = text_table([("line", *used, ""), *cells])
        parts.append("\n".join([*summary(profile), *lines]))
    return "\n\n".join(parts)


# ---- kernels as a page: where each line's time goes, and how far the kernel is from its roof ----

_LEAST_PART = 1e-3  # Of the longest line: what is shorter would not be seen.
_SPREAD = 32.0  # How far the roofline reaches beyond its ridge, and beyond the kernel.


def report_html(profiles: Sequence[KernelProfile]) -> str:
    """Return all kernels as one page that opens without a network."""
    shown = [_kernel(profile) for profile in profiles]
    facts = [("kernels", ", ".join(profile.name for profile in profiles))]
    return document("simrank kernels report", facts, shown, num_curves=2)


def _kernel(profile: KernelProfile) -> Markup:
    rows = list(source_lines(profile))
    parts = [notes(summary(profile))]
    drawn = _bars(rows)
    if drawn:
        parts.append(bars("us", PARTS, drawn))
    if profile.roof is not None:
        parts.append(_roofline(profile, profile.roof))
    first, *others = _used(rows) or COLUMNS[:1]  # The source stands where narrow screens show it.
    cells = [
        [str(row.number), row.texts.get(first, ""), _code(row)]
        + [row.texts.get(name, "") for name in others]
        for row in rows
    ]
    parts.append(table(f"lines of {profile.name}", ["line", first, "source", *others], cells))
    return section(profile.name, *parts)


def _code(row: KernelLine) -> Markup:
    return element("td", element("code", row.source), style="text-align:left;white-space:pre")


def _bars(rows: Sequence[KernelLine]) -> list[Bar]:
    """Return a bar for each line that takes time, in the order of the source."""
    totals = {row.number: sum(row.parts_ps.values()) for row in rows}
    least = _LEAST_PART * max(totals.values(), default=0.0)
    found = []
    for row in rows:
        if totals[row.number] > least:
            times = tuple(row.parts_ps.get(part, 0.0) / PS_PER_US for part in PARTS)
            found.append(Bar(f"{row.number}  {row.source.strip()}", times, row.texts["most time"]))
    return found


def _roofline(profile: KernelProfile, roof: Roof) -> Markup:
    """Return the roof of the device, and the kernel as a point below it.

    Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model",
    CACM 52(4), 2009.
    """
    flops = sum(line.flops for line in profile.lines.values())
    operations = sum(sum(line.operations) for line in profile.lines.values())
    done = flops or operations
    seconds = profile.duration_ps / 1e12
    if not done or not profile.hbm_bytes or not seconds:
        return Markup("")
    intensity, rate = done / profile.hbm_bytes, done / seconds / 1e12
    ridge = roof.flops_per_s / roof.bytes_per_s
    low, high = min(ridge, intensity) / _SPREAD, max(ridge, intensity) * _SPREAD
    peak = roof.flops_per_s / 1e12

    def below(x: float) -> Point:
        y = min(peak, x * roof.bytes_per_s / 1e12)
        return Point(x, y, f"{x:.4g} per byte: {y:.4g} TFLOPS")

    what = "operations" if flops else "vector operations"
    own = Point(
        intensity, rate, f"{profile.name}: {intensity:.4g} {what} per byte, {rate:.4g} TFLOPS"
    )
    curves = [
        Curve(f"roof of {roof.device}", (below(low), below(ridge), below(high)), 0),
        Curve(profile.name, (own,), 1, is_measured=True),
    ]
    rates = [below(low).y, peak, rate]
    axes = (
        powers_axis([low, high], f"{what} per byte of memory"),
        powers_axis(rates, "TFLOPS"),
    )
    return pictures(curves, chart("Roofline", axes, curves))
