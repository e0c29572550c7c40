"""NCCL makes a communicator at the first call that needs it, and its members meet for that.

torch does so unless `init_process_group` is given a `device_id`. Hosts wait for each other there,
where later calls only wait on streams: groups used for the first time in another order on two
ranks, or a batch of messages that only some members of a group begin with, hang. `strict` programs
meet; others do not, as if all communicators had been made from the start.

Source: torch 2.13 `ProcessGroupNCCL`: a communicator per group; for messages outside of batches one
per pair of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.distributed.meeting import Meeting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.distributed.group import ProcessGroup

Pair = tuple[int, int]


class Initialisation(Meeting):
    """The members of a group, or two of them, make a communicator.

    Attributes:
        pair: The two, by group rank; None: all members of the group.
    """

    __slots__ = ("pair",)

    def __init__(self, group: ProcessGroup, pair: Pair | None) -> None:
        super().__init__(group, 0)
        self.pair = pair

    @property
    def members(self) -> Sequence[int]:
        """Return who meets."""
        return self.pair or range(self.group.size())

    def describe(self) -> str:
        """Return its name in reports."""
        whose = f"group '{self.group.name}'"
        if self.pair is not None:
            first, second = (self.group.ranks[rank] for rank in self.pair)
            whose = f"ranks {first} and {second} of {whose}"
        return f"making the communicator of {whose}"


def meet_first(group: ProcessGroup, group_rank: int, pair: Pair | None = None) -> None:
    """Let the running rank wait for the others that make a communicator, at its first use.

    Args:
        group: The group.
        group_rank: The running rank's.
        pair: Who sends and who receives, outside of a batch; None: the group's communicator.
    """
    if group.is_eager or group.size() == 1:
        return
    key = None if pair is None else (min(pair), max(pair))
    made = group.communicators.get(key)
    if made is None:
        made = group.communicators[key] = Initialisation(group, key)
    if group_rank not in made.came:
        made.come(group_rank)
        group.engine.wait(made)
        made.part()
