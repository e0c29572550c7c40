"""Rendezvous of symmetric memory: the members of a group tell each other where buffers lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np

from simrank.device.memory import Storage
from simrank.distributed.meeting import Meeting
from simrank.distributed.mismatch import MadeCall, mismatch
from simrank.engine import user_site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import AddressSpace, Device
    from simrank.distributed.group import ProcessGroup
    from simrank.engine import CallSite
    from simrank.errors import CollectiveMismatchError


class AddressTables(NamedTuple):
    """Tables of addresses in the memory of one device."""

    buffers: Storage
    pads: Storage


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
        self.tables = [
            AddressTables(*(_table(pad.device, a) for a in addresses)) for pad in self.pads
        ]
        self._multicast = 0

    def multicast_address(self, space: AddressSpace) -> int:
        """Return the address that stands for the buffers of all members."""
        self._multicast = self._multicast or space.add_multicast(self.buffers)
        return self._multicast


def _table(device: Device | None, addresses: np.ndarray[Any, Any]) -> Storage:
    storage = Storage(device, addresses.nbytes, fresh=False)
    storage.array(addresses.dtype)[...] = addresses
    return storage


class Rendezvous(Meeting):
    """One rendezvous of a group; complete once every member has come and handles were exchanged.

    Attributes:
        exchange: What the members have told each other, at the end.
    """

    __slots__ = ("_entries", "exchange")
    what = "rendezvous"

    def __init__(self, group: ProcessGroup, number: int) -> None:
        super().__init__(group, number)
        self.exchange: Exchange | None = None
        self._entries: dict[int, tuple[Storage, Storage]] = {}

    def describe(self) -> str:
        """Return its name in reports."""
        return f"rendezvous #{self.number} of symmetric memory on group '{self.group.name}'"

    def arrive(self, group_rank: int, buffer: Storage, pad: Storage) -> None:
        """Note that a member has come with its memory.

        Raises:
            CollectiveMismatchError: Its buffer or signal pad has another size than the others'.
        """
        sizes = _sizes(buffer, pad)
        self._entries[group_rank] = buffer, pad
        if any(_sizes(*entry) != sizes for entry in self._entries.values()):
            raise self._mismatch(group_rank, user_site())
        self.come(group_rank)

    def all_came(self) -> None:
        """Let every member know of all memory."""
        self.exchange = Exchange([self._entries[rank] for rank in range(self.group.size())])
        self.close()

    def _mismatch(self, last: int, site: CallSite | None) -> CollectiveMismatchError:
        sites = {**self.came, last: site}
        calls = [
            MadeCall(
                int(self.group.ranks[rank]),
                {"op": "rendezvous", **_sizes(*self._entries[rank])},
                where,
            )
            for rank, where in sites.items()
        ]
        absent = [int(self.group.ranks[rank]) for rank in self.missing() if rank != last]
        return mismatch(self.group, self.number, calls, absent)


def _sizes(buffer: Storage, pad: Storage) -> dict[str, int]:
    """Return what the members must agree on, under the words of reports."""
    return {"buffer bytes": buffer.size_bytes, "signal pad bytes": pad.size_bytes}
