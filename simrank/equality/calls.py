"""The collectives and messages of a run, in the order of the tensors that passed modules."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from simrank.distributed.flight_recorder import FlightRecorder
from simrank.equality.record import next_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simrank.distributed.flight_recorder import Entry
    from simrank.distributed.group import ProcessGroup
    from simrank.distributed.p2p import End
    from simrank.distributed.request import Request
    from simrank.equality.layout import Layout

_WRAPPERS = "typing_extensions.py"
_BATCH = "coalesced"  # The end of a batch of messages.
# Names of torch's records -> those of its functions.
_NAMES = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}
_MAX_NAMED = 3  # Calls in a line of a report.


@dataclass(frozen=True)
class Call:
    """A call of a process group.

    Attributes:
        name: The collective or message, such as `all_reduce`.
        group: Ranks of the group.
        place: Line of the program; "" where there is none.
        order: Its number among all tensors and calls, in the order of the run.
        count: Elements that the rank gives to it.
    """

    name: str
    group: tuple[int, ...]
    place: str
    order: int
    count: int = 0

    def text(self, layout: Layout) -> str:
        """Return `all_reduce on tp at layers.py:8`."""
        axes = layout.axes_of(self.group)
        over = "/".join(axes) if axes else f"ranks {', '.join(map(str, self.group))}"
        return f"{self.name} on {over}" + (f" at {self.place}" if self.place else "")


class CallLog(FlightRecorder):
    """Records the calls of each rank in memory.

    Attributes:
        calls: By rank.
    """

    def __init__(self) -> None:
        super().__init__("")
        self.calls: dict[int, list[Call]] = defaultdict(list)

    def collective(self, group: ProcessGroup, rank: int, backend: str, request: Request) -> Entry:
        """Note a collective."""
        entry = super().collective(group, rank, backend, request)
        self._note(rank, [entry])
        return entry

    def messages(
        self, group: ProcessGroup, rank: int, backend: str, ends: Sequence[End]
    ) -> list[Entry]:
        """Note a message, or a batch of them."""
        entries = super().messages(group, rank, backend, ends)
        self._note(rank, entries)
        return entries

    def _note(self, rank: int, entries: Iterable[Entry]) -> None:
        for entry in entries:
            name = entry.facts["profiling_name"].partition(":")[2].partition(" ")[0]
            if name == _BATCH:
                continue
            ranks = tuple(int(each) for each in entry.log.group.ranks)
            # A wrapper of deprecated functions is no line of the program.
            lines = (str(site.line()) for site in entry.stack)
            place = next((line for line in lines if not line.startswith(_WRAPPERS)), "")
            count = sum(prod(shape) for shape in entry.facts["input_sizes"])
            name = _NAMES.get(name, name)
            self.calls[rank].append(Call(name, ranks, place, next_number(), count))

    def write(self) -> None:
        """Write nothing: the calls are read from memory."""


def calls_text(calls: Iterable[Call], layout: Layout) -> str:
    """Return `all_reduce on tp at layers.py:8 (4 times), ...`, the most frequent first."""
    counts = Counter(call.text(layout) for call in calls)
    named = [
        text if count == 1 else f"{text} ({count} times)"
        for text, count in counts.most_common(_MAX_NAMED)
    ]
    return ", ".join(named) + (", ..." if len(counts) > _MAX_NAMED else "")
