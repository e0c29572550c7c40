"""Barriers between two accesses of a compiled kernel, found in its assembly by source line.

Triton inserts a barrier of a program's threads where values pass through shared memory: reductions
over warps, changes of layout, scalar atomics. Between global accesses it inserts none.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.engine import CallSite

# Source: PTX ISA; AMD's CDNA 3 ISA.
_BARRIER = re.compile(r"\b(?:bar\.|barrier\.|s_barrier)")
_SHUFFLE = re.compile(r"\b(?:(?:shfl|redux)\.sync|ds_b?permute|v_mov_b32_dpp|v_permlane)")
_LOAD = re.compile(r"\b(?:ld\S*\.global|cp\.async\S*\.global|(?:buffer|global|flat)_load)")
_STORE = re.compile(r"\b(?:st\S*\.global|(?:buffer|global|flat)_store)")
_ATOMIC = re.compile(r"\b(?:(?:atom|red)\S*\.global|(?:buffer|global|flat)_atomic)")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_LABEL = re.compile(r"(\$L\w+|\.LBB\w+):")
_BRANCH = re.compile(r"\b(?:bra\S*|s_c?branch\S*)\s+(\$L\w+|\.LBB\w+)")
_KINDS = {"loads": _LOAD, "writes": _STORE, "atomics": _ATOMIC}


class _Assembly(NamedTuple):
    """Positions in a compiled kernel, as numbers of lines.

    Attributes:
        accesses: Of each source line and kind of access; lines are (file name, number).
        barriers: Of its barriers.
        shuffles: Of exchanges between threads of a warp.
        loops: First and last of each loop.
    """

    accesses: dict[tuple[str, int, str], list[int]]
    barriers: list[int]
    shuffles: list[int]
    loops: list[tuple[int, int]]


Place = tuple["CallSite", str]  # A line, and its kind of access: "loads", "writes" or "atomics".


def are_apart(assembly: str, first: Place, second: Place, *, in_a_warp: bool) -> bool:
    """Return whether nothing orders the threads of a program between two accesses.

    Where a line is not found, as in a kernel of an installed package, any barrier may order them.

    Args:
        assembly: PTX, or AMD's.
        first: The earlier access.
        second: The later access.
        in_a_warp: Whether a single warp makes them, so that an exchange of its threads, which
            needs the loaded values of all, orders them.
    """
    known = _parsed(assembly)
    barriers = [*known.barriers, *(known.shuffles if in_a_warp else ())]
    keys = _key(first), _key(second)
    if any(key not in known.accesses for key in keys):
        return not barriers
    return any(
        not any(start < barrier < stop for start, stop in way for barrier in barriers)
        for begin in known.accesses[keys[0]]
        for end in known.accesses[keys[1]]
        for way in _ways(begin, end, known.loops)
    )


def _key(place: Place) -> tuple[str, int, str]:
    site, kind = place
    line = site.line()
    return PurePath(line.file).name, line.line, kind


def _ways(begin: int, end: int, loops: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield the ranges that a program passes from one position to another, per way."""
    if begin < end:
        yield [(begin, end)]
    around = [(top, bottom) for top, bottom in loops if top < min(begin, end)]
    around = [(top, bottom) for top, bottom in around if max(begin, end) < bottom]
    if around:  # Into the next iteration of the innermost loop.
        top, bottom = max(around)
        yield [(begin, bottom), (top, end)]


def _parsed(assembly: str) -> _Assembly:
    found = _Assembly({}, [], [], [])
    labels: dict[str, int] = {}
    lines = assembly.splitlines()
    for position, (text, place) in enumerate(zip(lines, _source_lines(lines), strict=True)):
        if match := _LABEL.match(text):
            labels[match[1]] = position
        elif match := _BRANCH.search(text):
            if match[1] in labels:
                found.loops.append((labels[match[1]], position))
        elif _BARRIER.search(text):
            found.barriers.append(position)
        elif _SHUFFLE.search(text):
            found.shuffles.append(position)
        else:
            for kind, pattern in _KINDS.items():
                if pattern.search(text):
                    found.accesses.setdefault((*place, kind), []).append(position)
    return found


def _source_lines(lines: list[str]) -> list[tuple[str, int]]:
    """Return the file name and line in the source of each line of assembly."""
    matches = filter(None, map(_FILE.match, lines))
    files = {match[1]: PurePath(match[3] or match[2]).name for match in matches}
    result, place, is_inline = [], ("", 0), False
    for text in lines:
        match = _LOC.match(text)
        if match and not is_inline:  # Inside, each line of inline assembly counts one on.
            place = files.get(match[1], ""), int(match[2])
        elif "inline asm" in text:
            is_inline = "begin" in text
        result.append(place)
    return result
