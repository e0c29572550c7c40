"""Bytes per link of a run: an observer of copies, messages and collectives."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from simrank.engine.task import SwitchObserver

if TYPE_CHECKING:
    from simrank.device import Operation


class LinkBytes(SwitchObserver):
    """Sum of bytes per link; a collective counts when its last rank ends."""

    def __init__(self) -> None:
        self._total: Counter[str] = Counter()
        self._parts: dict[Any, tuple[int, Operation]] = {}  # Of calls that have not ended.

    def on_transfer(
        self, size_bytes: int, links: tuple[str, ...], start_ps: int, end_ps: int
    ) -> None:
        """Add a copy or a message, whenever it was."""
        del start_ps, end_ps
        for link in links:
            self._total[link] += size_bytes

    def on_operation(self, operation: Operation) -> None:
        """Note the end of a rank's part of a collective."""
        call = getattr(operation, "call", None)
        if call is None:
            return
        num_ended = self._parts.pop(call, (0, operation))[0] + 1
        if num_ended == call.group.size():
            _add(self._total, call, operation)
        else:
            self._parts[call] = num_ended, operation

    def busiest(self) -> list[tuple[str, int]]:
        """Return links with their bytes, the most first; also of calls that a failure cut off."""
        total = self._total.copy()
        for call, (_, operation) in self._parts.items():
            _add(total, call, operation)
        return sorted(total.items(), key=lambda entry: (-entry[1], entry[0]))


def _add(total: Counter[str], call: Any, operation: Operation) -> None:  # noqa: ANN401 - a Call
    link_name = operation.stream.device.network.cluster.link_name
    for link, size_bytes in call.link_bytes.items():
        total[link_name(link)] += size_bytes
