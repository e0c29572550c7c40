"""Guards of loops in kernels that may wait, called before every round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrank.device.watch import COMPARE
from simrank.kernels import machine
from simrank.kernels.values.block import Block

if TYPE_CHECKING:
    from simrank.kernels.machine.protocols import Sync


class Spin:
    """The guard of a loop that may wait, called before every round."""

    __slots__ = ("_effects", "_for_value", "_is_pure", "_sync")

    def __init__(self, *, is_pure: bool, for_value: bool) -> None:
        self._is_pure = is_pure
        self._for_value = for_value
        self._sync: Sync | None = machine.now().sync
        self._effects = 0
        if self._sync is not None:
            self._sync.enter_spin()
            self._effects = self._sync.num_effects

    def again(self) -> bool:
        """Return True; wait first if the last round has changed nothing.

        It is asked after the loop's own test: what was read last may have ended the loop.
        """
        sync = self._sync
        if sync is not None:
            sync.next_round(self._effects, is_pure=self._is_pure)
            self._effects = sync.num_effects
        return True

    def over(self) -> None:
        """Record the end of the loop."""
        if self._sync is not None:
            self._sync.leave_spin(for_value=self._for_value)


def waiting(comparison: str, left: object, right: object, kind: str) -> object:
    """Return the result of a loop's comparison, and record its operands.

    Args:
        comparison: By the name of Python's tree.
        left: What the loop looked at.
        right: What it is compared with.
        kind: "look" or "change" where `left` is what one read, or one atomic that may change it,
            has found, and `right` stays the same; else "".
    """
    sync = machine.now().sync
    if sync is not None:
        bound: object = right.values if type(right) is Block else right
        if isinstance(bound, int | np.integer | np.bool_):
            if sync.races is not None:
                sync.races.tested(comparison, int(bound))
            if kind and type(left) is Block and left.element.kind in "iu":
                sync.tests(comparison, int(bound), left.element.memory, changes=kind == "change")
    result: object = COMPARE[comparison](left, right)
    return result


def spin(is_pure: bool, for_value: bool) -> Spin:
    """Return the guard of a loop.

    Args:
        is_pure: It only looks; it neither counts nor backs off.
        for_value: It ends when what it looks at has a value, not when it is past one.
    """
    return Spin(is_pure=is_pure, for_value=for_value)
