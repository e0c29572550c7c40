"""Rendezvous of symmetric memory: the members of a group tell each other where buffers lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from simrank.device.memory import Storage
from simrank.engine import Handle, user_site
from simrank.errors import CallVariant, CollectiveMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.device import AddressSpace, Device
    from simrank.distributed.group import ProcessGroup
    from simrank.engine import CallSite


class Exchange:
    """What the members of a group have told each other about one buffer of each.

    It does not keep the buffers: each lives as long as its tensors and handles.

    Attributes:
        buffers: The buffer of each member.
        pads: The signal pad of each member.
        tables: On each member's device, the addresses of all buffers and of all pads.
    """

    def __init__(self, entries: Sequence[tuple[Storage, Storage]]) -> None:
        self.buffers = [ref(buffer) for buffer, _ in entries]
        self.pads = [pad for _, pad in entries]
        addresses = (
            np.array([buffer.address for buffer, _ in entries], np.int64),
            np.array([pad.address for pad in self.pads], np.int64),
        )
        self.tables = [tuple(_table(pad.device, a) for a in addresses) for pad in self.pads]
        self._multicast = 0

    def multicast_address(self, space: AddressSpace) -> int:
        """Return the address that stands for the buffers of all members."""
        self._multicast = self._multicast or space.add_multicast(self.buffers)
        return self._multicast


def _table(device: Device | None, addresses: np.ndarray[Any, Any]) -> Storage:
    storage = Storage(device, addresses.nbytes, fresh=False)
    storage.array(addresses.dtype)[...] = addresses
    return storage


class Rendezvous(Handle):
    """One rendezvous of a group; complete once every member has come."""

    __slots__ = ("_came", "_entries", "exchange", "group", "number")
    is_collective = True

    def __init__(self, group: ProcessGroup, number: int) -> None:
        super().__init__()
        self.group = group
        self.number = number
        self.exchange: Exchange | None = None
        self._entries: dict[int, tuple[Storage, Storage]] = {}
        self._came: dict[int, CallSite | None] = {}
        group.engine.pending[self] = None

    def describe(self) -> str:
        """Return its name in reports."""
        return f"rendezvous #{self.number} of symmetric memory on group '{self.group.name}'"

    def arrive(self, group_rank: int, buffer: Storage, pad: Storage) -> None:
        """Note that a member has come; the last one ends it, after an exchange of handles.

        Raises:
            CollectiveMismatchError: Its buffer or signal pad has another size than the others'.
        """
        site = user_site()
        for entry in self._entries.values():
            if (entry[0].size_bytes, entry[1].size_bytes) != (buffer.size_bytes, pad.size_bytes):
                raise self._mismatch(group_rank, (buffer, pad), site)
        self._entries[group_rank] = buffer, pad
        self._came[group_rank] = site
        if len(self._came) == self.group.size():
            engine = self.group.engine
            latency_ps = self.group.world.cluster.collectives.launch_latency_ps
            engine.call_at(engine.now_ps + 2 * latency_ps, self._all_came)  # Assumed: a round trip.

    def _all_came(self) -> None:
        self.group.engine.pending.pop(self, None)
        self.exchange = Exchange([self._entries[rank] for rank in range(self.group.size())])
        self.finish(self.group.engine)

    def _mismatch(
        self, group_rank: int, own: tuple[Storage, Storage], site: CallSite | None
    ) -> CollectiveMismatchError:
        calls: dict[tuple[int, int, CallSite | None], list[int]] = {}
        for rank, (buffer, pad) in self._entries.items():
            key = (buffer.size_bytes, pad.size_bytes, self._came[rank])
            calls.setdefault(key, []).append(int(self.group.ranks[rank]))
        variants = [_variant(ranks, *key) for key, ranks in calls.items()]
        ours = int(self.group.ranks[group_rank])
        variants.append(_variant([ours], own[0].size_bytes, own[1].size_bytes, site))
        absent = [rank for rank, _ in self.absent_ranks() if rank != ours]
        now_ps, name = self.group.engine.now_ps, self.group.name
        return CollectiveMismatchError(now_ps, name, self.number, variants, absent)

    def pending_ranks(self) -> Iterator[tuple[int, str, CallSite | None]]:
        """Yield who has come, for the deadlock report."""
        for group_rank, site in self._came.items():
            yield int(self.group.ranks[group_rank]), self.describe(), site

    def absent_ranks(self) -> Iterator[tuple[int, str]]:
        """Yield who has not, for the deadlock report."""
        for group_rank in range(self.group.size()):
            if group_rank not in self._came:
                yield int(self.group.ranks[group_rank]), self.describe()


def _variant(
    ranks: Sequence[int], buffer_bytes: int, pad_bytes: int, site: CallSite | None
) -> CallVariant:
    columns = {
        "op": "rendezvous", "buffer bytes": str(buffer_bytes), "signal pad bytes": str(pad_bytes)
    }  # fmt: skip
    file, line = (None, None) if site is None else site.line()
    return CallVariant(tuple(ranks), columns, file, line)
