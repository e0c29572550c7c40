"""Bytes per link of a run: an observer of copies, messages and collectives."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from simrank.engine.task import SwitchObserver

if TYPE_CHECKING:
    from simrank.device import Operation


class LinkBytes(SwitchObserver):
    """Sum of bytes per link; a collective counts when its first rank ends.

    No operation is kept: it would keep its tensors, and with them the memory of its device.
    """

    def __init__(self) -> None:
        self._total: Counter[str] = Counter()
        self._counted: WeakSet[Any] = WeakSet()  # Calls.

    def on_transfer(
        self, size_bytes: int, links: tuple[str, ...], start_ps: int, end_ps: int
    ) -> None:
        """Add a copy or a message, whenever it was."""
        del start_ps, end_ps
        for link in links:
            self._total[link] += size_bytes

    def on_operation(self, operation: Operation) -> None:
        """Add a collective, as its first rank ends."""
        call = getattr(operation, "call", None)
        if call is None or call in self._counted:
            return
        self._counted.add(call)
        link_name = operation.stream.device.network.cluster.link_name
        for link, size_bytes in call.link_bytes.items():
            self._total[link_name(link)] += size_bytes

    def busiest(self) -> list[tuple[str, int]]:
        """Return links with their bytes, the most first; also of calls that a failure cut off."""
        return sorted(self._total.items(), key=lambda entry: (-entry[1], entry[0]))
