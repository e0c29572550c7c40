"""Closed forms for rings: times after k rounds without playing them.

In a ring, rank q sends one eager message to rank q + 1 in every round. It is busy for `stay[q]`,
and rank q + 1 has the message after `move[q]`, which is never less. So a rank's clock after k
rounds is the longest walk that ends there, where each of the k moves either stays at q and pays
`stay[q]`, or goes on from q to q + 1 and pays `move[q]`:

    T[p](k) = max over begins b, p - k <= b <= p, of
              A[b] + sum(move[b .. p-1]) + (k - (p - b)) * (highest stay among b .. p)

because a walk does all its staying at the dearest rank it passes. With few distinct stays, this is
one sliding-window maximum per stay: O(stays * n log n), for any k. A walk that has passed every
rank stays at the dearest of all, so each further lap gains the same: either no such lap pays, or as
many as fit. With one stay for all, further moves never lose, and the longest walks alone decide:
O(n).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simrank.collectives.schedule import IntArray

# Above this, sums of costs and sentinels could leave int64; such rings are played round by round.
_LARGEST_PATH_PS = 1 << 60
_NEVER = -(1 << 62)  # Below every walk, and costs can still be taken from it.


class RingCosts(NamedTuple):
    """Costs of each rank's message to the next rank, equal in every round.

    Attributes:
        stay_ps: How long the sender is busy.
        move_ps: After how long the receiver has it; at least `stay_ps`.
    """

    stay_ps: IntArray
    move_ps: IntArray

    @property
    def num_ranks(self) -> int:
        """Ranks of the ring."""
        return int(self.stay_ps.shape[-1])

    @property
    def has_one_stay(self) -> bool:
        """Whether all senders are busy for the same time."""
        return int(self.stay_ps.min()) == int(self.stay_ps.max())


class RingRounds(NamedTuple):
    """Rounds of a ring with equal messages.

    Attributes:
        step_bytes: Bytes of a message.
        num_rounds: How many.
        num_free: How many of them find room in the buffer before its receiver has begun; None: a
            message is larger than that, and waits for its receiver.
    """

    step_bytes: int
    num_rounds: int
    num_free: int | None


def play_phase(
    begun_ps: IntArray, runs: Sequence[RingRounds], costs: Sequence[RingCosts]
) -> IntArray:
    """Return the clocks of some rings after the rounds of a phase.

    A rank whose data finds no room sends it from when its receiver has begun on: those are the
    walks that begin then, in that round, at the sender.

    Shapes: (R rings of m ranks each)
        begun_ps, each of costs, returns: [R, m]

    Args:
        begun_ps: Clocks before the first round.
        runs: The rounds.
        costs: What the messages of each run cost.
    """
    clocks = begun_ps
    receiver_ps: IntArray | None = None
    for (_, num_rounds, num_free), cost in zip(runs, costs, strict=True):
        before = clocks
        clocks = play_rings(before, cost, num_rounds, is_eager=num_free is not None)
        if num_free is None or num_free == num_rounds:
            continue
        if receiver_ps is None:
            receiver_ps = np.roll(begun_ps, -1, axis=-1)
        if (before + num_free * cost.stay_ps < receiver_ps).any():
            held = play_rings(receiver_ps, cost, num_rounds - num_free, is_eager=True)
            clocks = np.maximum(clocks, held)
    return clocks


def play_rings(
    start_ps: IntArray, costs: RingCosts, num_rounds: int, *, is_eager: bool
) -> IntArray:
    """Return the clocks of some rings after some rounds, by the cheapest way that is exact.

    Shapes: (R rings of m ranks each)
        start_ps, costs, returns: [R, m]

    Args:
        start_ps: Clocks before the first round.
        costs: Costs of the rings.
        num_rounds: Rounds to play.
        is_eager: Whether a message leaves without waiting for its receiver.
    """
    if len(start_ps) > 1 and is_eager and _have_one_stay(costs, num_rounds):
        return _longest_walks(start_ps, costs, num_rounds)
    ended = np.empty_like(start_ps)
    for ring, start in enumerate(start_ps):
        ended[ring] = _play_ring(
            start, RingCosts(*(each[ring] for each in costs)), num_rounds, is_eager=is_eager
        )
    return ended


def _have_one_stay(costs: RingCosts, num_rounds: int) -> bool:
    """Return whether on each of some rings all senders are busy for the same time, long enough."""
    highest = int(costs.move_ps.max())
    is_small = highest * (3 * costs.num_ranks + num_rounds) < _LARGEST_PATH_PS
    is_one = bool((costs.stay_ps == costs.stay_ps[:, :1]).all())
    return is_small and is_one and num_rounds >= costs.num_ranks - 1


def _play_ring(start: IntArray, costs: RingCosts, num_rounds: int, *, is_eager: bool) -> IntArray:
    """Return the clocks of a ring after some rounds."""
    if is_equal_ring(costs, num_rounds) or (is_eager and has_closed_form(costs, num_rounds)):
        return ring_times(start, costs, num_rounds)
    return ring_rounds(start, costs, num_rounds, is_eager=is_eager)


def is_equal_ring(costs: RingCosts, num_rounds: int) -> bool:
    """Return whether all ranks end together: equal costs, and time to hear from everyone.

    Args:
        costs: Costs of the ring.
        num_rounds: Rounds to play.
    """
    if num_rounds < costs.num_ranks - 1:
        return False
    return int(costs.stay_ps.min()) == int(costs.move_ps.max())


def has_closed_form(costs: RingCosts, num_rounds: int) -> bool:
    """Return whether `ring_times` is exact in int64 and cheaper than playing every round.

    Args:
        costs: Costs of the ring.
        num_rounds: Rounds to play.
    """
    highest = int(costs.move_ps.max())
    if highest * (3 * costs.num_ranks + num_rounds) >= _LARGEST_PATH_PS:
        return False
    if num_rounds == 0 or (num_rounds >= costs.num_ranks - 1 and costs.has_one_stay):
        return True
    # A window maximum takes about as long as 3 log2(3 n) rounds (measured).
    window_rounds = 3 * (3 * costs.num_ranks).bit_length()
    return len(np.unique(costs.stay_ps)) * window_rounds < num_rounds


def ring_times(start_ps: IntArray, costs: RingCosts, num_rounds: int) -> IntArray:
    """Return every rank's clock after a number of rounds of an eager ring.

    Shapes: (n ranks)
        start_ps, returns: [n]

    Args:
        start_ps: Clocks before the first round.
        costs: Costs of the ring.
        num_rounds: Rounds to play.
    """
    num_ranks = len(start_ps)
    if num_rounds == 0:
        return start_ps
    if is_equal_ring(costs, num_rounds):
        return np.full_like(start_ps, start_ps.max() + num_rounds * int(costs.stay_ps[0]))
    if num_rounds >= num_ranks - 1 and costs.has_one_stay:
        return _longest_walks(start_ps, costs, num_rounds)
    longest = _short_walks(start_ps, costs, num_rounds)
    lap_gain = int(costs.move_ps.sum()) - num_ranks * int(costs.stay_ps.max())
    if num_rounds > 2 * num_ranks - 2 and lap_gain > 0:
        longest = np.maximum(longest, _longest_walks(start_ps, costs, num_rounds))
    return longest


def _short_walks(start_ps: IntArray, costs: RingCosts, num_rounds: int) -> IntArray:
    """Return the longest walks of at most 2 n - 2 moves, on the ring unrolled three times.

    A longer one has a walk of a lap less that passes all ranks still.
    """
    num_ranks = len(start_ps)
    stays, moves = np.tile(costs.stay_ps, 3), np.tile(costs.move_ps, 3)
    before = np.cumsum(moves) - moves
    last = np.arange(2 * num_ranks, 3 * num_ranks)
    first = last - min(num_rounds, 2 * num_ranks - 2)
    position = np.arange(3 * num_ranks)
    longest = np.full(num_ranks, np.iinfo(np.int64).min)
    for stay in np.unique(costs.stay_ps).tolist():
        # Where a walk ends, it may stay at a rank of this stay or dearer that it has passed.
        passed = np.maximum.accumulate(np.where(stays >= stay, position, -1))[last]
        begun = np.tile(start_ps, 3) - before + position * stay
        walk = _window_max(begun, first, passed) + before[last] + (num_rounds - last) * stay
        longest = np.where(passed >= first, np.maximum(longest, walk), longest)
    return longest


def _longest_walks(start_ps: IntArray, costs: RingCosts, num_rounds: int) -> IntArray:
    """Return the longest among the walks of k - n + 1 to k moves: one from each begin.

    All of them must stay, if at all, for the highest stay; they do where all stays are equal, and
    where they pass every rank. The begins of a walk to p are the n ranks from p - k on; those that
    lie in the next lap have one lap less to go. For several rings, one per row, all at once.
    """
    num_ranks = costs.num_ranks
    rank = np.arange(num_ranks)
    stay = costs.stay_ps.max(axis=-1, keepdims=True)
    before = np.cumsum(costs.move_ps, axis=-1) - costs.move_ps
    lap = costs.move_ps.sum(axis=-1, keepdims=True)
    begun = start_ps - before + rank * stay
    in_this_lap = np.maximum.accumulate(begun[..., ::-1], axis=-1)[..., ::-1]
    in_next_lap = np.full_like(start_ps, _NEVER)
    later = np.maximum.accumulate(begun, axis=-1)[..., :-1]
    in_next_lap[..., 1:] = later - (lap - num_ranks * stay)
    # Position r: the walks whose first begin is rank r; they end at rank r + k.
    begun = np.maximum(in_this_lap, in_next_lap) - rank * stay
    begun += (rank + num_rounds) // num_ranks * lap
    ended: IntArray = np.roll(begun, num_rounds % num_ranks, axis=-1) + before
    return ended


def _window_max(values: IntArray, first: IntArray, last: IntArray) -> IntArray:
    """Return the maximum of `values[first[i] : last[i] + 1]` for each i; any number if empty.

    Two overlapping windows whose length is a power of two cover any other; the table of window
    maxima is doubled in place, so only one level of it exists at a time.
    """
    length = np.maximum(last - first + 1, 1)
    level = np.frexp(length.astype(np.float64))[1] - 1
    result = np.empty_like(first)
    table, width = values, 1
    for number in range(int(level.max()) + 1):
        chosen = np.flatnonzero(level == number)
        left, right = table[first[chosen]], table[last[chosen] - width + 1]
        result[chosen] = np.maximum(left, right)
        if 2 * width > len(values):
            break
        table = np.maximum(table[: len(table) - width], table[width:])
        width *= 2
    return result


def ring_rounds(
    start_ps: IntArray, costs: RingCosts, num_rounds: int, *, is_eager: bool
) -> IntArray:
    """Return the result of `ring_times` by playing every round; also for rendezvous messages.

    Args:
        start_ps: Clocks before the first round.
        costs: Costs of the ring.
        num_rounds: Rounds to play.
        is_eager: Whether a message leaves without waiting for its receiver.
    """
    clocks = start_ps.copy()
    for _ in range(num_rounds):
        ready = clocks if is_eager else np.maximum(clocks, np.roll(clocks, -1))
        clocks = np.maximum(ready + costs.stay_ps, np.roll(ready + costs.move_ps, 1))
    return clocks
