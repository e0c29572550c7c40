"""Equal calls that ranks make in opposite orders: values are swapped, and nothing fails.

Each call that the lines are followed of has labels: its line, and the places in containers of the
program that hold its tensor, such as `grads['bias']`. Two calls are swapped where one rank gives
first what another one gives second. Ranks that take the two branches of one `if` for a call, as in
a rotation of roles, are passed over.
"""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from simrank.device.tensors.printing import address_of
from simrank.engine import SourceLine
from simrank.errors import RankState

if TYPE_CHECKING:
    from types import FrameType

    from simrank.distributed.group import ProcessGroup
    from simrank.distributed.request import Request, Signature

# Calls to which members contribute parts that belong together; of others each gives its own.
_ALIKE = frozenset(("all_reduce", "broadcast", "reduce", "reduce_scatter"))
_WINDOW = 8  # Assumed: how far apart swapped calls may be.
_MAX_PENDING = 1024  # Assumed: calls of a group that not all members have made.
_MAX_HELD = 1024  # Assumed: larger containers are not searched.
_MAX_FOUND = 16


class _Given(NamedTuple):
    """A rank's argument of a call: its line and the tensor's name in the program."""

    line: SourceLine
    labels: frozenset[str]


class _Call(NamedTuple):
    """A call of all members of a group."""

    seq: int
    signature: Signature
    by_rank: dict[int, _Given]


class Swaps:
    """The latest calls of each group, and swapped ones.

    Attributes:
        found: What findings say of them.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[str, SourceLine], str] = {}
        self._pending: WeakKeyDictionary[ProcessGroup, dict[int, _Call]] = WeakKeyDictionary()
        self._latest: WeakKeyDictionary[ProcessGroup, list[_Call]] = WeakKeyDictionary()

    def note(self, group: ProcessGroup, rank: int, request: Request, frame: FrameType) -> None:
        """Record a call before it is matched; compare the last member's with the earlier ones."""
        signature, seq = request.signature, group.num_calls(group.group_rank(rank)) + 1
        if signature.op not in _ALIKE or request.is_staged:
            return
        pending = self._pending.setdefault(group, {})
        call = pending.setdefault(seq, _Call(seq, signature, {}))
        if call.signature == signature:  # Else it is a mismatch.
            line = SourceLine(frame.f_code.co_filename, frame.f_lineno)
            call.by_rank[rank] = _Given(line, _labels(address_of(request.source), frame))
        if len(call.by_rank) == group.size():
            del pending[seq]
            latest = self._latest.setdefault(group, [])
            for before in latest:
                if before.signature == signature:
                    self._compare(group, before, call)
            latest[:] = [*latest[1 - _WINDOW :], call]
        elif len(pending) > _MAX_PENDING:
            del pending[next(iter(pending))]

    def _compare(self, group: ProcessGroup, first: _Call, second: _Call) -> None:
        ours, *others = sorted(first.by_rank)
        for theirs in others:
            pair = _swapped(first, second, ours, theirs)
            key = (group.name, first.by_rank[ours].line)
            if pair is None or key in self.found or len(self.found) >= _MAX_FOUND:
                continue
            numbers = f"{first.signature.op} #{first.seq} and #{second.seq} on '{group.name}'"
            one, other = pair
            reported = [
                RankState((ours,), f"first {one}, then {other}", *first.by_rank[ours].line),
                RankState((theirs,), f"first {other}, then {one}", *first.by_rank[theirs].line),
            ]
            self.found[key] = (
                f"equal calls in opposite orders (suspected), {numbers}: "
                f"{reported[0]}; {reported[1]}"
            )


def _swapped(first: _Call, second: _Call, ours: int, theirs: int) -> tuple[str, str] | None:
    """Return the labels that two ranks give in opposite orders, or None."""
    ours_first, ours_second = first.by_rank[ours], second.by_rank[ours]
    theirs_first, theirs_second = first.by_rank[theirs], second.by_rank[theirs]
    ones = (ours_first.labels - theirs_first.labels) & (theirs_second.labels - ours_second.labels)
    twos = (theirs_first.labels - ours_first.labels) & (ours_second.labels - theirs_second.labels)
    if not ones or not twos or _are_branches(ours_first.line, theirs_first.line):
        return None
    return _clearest(ones), _clearest(twos)


def _clearest(labels: frozenset[str]) -> str:
    """Return the place in a container where there is one, and else the line."""
    return min(labels, key=lambda label: (not label.endswith("]"), label))


def _labels(address: int | None, frame: FrameType) -> frozenset[str]:
    """Return the program's names of a tensor, and the running line."""
    labels = {f"line {frame.f_lineno}"}
    if address is not None:
        for name, value in list(frame.f_locals.items()):
            labels.update(_in_container(name, value, address))
    return frozenset(labels)


def _in_container(name: str, value: object, address: int) -> list[str]:
    if type(value) is dict:
        items = list(value.items()) if len(value) <= _MAX_HELD else []
    elif type(value) in (list, tuple):
        held: list[object] = list(value)  # type: ignore[call-overload]
        items = list(enumerate(held)) if len(held) <= _MAX_HELD else []
    else:
        return []
    found = [key for key, each in items if type(key) in (str, int) and address_of(each) == address]
    return [f"{name}[{key!r}]" for key in found]


@lru_cache(maxsize=64)
def _are_branches(one: SourceLine, other: SourceLine) -> bool:
    """Return whether two lines stand on the two sides of one `if`."""
    if one.file != other.file or one.line == other.line:
        return False
    try:
        tree = ast.parse("".join(linecache.getlines(one.file)))
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.orelse:
            sides = [
                (_contains(node.body, place.line), _contains(node.orelse, place.line))
                for place in (one, other)
            ]
            if sorted(sides) == [(False, True), (True, False)]:
                return True
    return False


def _contains(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)
