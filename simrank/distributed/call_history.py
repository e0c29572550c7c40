"""The last calls of each rank: what a report of a failed run looks for odd steps in."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.engine import CallSite, SourceLine
    from simrank.errors import OddStep

    class _Group(Protocol):
        name: str
        ranks: Sequence[int]


_MAX_CALLS = 2000  # Of a rank, as many as torch's flight recorder keeps.
_MAX_CALLS_OF_ALL = 2**20  # Assumed: 8 bytes each, over all ranks.
_MIN_CALLS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Called:
    """A call of a group's function at one line; there is one such object for each.

    Attributes:
        name: The function's name.
        place: Its line.
        groups: The members of each group that it has been made in; () if it is a message.
    """

    name: str
    place: SourceLine
    groups: set[Sequence[int]] = field(default_factory=set)

    def __str__(self) -> str:
        """Return `all_reduce at train.py:12`."""
        return f"{self.name} at {self.place}"


class CallHistory:
    """The last calls of each rank of a run, in its order, as lines.

    Args:
        num_ranks: How many ranks there are.
    """

    __slots__ = ("_called", "_known", "_max_calls", "_of_rank", "_sites")

    def __init__(self, num_ranks: int) -> None:
        self._max_calls = most = min(
            max(_MAX_CALLS_OF_ALL // max(num_ranks, 1), _MIN_CALLS), _MAX_CALLS
        )
        self._known: dict[tuple[int, int, str, str], Called] = {}
        self._sites: list[CallSite] = []
        self._called: dict[tuple[SourceLine, str], Called] = {}
        self._of_rank: defaultdict[int, deque[Called]] = defaultdict(partial(deque, maxlen=most))

    def note(self, rank: int, site: CallSite | None, name: str, group: _Group | None) -> None:
        """Note a call.

        Args:
            rank: The rank.
            site: Its line; None: a library's own thread has made it.
            name: The function's name.
            group: The group that must make the call; None: it is a message.
        """
        if site is not None:
            group_name = "" if group is None else group.name
            try:
                called = self._known[id(site[0]), site[1], name, group_name]
            except KeyError:
                called = self._learn(site, name, group)
            self._of_rank[rank] += (called,)  # As `append`, without a call of Python's.

    def _learn(self, site: CallSite, name: str, group: _Group | None) -> Called:
        """Return the call of a site: ranks may have copies of a module, with equal lines."""
        self._sites.append(site)  # Its code stays alive, and its id its own.
        place = site.line()
        called = self._called.setdefault((place, name), Called(name, place))
        called.groups.add(() if group is None else tuple(group.ranks))
        self._known[id(site[0]), site[1], name, "" if group is None else group.name] = called
        return called

    def oddest(self) -> OddStep | None:
        """Return the step of one rank, or a few, that is most unlike all others; or None."""
        from simrank.distributed.odd_steps import oddest_step  # noqa: PLC0415 - few runs fail

        histories = {rank: [*calls] for rank, calls in sorted(self._of_rank.items())}
        whole = all(len(calls) < self._max_calls for calls in histories.values())
        return oddest_step(histories, are_whole=whole)
