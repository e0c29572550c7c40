"""What of torch is turned on as the first Context is entered, and off as the last one is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Switch:
    """Among stand-ins, as `(Switch(turn), "is_on", True)`.

    Args:
        turn: Called with whether it is on from now on.
    """

    def __init__(self, turn: Callable[[bool], object]) -> None:
        self._turn = turn
        self._is_on = False

    @property
    def is_on(self) -> bool:
        """Whether it is on; setting it turns it."""
        return self._is_on

    @is_on.setter
    def is_on(self, is_on: bool) -> None:
        self._turn(is_on)
        self._is_on = is_on
