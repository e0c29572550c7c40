"""Closed forms for rings: times after k rounds without playing them.

In a ring, rank q pays `cost[q]` in every round: for its eager message to rank q + 1, which occupies
both of them. So a rank's clock after k rounds is the longest walk that ends there, where each of
the k moves stays at q or goes on from q to q + 1, and either pays `cost[q]`:

    T[p](k) = max over begins b, p - k <= b <= p, of
              A[b] + sum(cost[b .. p-1]) + (k - (p - b)) * (highest cost among b .. p)

because a walk does all its staying at the dearest rank it passes. With few distinct costs, this is
one sliding-window maximum per cost: O(costs * n log n), whatever k is.
"""

import numpy as np

from simrank.collectives.schedule import IntArray

# Above this, sums of costs and sentinels could leave int64; such rings are played round by round.
_LARGEST_PATH_PS = 1 << 60


def is_equal_ring(cost_ps: IntArray, num_rounds: int) -> bool:
    """Return whether all ranks end together: equal costs, and time to hear from everyone.

    Args:
        cost_ps: Cost of each rank's message to the next rank.
        num_rounds: Rounds to play.
    """
    return int(cost_ps.min()) == int(cost_ps.max()) and num_rounds >= len(cost_ps) - 1


def has_closed_form(cost_ps: IntArray, num_rounds: int) -> bool:
    """Return whether `ring_times` is exact in int64 and cheaper than playing every round.

    Args:
        cost_ps: Cost of each rank's message to the next rank.
        num_rounds: Rounds to play.
    """
    num_ranks = len(cost_ps)
    highest = int(cost_ps.max())
    if highest * (3 * num_ranks + num_rounds) >= _LARGEST_PATH_PS:
        return False
    # A window maximum takes about as long as 3 log2(3 n) rounds (measured).
    window_rounds = 3 * (3 * num_ranks).bit_length()
    return len(np.unique(cost_ps)) * window_rounds < num_rounds or num_rounds == 0


def ring_times(start_ps: IntArray, cost_ps: IntArray, num_rounds: int) -> IntArray:
    """Return every rank's clock after a number of rounds of an eager ring.

    Shapes: (n ranks)
        start_ps, cost_ps, returns: [n]

    Args:
        start_ps: Clocks before the first round.
        cost_ps: Cost of each rank's message to the next rank, the same in every round.
        num_rounds: Rounds to play.
    """
    num_ranks = len(start_ps)
    if num_rounds == 0:
        return start_ps
    if is_equal_ring(cost_ps, num_rounds):
        return np.full_like(start_ps, start_ps.max() + num_rounds * int(cost_ps[0]))
    # The ring is unrolled three times. A walk of more than 2 n - 1 ranks never pays: one lap less
    # leaves it passing all ranks still, with n more moves to stay at the dearest.
    cost = np.tile(cost_ps, 3)
    before = np.cumsum(cost) - cost
    last = np.arange(2 * num_ranks, 3 * num_ranks)
    first = last - min(num_rounds, 2 * num_ranks - 1)
    position = np.arange(3 * num_ranks)
    longest = np.full(num_ranks, np.iinfo(np.int64).min)
    for stay in np.unique(cost_ps).tolist():
        # Where a walk ends, it may stay at a rank of this cost or dearer that it has passed.
        passed = np.maximum.accumulate(np.where(cost >= stay, position, -1))[last]
        begun = np.tile(start_ps, 3) - before + position * stay
        walk = _window_max(begun, first, passed) + before[last] + (num_rounds - last) * stay
        longest = np.where(passed >= first, np.maximum(longest, walk), longest)
    return longest


def _window_max(values: IntArray, first: IntArray, last: IntArray) -> IntArray:
    """Return the maximum of `values[first[i] : last[i] + 1]` for each i; any number if empty.

    Two overlapping windows whose length is a power of two cover any other; the table of window
    maxima is doubled in place, so only one level of it exists at a time.
    """
    length = np.maximum(last - first + 1, 1)
    level = np.frexp(length.astype(np.float64))[1] - 1
    found = np.empty_like(first)
    table, width = values, 1
    for number in range(int(level.max()) + 1):
        chosen = np.flatnonzero(level == number)
        left, right = table[first[chosen]], table[last[chosen] - width + 1]
        found[chosen] = np.maximum(left, right)
        if 2 * width > len(values):
            break
        table = np.maximum(table[: len(table) - width], table[width:])
        width *= 2
    return found


def ring_rounds(
    start_ps: IntArray, cost_ps: IntArray, num_rounds: int, *, is_eager: bool
) -> IntArray:
    """Return what `ring_times` returns, by playing every round; also for rendezvous messages.

    Args:
        start_ps: Clocks before the first round.
        cost_ps: Cost of each rank's message to the next rank, the same in every round.
        num_rounds: Rounds to play.
        is_eager: Whether a message leaves without waiting for its receiver.
    """
    clocks = start_ps.copy()
    for _ in range(num_rounds):
        sent = clocks if is_eager else np.maximum(clocks, np.roll(clocks, -1))
        sent = sent + cost_ps
        np.maximum(sent, np.roll(sent, 1), out=clocks)
    return clocks
