"""Loops of kernels that may wait: asked before every round whether the program should be parked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.kernels import machine

if TYPE_CHECKING:
    from simrank.kernels.programs import ProgramSync


class Spin:
    """A loop of a kernel that may wait: asked before every round."""

    __slots__ = ("_effects", "_is_pure", "_sync")

    def __init__(self, *, is_pure: bool) -> None:
        self._is_pure = is_pure
        self._sync: ProgramSync | None = machine.now().sync
        self._effects = -1

    def again(self) -> bool:
        """Return True; before that, wait if the last round has changed nothing."""
        sync = self._sync
        if sync is None:
            return True
        if self._effects < 0:
            sync.enter_spin()
        else:
            sync.next_round(self._effects, is_pure=self._is_pure)
        self._effects = sync.num_effects
        return True

    def over(self) -> None:
        """Note the end of the loop."""
        if self._sync is not None and self._effects >= 0:
            self._sync.leave_spin()


def pure_spin() -> Spin:
    """Return the guard of a loop that only looks."""
    return Spin(is_pure=True)


def counting_spin() -> Spin:
    """Return the guard of a loop that looks, and counts or backs off."""
    return Spin(is_pure=False)
