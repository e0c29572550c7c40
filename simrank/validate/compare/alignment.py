"""Which calls of one side are which of the other: gloo makes some collectives of others.

torch's recorder sits inside of gloo's process group, below that; the simulator's records what was
asked for. nccl records that, too, so its calls are compared one by one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.validate.compare.job import Issued

# Source: ProcessGroupGloo of torch 2.13, and simrank.torch.sparse.
_SPARSE = "sparse_all_reduce"
_PER_SPARSE = 3  # How many are non-zero, where, and what.


def first_parting(
    mine: Sequence[Issued], theirs: Sequence[Issued], backend: str
) -> tuple[int, int] | None:
    """Return the places of the first calls that differ, or None; a place may be behind the end.

    Args:
        mine: The simulated rank's.
        theirs: The real one's.
        backend: "gloo" or "nccl".
    """
    i = j = 0
    while i < len(mine) and j < len(theirs):
        taken = (1, 1) if mine[i] == theirs[j] else None
        if taken is None and backend == "gloo":
            taken = next(_made_by_gloo(mine[i:], theirs[j:]), None)
        if taken is None:
            return i, j
        i, j = i + taken[0], j + taken[1]
    return None if i == len(mine) and j == len(theirs) else (i, j)


def _made_by_gloo(mine: Sequence[Issued], theirs: Sequence[Issued]) -> Iterator[tuple[int, int]]:
    """Yield how many calls of each side are the same ones, if the first are."""
    one, other = mine[0], theirs[0]
    if one.ranks != other.ranks:
        return
    if (one.op, other.op) == ("reduce_scatter", "all_reduce"):
        for num in _nums(one):
            if _are(theirs[:num], num, other) and _total(theirs[:num]) == Counter(one.elements):
                yield 1, num
    elif one.op == other.op == "all_gather":  # What a single output holds is not recorded.
        num = len(other.inputs)
        if _are(mine[:num], num, one) and _total(mine[:num]) == Counter(other.elements):
            yield num, 1
    elif other.op == _SPARSE and one.op == "all_gather" and _are(mine[:3], _PER_SPARSE, one):
        yield _PER_SPARSE, 1


def _nums(one: Issued) -> tuple[int, ...]:
    """Return how many calls a reduce_scatter may be: one for each tensor of a list, or one."""
    size = len(one.ranks)
    if any(one.elements.values()):
        return 1, size  # Which one is told by what they reduce.
    is_list = len(one.inputs) == 1 and len(one.inputs[0]) > 1 and one.inputs[0][0] == size
    return (size if is_list else 1,)


def _are(calls: Sequence[Issued], num: int, like: Issued) -> bool:
    """Whether so many calls are of the operation, group and line of one."""
    facts = {(call.op, call.ranks, call.file, call.line) for call in calls}
    return len(calls) == num and facts == {(like.op, like.ranks, like.file, like.line)}


def _total(calls: Sequence[Issued]) -> Counter[str]:
    """Return the elements that go into calls, by type."""
    found: Counter[str] = Counter()
    for call in calls:
        found.update(call.elements)
    return found
