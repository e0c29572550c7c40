"""Process groups: who belongs, what each member has called, and where its calls run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrank.device.current import new_stream
from simrank.distributed.planner import Planner
from simrank.errors import SimrankError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.collectives.schedule import IntArray
    from simrank.device import Device, Network, Stream
    from simrank.distributed.call import Call
    from simrank.distributed.p2p import Mailbox
    from simrank.distributed.planner import CollectiveLibrary
    from simrank.ranks import Program


class ProcessGroup:
    """A process group; one object that all its members share.

    Attributes:
        name: For reports.
        ranks: Global ranks of the members, in group order.
        devices: Device of each member.
        calls: Collectives under way, by sequence number.
        mailboxes: Point-to-point messages under way, by (source, destination) group ranks.
        planner: Chooses algorithms and computes times for this group.
    """

    def __init__(self, name: str, ranks: Sequence[int], world: World) -> None:
        self.name = name
        self.ranks = ranks
        self.world = world
        self.engine = world.engine
        self.devices: IntArray = world.devices[np.asarray(ranks, dtype=np.int64)]
        self.calls: dict[int, Call] = {}
        self.mailboxes: dict[tuple[int, int], Mailbox] = {}
        self.planner = Planner(world.library, self.devices)
        self._num_calls = [0] * len(ranks)
        self._index = None if isinstance(ranks, range) else {r: i for i, r in enumerate(ranks)}
        self._streams: dict[tuple[int, str], Stream] = {}

    def __repr__(self) -> str:
        """Return the name and size."""
        return f"<ProcessGroup '{self.name}' of {len(self.ranks)} ranks>"

    def size(self) -> int:
        """Return the number of members."""
        return len(self.ranks)

    def rank(self) -> int:
        """Return the running rank's place in the group; -1 if it is no member."""
        from simrank.ranks import require_rank  # noqa: PLC0415 - shadowed by the method's name

        return self.group_rank(require_rank("ProcessGroup.rank").rank)

    def group_rank(self, global_rank: int | None) -> int:
        """Return a global rank's place in the group; -1 if it is no member."""
        if global_rank is None:
            return -1
        if self._index is None:
            return global_rank if global_rank < len(self.ranks) else -1
        return self._index.get(global_rank, -1)

    def next_seq(self, group_rank: int) -> int:
        """Return the sequence number of a member's next collective; the first is 1."""
        self._num_calls[group_rank] += 1
        return self._num_calls[group_rank]

    def stream(self, device: Device, name: str) -> Stream:
        """Return this group's own stream on a device (for asynchronous calls, or for a pair)."""
        key = (device.index, name)
        if key not in self._streams:
            self._streams[key] = new_stream(device, name)
        return self._streams[key]


class World:
    """The process groups of the ranks of one spawn.

    Attributes:
        engine: The engine that runs them.
        cluster: Where they run.
        network: The cluster's links in this run.
        library: The collective library of the Context.
        size: Number of ranks.
        devices: Device of each rank.
    """

    def __init__(
        self,
        network: Network,
        devices: IntArray,
        library: CollectiveLibrary,
    ) -> None:
        self.engine = network.engine
        self.cluster = network.cluster
        self.network = network
        self.library = library
        self.devices = devices
        self.size = len(devices)
        self._groups: dict[tuple[int, int], ProcessGroup] = {}

    def group(self, key: tuple[int, int], name: str, ranks: Sequence[int]) -> ProcessGroup:
        """Return the group that a rank makes by its n-th `new_group`; the first one there makes it.

        Args:
            key: (how often the rank has initialised, how many groups it has made since).
            name: Its name.
            ranks: Its members.

        Raises:
            SimrankError: Another rank made its n-th group with other members.
        """
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ProcessGroup(name, ranks, self)
        elif group.ranks != ranks and tuple(group.ranks) != tuple(ranks):
            raise SimrankError(
                f"new_group #{key[1]} was called with ranks {list(ranks)}, but another rank called "
                f"it with {list(group.ranks)}\n"
                "  to fix: make every rank call new_group with the same ranks, in the same order"
            )
        return group

    def drop(self) -> None:
        """Forget every call under way: the ranks were aborted."""
        for group in self._groups.values():
            for call in group.calls.values():
                self.engine.pending.pop(call, None)
            for mailbox in group.mailboxes.values():
                mailbox.drop()
            group.calls.clear()
            group.mailboxes.clear()


class Membership:
    """What one rank knows of torch.distributed; kept in its program.

    Attributes:
        default: The default group, or None before `init_process_group`.
        generation: How often it has initialised.
        num_groups: How many groups it has made since.
    """

    __slots__ = ("default", "generation", "num_groups")

    def __init__(self) -> None:
        self.default: ProcessGroup | None = None
        self.generation = 0
        self.num_groups = 0


def membership(program: Program) -> Membership:
    """Return the rank's membership, made at first use."""
    found = program.local.get("distributed")
    if found is None:
        found = program.local["distributed"] = Membership()
    assert isinstance(found, Membership)
    return found
