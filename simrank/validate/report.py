"""Reports of failed cases: the ranks' states, and which rank waits for which."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simrank.errors import WorkerFacts, ranks_text
from simrank.validate.current_call import SENDS, message_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simrank.validate.case import Answer

_ANSWERED = ("answered", "raised")  # Stages of `worker`.
_MAX_WAITS = 6
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_SHOWN = _PACKAGE.encode("ascii", "backslashreplace").decode()  # As faulthandler writes paths.
_OWN = tuple(f'File "{os.path.join(_SHOWN, name)}' for name in ("validate", "suites"))


def facts_of(
    rank: int, page: Mapping[str, Any], answer: Answer | None, ended: str = ""
) -> WorkerFacts:
    """Return the facts of a rank."""
    if answer is not None and answer.is_return:
        facts = WorkerFacts(rank, "returned")
    elif answer is not None:
        first = answer.shown.partition("\n")[0]
        facts = WorkerFacts(rank, f"raised {first}", traceback=answer.traceback)
    elif "call" in page:
        call = page["call"]
        facts = WorkerFacts(rank, call_text(call), call.get("file"), call.get("line"), waits=True)
    else:
        last = f", after {call_text(page['last'])}" if "last" in page else ""
        stage = page.get("stage") or "starting"
        facts = WorkerFacts(rank, f"{stage}, in no collective{last}", waits=True)
    if ended:
        return replace(facts, doing=f"{ended} ({facts.doing})", ended=ended, waits=False)
    return facts


def call_text(call: Mapping[str, Any]) -> str:
    """Return `all_reduce #7 on group 'default_pg'`, or `recv from rank 3`."""
    if call.get("is_message"):
        way = "to" if call["op"] in SENDS else "from"
        peers = call["ranks"]
        return f"{call['op']} {way} {f'rank {peers[0]}' if peers else 'any rank'}"
    return f"{call['op']} #{call['seq']} on group '{call['group']}'"


def waits_for(pages: Mapping[int, Mapping[str, Any]]) -> dict[int, tuple[int, ...]]:
    """Return, for each rank that waits in a call, the ranks that have not come to it.

    Args:
        pages: What each rank published, the ranks that answered included.
    """
    found = {}
    for rank, page in pages.items():
        call = call_of(page)
        if call is None:
            continue
        others = [other for other in call.get("ranks", ()) if other != rank and other in pages]
        missing = [other for other in others if not _has_come(rank, call, other, pages[other])]
        if missing:
            found[rank] = tuple(missing)
    return found


def call_of(page: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the call that a rank waits in, or may wait for: the last one, if that was queued."""
    last = page.get("last", {})
    is_open = last.get("is_queued") and page.get("stage") not in _ANSWERED
    found: Mapping[str, Any] | None = page.get("call", last if is_open else None)
    return found


def _has_come(rank: int, call: Mapping[str, Any], other: int, page: Mapping[str, Any]) -> bool:
    theirs = call_of(page) or {}
    counts = page.get("counts", {})
    if call.get("is_message"):
        pair = (rank, other) if call["op"] in SENDS else (other, rank)
        return bool(counts.get(message_key(call["group"], *pair), 0) >= call["seq"])
    group = call["group"]
    if theirs.get("group") == group and theirs.get("seq") == call["seq"]:
        return bool(theirs.get("op") == call["op"])
    return bool(counts.get(group, 0) >= call["seq"])


def never_come(
    pages: Mapping[int, Mapping[str, Any]], waits: Mapping[int, tuple[int, ...]]
) -> bool:
    """Return whether a rank waits for a rank that has ended or made a different call."""
    for rank, others in waits.items():
        call = call_of(pages[rank]) or {}
        for other in others:
            theirs = call_of(pages[other]) or {}
            if pages[other].get("stage") in _ANSWERED:
                return True
            if (theirs.get("group"), theirs.get("seq")) == (call.get("group"), call.get("seq")):
                return True
    return False


def are_in_a_ring(waits: Mapping[int, tuple[int, ...]]) -> bool:
    """Return whether ranks wait for each other in a circle."""
    left = {rank: set(others) for rank, others in waits.items()}
    while ends := [rank for rank, others in left.items() if not others & left.keys()]:
        for rank in ends:
            del left[rank]
    return bool(left)


def waits_text(waits: Mapping[int, tuple[int, ...]]) -> list[str]:
    """Return the text of waits, one line for ranks that wait for the same."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank, others in waits.items():
        alike.setdefault(others, []).append(rank)
    lines = [
        f"{_named(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for {_named(others)}"
        for others, ranks in alike.items()
    ]
    if len(lines) > _MAX_WAITS:
        lines[_MAX_WAITS - 1 :] = [f"and {len(lines) - _MAX_WAITS + 1} more wait for others"]
    return lines


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}"


def stacks_text(written: str) -> str:
    """Return stacks without addresses and without the worker's own frames.

    Args:
        written: What faulthandler wrote.
    """
    kept = [
        line
        for line in written.splitlines()
        if not line.lstrip().startswith((*_OWN, "Extension modules:"))
    ]
    text = re.sub(r"(Current thread|Thread) 0x\w+", r"\1", "\n".join(kept))
    return "" if text.strip().endswith("first):") and "\n" not in text.strip() else text.strip()


def are_even(states: Mapping[int, Mapping[str, Any]]) -> bool:
    """Return whether workers are reusable: equal calls on all, and intact groups.

    A rank that raised before a call that its peers have made would take part in the wrong one.

    Args:
        states: What each rank that took part said with its answer.
    """
    for state in states.values():
        if not state["is_whole"]:
            return False
        for name, count in state["counts"].items():
            members = state["members"].get(name, ())
            if any(states[r]["counts"].get(name, 0) != count for r in members if r in states):
                return False
    return True


def left_behind(states: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the state that a case left and that only new workers are free of, with its ranks.

    Args:
        states: As in `are_even`.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, state in states.items():
        for part in state["left"]:
            ranks_of.setdefault(part, []).append(rank)
    return "; ".join(f"{part} on {_named(ranks)}" for part, ranks in ranks_of.items())
