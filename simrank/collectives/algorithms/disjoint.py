"""Rings through all ranks that have no directed link in common: what a full mesh has room for.

On n devices of which each has a link to each other one, n - 1 directed rings use every link once,
but for 4 and 6 devices, where n - 2 do.

Source:
    Tillson, "A Hamiltonian decomposition of K*_2m, 2m >= 8", JCT B 29(1), 1980; found here by a
    search, which takes milliseconds up to 16 devices.
"""

from functools import lru_cache

import numpy as np

from simrank.collectives.schedule import IntArray

MAX_RANKS = 16  # Assumed: no node has more devices without a switch.
_WITHOUT_DECOMPOSITION = (4, 6)
_MAX_STEPS = 100_000  # Then it begins anew, in another order.


@lru_cache(maxsize=MAX_RANKS)
def disjoint_rings(num_ranks: int) -> IntArray:
    """Return rings of which no two send from one rank to the same other one.

    Shapes: (C rings, n ranks)
        returns: [C, n]

    Args:
        num_ranks: n, from 2 to `MAX_RANKS`.
    """
    num_rings = num_ranks - (2 if num_ranks in _WITHOUT_DECOMPOSITION else 1)
    seed = 0
    while True:
        found = _Search(num_ranks, num_rings, seed).run()
        if found is not None:
            return np.array(found, dtype=np.int64)
        seed += 1


class _Search:
    """Depth first: a ring is extended by the rank from which the fewest links are left."""

    def __init__(self, num_ranks: int, num_rings: int, seed: int) -> None:
        self._num_ranks, self._num_rings = num_ranks, num_rings
        self._free = [set(range(num_ranks)) - {rank} for rank in range(num_ranks)]
        self._rings: list[list[int]] = []
        self._tie = np.random.default_rng(seed).random
        self._steps_left = _MAX_STEPS

    def run(self) -> list[list[int]] | None:
        """Return the rings, or None if it took too long."""
        return self._rings if self._extend([0]) else None

    def _extend(self, ring: list[int]) -> bool:
        self._steps_left -= 1
        if self._steps_left < 0:
            return False
        if len(ring) == self._num_ranks:
            return self._close(ring)
        following = sorted(
            self._free[ring[-1]].difference(ring),
            key=lambda rank: (len(self._free[rank]), self._tie()),
        )
        return any(self._extend([*ring, rank]) for rank in following)

    def _close(self, ring: list[int]) -> bool:
        links = list(zip(ring, [*ring[1:], ring[0]], strict=True))
        if links[-1][1] not in self._free[links[-1][0]]:
            return False
        for tail, head in links:
            self._free[tail].remove(head)
        self._rings.append(ring)
        if len(self._rings) == self._num_rings or self._extend([0]):
            return True
        self._rings.pop()
        for tail, head in links:
            self._free[tail].add(head)
        return False
