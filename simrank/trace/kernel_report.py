"""A kernel's source beside what each line did, as text and as a page."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from simrank.units import format_size, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from simrank.kernels.machine.profile import KernelProfile, Line

_COLUMNS = ("local", "links", "masked", "flops", "atomics", "parked")


def kernel_lines(profile: KernelProfile) -> Iterator[tuple[str, int, str, dict[str, str], float]]:
    """Yield the lines of a kernel, and of device functions that it calls.

    Yields:
        File, line number, source, a text per column, and the line's share of the kernel's bytes,
        or of its waiting where that is what it does.
    """
    whole = list(profile.lines.values())
    total_bytes = sum(_bytes(line) for line in whole) or 1
    total_parked = sum(line.parked_ps for line in whole)
    last = profile.first_line + len(profile.source)
    for number, text in enumerate(profile.source, profile.first_line):
        line = profile.lines.get((profile.file, number))
        share = 0.0 if line is None else _share(line, total_bytes, total_parked)
        yield profile.file, number, text, {} if line is None else _texts(line), share
    for (file, number), line in sorted(profile.lines.items()):
        if file != profile.file or not profile.first_line <= number < last:
            share = _share(line, total_bytes, total_parked)
            yield file, number, _source(file, number), _texts(line), share


def _bytes(line: Line) -> int:
    return line.local_bytes + sum(line.peer_bytes.values())


def _share(line: Line, total_bytes: int, total_parked: int) -> float:
    return max(_bytes(line) / total_bytes, line.parked_ps / total_parked if total_parked else 0.0)


def _source(file: str, number: int) -> str:
    import linecache  # noqa: PLC0415 - only for lines of device functions

    return linecache.getline(file, number).rstrip("\n")


def _texts(line: Line) -> dict[str, str]:
    cells = {}
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


def _head(profile: KernelProfile) -> str:
    limiters = ", ".join(
        f"{name} ({count})" for name, count in sorted(profile.limiters.items(), key=lambda i: -i[1])
    )
    return (
        f"{profile.name}: {profile.num_launches} launch(es), {profile.num_programs} programs, "
        f"{format_time(profile.duration_ps)} simulated; limited by {limiters or 'nothing'}"
    )


def report_text(profiles: Sequence[KernelProfile]) -> str:
    """Return all kernels as text, each with its source."""
    parts = []
    for profile in profiles:
        rows = list(kernel_lines(profile))
        widths = {
            name: max([len(texts.get(name, "")) for *_, texts, _ in rows] + [len(name)])
            for name in _COLUMNS
        }
        widths = {
            name: width
            for name, width in widths.items()
            if any(name in texts for *_, texts, _ in rows)
        }
        lines = [_head(profile), "  ".join([" line", *(n.rjust(w) for n, w in widths.items())])]
        for _, number, source, texts, _ in rows:
            cells = [texts.get(name, "").rjust(width) for name, width in widths.items()]
            lines.append("  ".join([f"{number:5d}", *cells, source]).rstrip())
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


_STYLE = """body{font:14px/1.4 system-ui,sans-serif;margin:2em;color:#222}
table{border-collapse:collapse;font:12px/1.5 ui-monospace,monospace}
td,th{padding:0 .8em;text-align:right;white-space:pre}td.source{text-align:left}
th{border-bottom:1px solid #999}tr:hover{background:#f4f4f4}td.line{color:#888}"""


def report_html(profiles: Iterable[KernelProfile]) -> str:
    """Return all kernels as one page; the bar behind a line is its share of bytes or waiting."""
    parts = [f"<!doctype html><meta charset=utf-8><title>kernels</title><style>{_STYLE}</style>"]
    for profile in profiles:
        parts.append(f"<h2>{html.escape(profile.name)}</h2><p>{html.escape(_head(profile))}</p>")
        heads = "".join(f"<th>{name}</th>" for name in ("line", *_COLUMNS))
        parts.append(f"<table><tr>{heads}<th></th></tr>")
        for _, number, source, texts, share in kernel_lines(profile):
            cells = "".join(f"<td>{html.escape(texts.get(name, ''))}</td>" for name in _COLUMNS)
            percent = f"{100 * share:.1f}%"
            bar = f"background:linear-gradient(90deg,#fbd9a5 {percent},transparent {percent})"
            parts.append(
                f'<tr><td class=line>{number}</td>{cells}<td class=source style="{bar}">'
                f"{html.escape(source)}</td></tr>"
            )
        parts.append("</table>")
    return "\n".join(parts) + "\n"
