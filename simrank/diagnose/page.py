"""A page of a hang: a lane of calls for each rank, around the calls that have not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simrank.diagnose.waits import MatchedCalls
from simrank.errors import ranks_text
from simrank.pages import document, section
from simrank.pages.document import LIGHT, Markup, element

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simrank.diagnose import Diagnosis
    from simrank.diagnose.records import Records
    from simrank.diagnose.waits import Waits

_MAX_CALLS = 12  # Of a lane.
_MAX_LANES = 64
_WIDTH, _HEIGHT, _GAP, _LETTER = 104, 22, 8, 7
_MAX_LETTERS = 15


class _Box(NamedTuple):
    """A call in a lane.

    Attributes:
        column: Where: calls that meet stand below each other if their order allows it.
        name: What stands in it.
        title: All of it, shown where the mouse is.
        look: Number of its colour.
        is_over: Whether it has ended.
        meeting: To which calls it belongs.
    """

    column: int
    name: str
    title: str
    look: int
    is_over: bool
    meeting: MatchedCalls


def hang_page(records: Records, waits: Waits, found: Diagnosis) -> str:
    """Return a page: the report, and a lane per rank, of which equal ones are one.

    Args:
        records: Of the job.
        waits: Of its ranks.
        found: What the report says.
    """
    culprits = found.cause.ranks if found.cause is not None else ()
    lanes, looks = _lanes(records)
    equal: dict[tuple[object, ...], list[int]] = {}
    for rank, boxes in sorted(lanes.items()):
        key = (*((b.column, b.name, b.look, b.is_over) for b in boxes), rank in culprits)
        equal.setdefault(key, []).append(rank)
    rows = sorted(equal.values(), key=lambda ranks: (ranks[0] not in culprits, ranks[0]))
    picture = _picture(rows[:_MAX_LANES], lanes, waits, culprits)
    left_out = len(rows) - _MAX_LANES
    said = [
        "An outline is a call that has not ended, a line leads from it to a rank that has not come"
        " to it. Equal lanes are one. Colours are groups; the mouse shows the whole call."
    ]
    said += [f"{left_out} further lanes are not drawn."] if left_out > 0 else []
    texts = [element("p", text) for text in said]
    named = [element("b", name, " ", class_=f"k{look}") for name, look in looks.items()]
    texts.append(element("p", "Groups: ", *named))
    facts = [("kind", found.cause.kind)] if found.cause is not None else []
    parts = [section("The last calls of each rank", *texts, picture)]
    return document("Why a job hangs", facts, parts, report=str(found))


def _lanes(records: Records) -> tuple[dict[int, list[_Box]], dict[str, int]]:
    """Return the last calls of each rank, in columns, and the number of each group's colour."""
    calls = [
        (lane.created_ns[at], rank, at)
        for rank, lane in records.lanes.items()
        for at in range(max(len(lane) - _MAX_CALLS, 0), len(lane))
    ]
    lanes: dict[int, list[_Box]] = {rank: [] for rank in records.lanes}
    columns: dict[MatchedCalls, int] = {}
    kinds: dict[str, int] = {}
    for _, rank, at in sorted(calls):
        lane = records.lanes[rank]
        meeting = MatchedCalls(
            lane.groups[at], lane.numbers[at], lane.sources[at], lane.targets[at]
        )
        after = lanes[rank][-1].column + 1 if lanes[rank] else 0
        column = max(columns.get(meeting, 0), after)
        if not meeting.is_message:
            columns.setdefault(meeting, column)
        group, asked = records.groups[meeting.group], records.asked[lane.asked[at]]
        look = kinds.setdefault(group.title, len(kinds)) % len(LIGHT)
        of = f"{meeting.source} to {meeting.target}" if meeting.is_message else f"#{meeting.number}"
        place = records.place(lane, at) or "a line that was not recorded"
        state = "has ended" if lane.is_over[at] else "has not ended"
        title = f"{asked} {of} of {group.title} ({ranks_text(group.ranks)}) at {place}: {state}"
        name = (
            asked.name if len(asked.name) <= _MAX_LETTERS else f"{asked.name[: _MAX_LETTERS - 2]}.."
        )
        lanes[rank].append(_Box(column, name, title, look, bool(lane.is_over[at]), meeting))
    first = min((boxes[0].column for boxes in lanes.values() if boxes), default=0)
    moved = {r: [b._replace(column=b.column - first) for b in boxes] for r, boxes in lanes.items()}
    return moved, kinds


