"""`torch.distributed._symmetric_memory` on simulated devices: rendezvous, signals, peers.

torch's own Python code runs on top, unchanged; what its CUDA build has in C++ is in
`operations`. Signals go over the signal pads, as simrank's own symmetric memory has them.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from simrank.device.stream import KernelOperation
from simrank.device.watch import watchers_of
from simrank.distributed import symmetric_memory
from simrank.distributed.signals import Flags, SignalOperation
from simrank.isolation.ledger import Ledger
from simrank.ranks import require_rank
from simrank.ranks.current import rank_program
from simrank.torch import cuda
from simrank.torch.cuda.library import native
from simrank.torch.cuda.pools import SYMMETRIC
from simrank.torch.devices import activation, buffers
from simrank.torch.devices.rank_devices import note_storages, register_shared_memory, share_pending
from simrank.torch.groups.registry import groups_of
from simrank.torch.rank_state.caches import RankDict
from simrank.torch.symmetric import operations

if TYPE_CHECKING:
    import torch

    from simrank.device import Stream
    from simrank.device.memory import Storage
    from simrank.distributed.group import ProcessGroup
    from simrank.torch.devices.rank_devices import SharedAccess

_KEY = "torch's symmetric memory"
_NAMES = {0: "barrier", 1: "put_signal", 2: "wait_signal"}  # As `csrc/c10d.cpp` numbers them.


class RendezvousResult(NamedTuple):
    """The result of a rendezvous: the members' buffers.

    Attributes:
        group: The group.
        rank: This rank's number in it.
        where: Addresses, and the members' ranks in the world.
        is_of_one_node: Whether all members' devices are on one.
    """

    group: ProcessGroup
    rank: int
    where: cuda.Rendezvous
    is_of_one_node: bool


class _Rendezvous(symmetric_memory.Rendezvous):
    """A rendezvous of torch's memory; complete once every member has called it."""

    __slots__ = ("is_of_one_node", "multicast")

    def all_came(self) -> None:
        """Send the addresses of all buffers to every member."""
        storages = [self._entries[rank][0] for rank in range(self.group.size())]
        cuda.hold([storage.address for storage in storages])
        for buffer, pad in self._entries.values():
            activation.add_signal_pad(pad, buffer)
            for storage in (buffer, pad):
                share_pending(storage.address, storage.size_bytes)
                _let_races_be_found(storage)
        found = [storage.device for storage in storages if storage.device is not None]
        per_node = found[0].network.cluster.devices_per_node
        nodes = {device.index // per_node for device in found}
        self.multicast = 0
        self.is_of_one_node = len(nodes) == 1
        if found[0].spec.multicast and self.is_of_one_node:
            members: Any = [partial(buffers.storage_at, each.address) for each in storages]
            self.multicast = found[0].memory.space.add_multicast(members)
        self.close()

    def where(self, own: int) -> cuda.Rendezvous:
        """Return the addresses of all buffers, for a member."""
        entries = [self._entries[rank] for rank in range(self.group.size())]
        return cuda.Rendezvous(
            own,
            [buffer.address for buffer, _ in entries],
            [pad.address for _, pad in entries],
            [int(rank) for rank in self.group.ranks],
            self.multicast,
        )


def _let_races_be_found(storage: Storage) -> None:
    """Register a buffer or a signal pad with the race checker, if there is one."""
    races = None if storage.device is None else storage.device.races
    if races is not None:
        races.order.share(storage)


_meetings: WeakKeyDictionary[ProcessGroup, dict[int, _Rendezvous]] = WeakKeyDictionary()


def _known(what: str) -> dict[tuple[int, str], RendezvousResult]:
    known: dict[tuple[int, str], RendezvousResult] = require_rank(what).local.setdefault(_KEY, {})
    return known


def _group_of(name: str) -> Any:
    """Return the running rank's group of a name.

    Raises:
        ValueError: It has none.
    """
    groups = groups_of(require_rank("rendezvous"))
    for group, its_name in groups.pg_names.items():
        if its_name == name:
            return group
    raise ValueError(
        f"rendezvous: this rank is in no group of the name {name!r}\n"
        "  to fix: give rendezvous a group, or allocate the memory for one"
    )


class SymmetricMemoryOwner:
    """Owner of symmetric memory; see `rank_devices.SharedMemoryOwner`."""

    find = staticmethod(buffers.storage_at)

    def __init__(self) -> None:
        self._patches = Ledger(__name__)

    def rendezvous(self, address: int, group: str) -> cuda.Rendezvous:
        """Exchange the addresses of the members' buffers; blocks the host.

        Simulated cost: a round trip between hosts after the last one has come (assumed).
        """
        program, chosen = require_rank("rendezvous"), _group_of(group)
        simulated: ProcessGroup = chosen.simulated
        own = simulated.group_rank(program.rank)
        numbers: dict[str, int] = program.local.setdefault(f"{_KEY}: rendezvous", {})
        number = numbers[group] = numbers.get(group, 0) + 1
        meetings = _meetings.setdefault(simulated, {})
        meeting = meetings.get(number)
        if meeting is None:
            meeting = meetings[number] = _Rendezvous(simulated, number)
        try:
            meeting.arrive(own, _storage(address), _storage(cuda.signal_pad(address)))
            simulated.engine.wait(meeting)
            meeting.part()
        finally:
            meetings.pop(number, None)
            simulated.engine.pending.pop(meeting, None)
        where = meeting.where(own)
        _known("rendezvous")[address, group] = RendezvousResult(
            simulated, own, where, meeting.is_of_one_node
        )
        return where

    def has_window(self, address: int, group: str) -> bool:
        """Return whether NCCL has a window of memory for a group: its members have met there."""
        block = cuda.find_block(address)
        met = None if block is None else _known("a window").get((block.address, group))
        return met is not None and met.is_of_one_node

    def signal(
        self, address: int, group: str, what: int, peer: int, channel: int, timeout_ms: int
    ) -> None:
        """Issue a barrier, a signal or a wait for one on the current stream.

        Simulated cost: at least a kernel's; a signal takes the links' latency, and the
        sender learns of its arrival after the latency back.

        Raises:
            RuntimeError: The channel is not in the signal pad.
        """
        again = partial(self.signal, address, group, what, peer, channel, timeout_ms)
        activation.keep_in_graph(again, ())
        met = _known("a signal")[address, group]
        size = len(met.where.pads)
        others = [rank for rank in range(size) if rank != met.rank]
        puts, waits = {0: (others, others), 1: ([peer], []), 2: ([], [peer])}[what]
        where = flags_of(met, channel)
        if channel < 0 or (channel + 1) * size * 4 > where.pads[met.rank].size_bytes:
            raise RuntimeError(
                f"{_NAMES[what]}: channel {channel} of {size} ranks is not in a signal pad of "
                f"{where.pads[met.rank].size_bytes} bytes\n"
                "  to fix: use set_signal_pad_size before empty"
            )
        name = f"{_NAMES[what]} on symmetric memory of group '{met.group.name}', channel {channel}"
        stream = current_stream()
        operation = SignalOperation(
            stream, name, where, (puts, waits), timeout_ms, keeps=_storage(address)
        )
        stream.submit(operation)
        note_storages(operation, [], [], require_rank("a signal"))

    def enabled(self, context: Any) -> None:
        """Give each rank its own state of torch's module."""
        native().simrank_multicast(int(context.cluster.device.multicast))
        operations.register(issue_write)
        module: Any = import_module("torch.distributed._symmetric_memory")
        bindings: Any = module._SymmetricMemory  # noqa: SLF001 - torch's name
        for name in filter(partial(hasattr, module), _MODULE_STATE):
            self._patches.replace(module, name, RankDict(f"{_KEY}: {name}", getattr(module, name)))
        info = _set_group_info(bindings.set_group_info)
        self._patches.replace(bindings, "set_group_info", info)
        empty = _empty(bindings.empty_strided_p2p)
        self._patches.replace(bindings, "empty_strided_p2p", empty)
        pool = _pool_allocator(bindings.get_mempool_allocator)
        self._patches.replace(bindings, "get_mempool_allocator", pool)

    def disabled(self) -> None:
        """Restore torch's module."""
        native().simrank_forget_held()
        self._patches.restore()

    def touched(self, stream: Stream, accesses: list[SharedAccess]) -> None:
        """Charge links for accesses to peers, and wake kernels that wait for written flags.

        Simulated cost: behind the operation, its bytes at each peer over the route there, alone on
        it (assumed: that is added to what the operation takes in its own memory).
        """
        by_peer: dict[int, int] = {}
        for access in accesses:
            peer = cuda.device_of(access.address)
            if peer is not None and peer != stream.device.index:
                by_peer[peer] = by_peer.get(peer, 0) + access.size_bytes
        if by_peer:
            duration_ps = max(operations.route_ps(stream.device, *pair) for pair in by_peer.items())
            stream.submit(
                _PeerAccess(stream, "access to peers", duration_ps=duration_ps, demands=())
            )
        written = [access for access in accesses if access.is_write]
        if written and stream.device.memory.space.watchers is not None:
            tail = stream.tail
            if tail is None:
                _wake(stream, written)
            else:
                tail.on_complete(partial(_wake, stream, written))


class _PeerAccess(KernelOperation):
    """Traffic of a torch operation on peers' memory."""

    __slots__ = ()
    is_launch = False


def _wake(stream: Stream, written: list[SharedAccess]) -> None:
    watchers = watchers_of(stream.device.memory.space)
    for access in written:
        storage = buffers.storage_at(access.address)
        if storage is not None:
            low = access.address - storage.address
            watchers.wrote(stream.device.engine, storage, low, low + access.size_bytes)


def _storage(address: int) -> Storage:
    found = buffers.storage_at(address)
    assert found is not None, "symmetric memory is alive"
    return found


def flags_of(met: RendezvousResult, channel: int) -> Flags:
    """Return the address of a member's flags."""
    pads = [_storage(pad) for pad in met.where.pads]
    return Flags(pads, met.rank, channel, met.where.global_ranks)


def current_stream() -> Stream:
    """Issue pending operations, and return torch's current stream."""
    own = activation.devices_in_use()
    assert own is not None, "there is symmetric memory"
    own.flush()
    own.make_current()
    return own.current_stream()


def issue_write(storage: Storage, values: tuple[int, int, int]) -> None:
    """Write 32-bit words on the current stream: offset, value and count.

    Simulated cost: the least that a kernel takes; a word to the host's memory operations of a
    stream takes about as long (assumed).
    """
    activation.keep_in_graph(partial(issue_write, storage, values), ())
    operations.write_words(current_stream(), storage, values)


# ---- what torch keeps per process ----

_MODULE_STATE = (
    "_group_name_to_workspace_tensor",
    "_group_name_to_store",
    "_backend_streams",
    "_symm_mem_pools",
)


def _empty(original: Any) -> Any:
    """Return the replacement of torch's allocation: it registers race checks."""

    def empty_strided_p2p(*args: Any, **kwargs: Any) -> Any:
        tensor = original(*args, **kwargs)
        if rank_program() is not None and tensor.is_cuda:
            storage = buffers.storage_at(tensor.data_ptr())
            if storage is not None:
                _let_races_be_found(storage)
        return tensor

    return staticmethod(empty_strided_p2p)


def _pool_allocator(original: Any) -> Any:
    def get_mempool_allocator(device: torch.device) -> object:
        """Return the allocator of symmetric memory, which a rank's pools know."""
        return original(device) if rank_program() is None else SYMMETRIC

    return staticmethod(get_mempool_allocator)


def _set_group_info(original: Any) -> Any:
    def set_group_info(*args: Any) -> None:
        """Do nothing: C++ would register the group by name for all ranks."""
        if rank_program() is None:
            original(*args)

    return staticmethod(set_group_info)


def patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of torch's module for ranks without devices."""
    module: Any = import_module("torch.distributed._symmetric_memory")
    name = "_should_use_implicit_mempool"
    original = getattr(module, name)

    def should_use() -> bool:
        """Turn devices on, and return False: pools need an allocator of C++."""
        program = rank_program()
        if program is None:
            return bool(original())
        activation.enable_for(program)
        return False

    return [(module, name, should_use)]


def install() -> None:
    """Register symmetric memory for devices that are turned on later."""
    register_shared_memory(SymmetricMemoryOwner())
