"""Races between lanes of one program: the threads of a program are not in lockstep.

Two lanes that store different values to one element race. A tile that is loaded in another pattern
than it was stored in passes between threads through memory, which needs a barrier. Only the first
accesses of a kernel's first launches are checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.engine import user_site
from simrank.kernels import machine

if TYPE_CHECKING:
    from simrank.device.memory import AddressSpace
    from simrank.engine import CallSite
    from simrank.kernels.machine.arrays import Array, Value
    from simrank.kernels.machine.jit import Jit

_MOST_ACCESSES = 256  # assumed: per launch; a faulty line shows in its first accesses
_MOST_LAUNCHES = 4  # per kernel
_MOST_STORES = 16  # assumed: per program, since its last barrier


class _Tile(NamedTuple):
    """A store of one program at one line: the address of each lane."""

    addresses: Array
    site: CallSite | None


class LaneChecks:
    """Checks lanes of the programs of one launch.

    Args:
        kernel: The kernel's name.
        findings: Receives the findings as keys.
    """

    def __init__(self, kernel: str, findings: dict[str, None]) -> None:
        self._kernel = kernel
        self._findings = findings
        self._num_left = _MOST_ACCESSES
        self._tiles: dict[int, list[_Tile]] = {}  # By program, since its last barrier.

    def stored(self, addresses: Value, values: Value, active: Value | None) -> None:
        """Check a store of the running programs.

        Args:
            addresses: Byte addresses of the elements, [1 or P, *shape], or one address for all
                programs.
            values: The stored values.
            active: Lanes that are not masked off; None for all.
        """
        if self._num_left <= 0:
            return
        self._num_left -= 1
        rows, chosen = _row(addresses, active)
        if len(rows) > 1 and not (rows[1:] > rows[:-1]).all():
            shape = np.broadcast_shapes(np.shape(addresses), np.shape(values))
            given = np.broadcast_to(values, shape)[0].reshape(-1)[chosen]
            self._look_for_two_values(rows, given)
        tiles = self._tiles.setdefault(int(machine.now().ids[0]), [])
        tiles.append(_Tile(rows, user_site()))
        del tiles[:-_MOST_STORES]

    def _look_for_two_values(self, rows: Array, given: Array) -> None:
        order = np.argsort(rows, kind="stable")
        ordered, values = rows[order], given[order]
        is_same = ordered[1:] == ordered[:-1]
        differs = (values[1:] != values[:-1]) & ~((values[1:] != values[1:]) & is_same)
        if not (is_same & differs).any():
            return
        at = int(np.flatnonzero(is_same & differs)[0])
        lanes = sorted(order[at : at + 2].tolist())
        self._find(
            f"lanes {lanes[0]} and {lanes[1]} store different values to one element"
            f"{_at(user_site())}: which of them stays is luck",
            "give each element one lane, or use an atomic",
        )

    def loaded(self, addresses: Value, active: Value | None) -> None:
        """Check a load of the running programs; arguments as in `stored`."""
        tiles = self._tiles.get(int(machine.now().ids[0]))
        if self._num_left <= 0 or not tiles:
            return
        self._num_left -= 1
        rows, _ = _row(addresses, active)
        for tile in tiles:
            if len(rows) == len(tile.addresses) and (rows == tile.addresses).all():
                continue
            _, ours, theirs = np.intersect1d(rows, tile.addresses, return_indices=True)
            if len(ours) and (len(rows) != len(tile.addresses) or (ours != theirs).any()):
                self._find(
                    f"what is stored{_at(tile.site)} is loaded in another pattern"
                    f"{_at(user_site())}: threads read what other threads store",
                    "call tl.debug_barrier() between the two",
                )
                return

    def barrier(self) -> None:
        """Clear the stores of the running programs: their threads have synchronized."""
        self._tiles.pop(int(machine.now().ids[0]), None)

    def _find(self, what: str, cure: str) -> None:
        program = int(machine.now().ids[0])
        text = f"kernel '{self._kernel}', program {program}: {what}\n    to fix: {cure}"
        if not any(known.partition(": ")[2] == text.partition(": ")[2] for known in self._findings):
            self._findings[text] = None


def lanes_of(jit: Jit, space: AddressSpace) -> LaneChecks | None:
    """Return the lane checker of a launch; None once enough launches of the kernel were checked.

    Args:
        jit: The kernel.
        space: Keeps the findings.
    """
    _, number = space.sampled_lanes.get(id(jit), (None, 0))
    if number == _MOST_LAUNCHES:
        return None
    space.sampled_lanes[id(jit)] = jit, number + 1  # Holding `jit` keeps its id unique.
    return LaneChecks(jit.__name__, space.hints)


def _row(addresses: Value, active: Value | None) -> tuple[Array, Array]:
    """Return the addresses and indices of the first program's active lanes."""
    if np.ndim(addresses) == 0:
        return np.atleast_1d(addresses), np.zeros(1, np.int64)
    row = addresses[0].reshape(-1)
    if active is None:
        return row, np.arange(len(row))
    mask = np.broadcast_to(active, np.broadcast_shapes(np.shape(active), addresses.shape))
    chosen = np.flatnonzero(mask[0].reshape(-1))
    return row[chosen], chosen


def _at(site: CallSite | None) -> str:
    return "" if site is None else f" at {site.line()}"