def _picture(
    rows: list[list[int]],
    lanes: Mapping[int, list[_Box]],
    waits: Waits,
    culprits: tuple[int, ...],
) -> Markup:
    """Return the ranks' names beside their lanes, which scroll and begin at the last calls."""
    row_of = {rank: number for number, ranks in enumerate(rows) for rank in ranks}
    num_columns = 1 + max((box.column for boxes in lanes.values() for box in boxes), default=0)
    names, drawn, longest = [], [], 0
    for number, ranks in enumerate(rows):
        y = number * (_HEIGHT + _GAP) + _GAP
        name = ranks_text(ranks)
        is_culprit = ranks[0] in culprits
        shown = name if len(name) <= _MAX_LETTERS else f"{name[: _MAX_LETTERS - 2]}.."
        longest = max(longest, len(shown))
        names.append(
            element(
                "text",
                shown,
                element("title", f"ranks {name}"),
                y=y + 15,
                class_="what k1" if is_culprit else "what",
                font_weight="700" if is_culprit else None,
                fill="currentColor",
            )
        )
        drawn += [_box(box, y) for box in lanes[ranks[0]]]
        for box in lanes[ranks[0]]:
            wait = None if box.is_over else waits.all.get(box.meeting)
            for absent in sorted({row_of[r] for r in (wait.absent if wait else ()) if r in row_of}):
                drawn.append(_wait(box, y, absent, lanes[rows[absent][0]]))
    height = len(rows) * (_HEIGHT + _GAP) + _GAP
    size = {"height": height, "font_size": 11}
    named = element("svg", *names, width=longest * _LETTER, **size)
    said = {"role": "img", "aria_label": "a lane of calls for each rank"}
    plot = element("svg", *drawn, width=(num_columns + 1) * _WIDTH, **size, **said, class_="lanes")
    return element("div", named, element("div", plot, class_="scroll last"), class_="named-lanes")


def _box(box: _Box, y: int) -> Markup:
    x = box.column * _WIDTH
    return element(
        "g",
        element("title", box.title),
        element(
            "rect",
            x=x,
            y=y,
            width=_WIDTH - _GAP,
            height=_HEIGHT,
            rx=4,
            fill="currentColor",
            fill_opacity="0.25" if box.is_over else "0",
            stroke="currentColor",
            stroke_width=1 if box.is_over else 2,
            stroke_dasharray=None if box.is_over else "4 3",
        ),
        element("text", box.name, x=x + 5, y=y + 15, fill="var(--ink)"),
        class_=f"k{box.look}",
    )


def _wait(box: _Box, y: int, row: int, boxes: list[_Box]) -> Markup:
    """Return a line from a call to the end of the lane of a rank that has not come."""
    start_x = box.column * _WIDTH + (_WIDTH - _GAP) / 2
    last = boxes[-1].column + 1 if boxes else 0
    end_x, end_y = last * _WIDTH, row * (_HEIGHT + _GAP) + _GAP + _HEIGHT / 2
    middle = f"{start_x:g} {(y + end_y) / 2:g} {end_x + 40:g} {end_y:g}"
    path = f"M{start_x:g} {y} C{middle} {end_x:g} {end_y:g}"
    return element("path", d=path, class_="mark", fill="none", stroke_dasharray="2 3")
