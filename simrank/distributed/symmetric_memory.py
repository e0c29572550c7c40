"""Symmetric memory, with the names of `torch.distributed._symmetric_memory`.

`empty` allocates a buffer and a signal pad beside it; `rendezvous` tells every member of a group
where those of the others lie. Kernels take the addresses as numbers; they are simulated ones.

Source:
    torch 2.13, `torch/distributed/_symmetric_memory` and `csrc/distributed/c10d/symm_mem`.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np

from simrank.device import Stream, Tensor, as_dtype, current_stream
from simrank.device.dtypes import float32, uint32
from simrank.device.memory import Storage
from simrank.device.stream import parse_device
from simrank.device.tensors.arithmetic import run
from simrank.device.tensors.shapes import as_shape
from simrank.device.transports import PEER_ACCESS, check_transport
from simrank.distributed.findings import mismatch
from simrank.distributed.group import ProcessGroup, membership
from simrank.distributed.host_meetings import Meeting
from simrank.distributed.membership import group_or_default
from simrank.distributed.mismatched_calls import MadeCall
from simrank.distributed.signals import Flags, SignalOperation
from simrank.engine import user_site
from simrank.errors import UnsupportedError
from simrank.ranks import require_program, require_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import AddressSpace, Device
    from simrank.engine import CallSite
    from simrank.errors import CollectiveMismatchError
    from simrank.ranks import Program

# torch 2.13: 32 channels x 72 ranks (NVL72) x 4 bytes.
_SIGNAL_PAD_BYTES = 32 * 72 * 4
_KEY = "symmetric memory"
_NOT_SYMMETRIC = "rendezvous: the tensor is not allocated from symmetric memory"


class _State:
    """State of symmetric memory of one rank.

    Attributes:
        pad_bytes: Size of the signal pads of buffers that are allocated from now on.
        pads: The signal pad of each buffer.
        exchanged: By buffer and group: what the members have told each other.
        num_rendezvous: By group, how many this rank has called.
        workspaces: By group name, what `get_symm_mem_workspace` has made.
        backend_streams: By priority, what `_get_backend_stream` has made.
    """

    def __init__(self) -> None:
        self.pad_bytes = _SIGNAL_PAD_BYTES
        self.pads: WeakKeyDictionary[Storage, Storage] = WeakKeyDictionary()
        self.exchanged: WeakKeyDictionary[Storage, dict[ProcessGroup, Exchange]] = (
            WeakKeyDictionary()
        )
        self.num_rendezvous: dict[ProcessGroup, int] = {}
        self.workspaces: dict[str, Tensor] = {}
        self.backend_streams: dict[int, Stream] = {}


def _state(program: Program) -> _State:
    state = program.local.get(_KEY)
    if state is None:
        state = program.local[_KEY] = _State()
    assert isinstance(state, _State)
    return state


# ---- allocation ----


def empty(*size: object, dtype: object = None, device: object = None) -> Tensor:
    """Return a tensor of garbage that `rendezvous` takes; it has a signal pad of zeros.

    Args:
        size: Sizes of the dims, separately or as one sequence.
        dtype: Element type; default: float32.
        device: The device; default: the current one.

    Raises:
        UnsupportedError: The device is the host.
    """
    state = _state(require_program("symmetric_memory.empty"))
    cuda_device = parse_device(device)
    if cuda_device is None:
        raise UnsupportedError("symmetric memory on the host is not supported")
    shape, kind = as_shape(size), float32 if dtype is None else as_dtype(dtype)
    storage = Storage(cuda_device, prod(shape) * kind.itemsize)
    pad = state.pads[storage] = Storage(cuda_device, state.pad_bytes, fresh=False)
    races = cuda_device.races
    for memory in (storage, pad):
        memory.is_symmetric = True
        if races is not None:
            races.order.share(memory)
    if pad.is_real:
        pad.array(np.dtype(np.uint8)).fill(0)
    return Tensor(storage, kind, storage.array(kind.numpy).reshape(shape))


def is_symm_mem_tensor(tensor: Tensor) -> bool:
    """Return whether a tensor lies in a buffer that `empty` has allocated on this rank."""
    return tensor.storage in _state(require_program("is_symm_mem_tensor")).pads


def set_signal_pad_size(size: int) -> None:
    """Set the size in bytes of the signal pads of buffers that are allocated from now on."""
    if size <= 0 or size % 4:
        raise ValueError(f"the size of a signal pad is a multiple of 4 above zero, got {size}")
    _state(require_program("set_signal_pad_size")).pad_bytes = size


def get_signal_pad_size() -> int:
    """Return the size in bytes of the signal pads of buffers that are allocated from now on."""
    return _state(require_program("get_signal_pad_size")).pad_bytes


def get_symm_mem_workspace(group_name: str, min_size: int) -> SymmetricMemory:
    """Return a buffer of at least `min_size` bytes that a group's members share, made once.

    Every member must ask for the same sizes in the same order.
    """
    state = _state(require_rank("get_symm_mem_workspace"))
    workspace = state.workspaces.get(group_name)
    if workspace is None or workspace.nbytes < min_size:
        workspace = state.workspaces[group_name] = empty(min_size, dtype="uint8")
    return rendezvous(workspace, group_name)


def enable_symm_mem_for_group(group_name: str) -> None:
    """Do nothing: every group may use symmetric memory."""
    del group_name


def is_symm_mem_enabled_for_group(group_name: str) -> bool:
    """Return True: every group may use symmetric memory."""
    del group_name
    return True


def _get_backend_stream(priority: int = 0) -> Stream:
    """Return the stream beside the current one that torch's pipelined operations use, made once."""
    streams = _state(require_program("_get_backend_stream")).backend_streams
    if priority not in streams:
        streams[priority] = Stream(priority=priority)
    return streams[priority]


def is_nvshmem_available() -> bool:
    """Return False: buffers are reached by plain loads and stores."""
    return False


def set_backend(name: str) -> None:
    """Choose how symmetric memory is allocated: only "CUDA" is simulated."""
    if name != "CUDA":
        text = f"symmetric memory with backend {name!r} is not supported: only CUDA is"
        raise UnsupportedError(text)


def get_backend(device: object = None) -> str:
    """Return "CUDA"."""
    del device
    return "CUDA"


# ---- rendezvous ----


def rendezvous(tensor: Tensor, group: ProcessGroup | str | None = None) -> SymmetricMemory:
    """Exchange the addresses of the members' buffers; blocks the host.

    Every member must call it, with a tensor of its own from `empty`. Later calls for the same
    buffer and group return at once.

    Args:
        tensor: Lies in this rank's buffer.
        group: The group, its name, or None for the default group.

    Raises:
        IllegalTransportError: The tensor is not from `empty`: peers cannot reach it.
        ValueError: There is no such group.
        CollectiveMismatchError: The members' buffers differ in size.
    """
    program = require_rank("rendezvous")
    state, chosen = _state(program), _group_of(group, program)
    own, buffer = chosen.group_rank(program.rank), tensor.storage
    pad = state.pads.get(buffer)
    if pad is None:
        check_transport(_NOT_SYMMETRIC, PEER_ACCESS, buffer)
    assert pad is not None, "checked"
    if own < 0:
        raise ValueError(f"rendezvous: rank {program.rank} is not in group '{chosen.name}'")
    known = state.exchanged.setdefault(buffer, {})
    meeting = None
    if chosen not in known:
        meeting = _meet(state, chosen, own, (buffer, pad))
        assert meeting.exchange is not None, "it is complete"
        known[chosen] = meeting.exchange
    # The meeting keeps the others' buffers until this handle does: they may have returned by now.
    return SymmetricMemory(known[chosen], chosen, own, tensor)


def _meet(
    state: _State, group: ProcessGroup, own: int, entry: tuple[Storage, Storage]
) -> Rendezvous:
    """Wait until every member has come."""
    group.check_alive(f"rendezvous on group '{group.name}'")
    number = state.num_rendezvous[group] = state.num_rendezvous.get(group, 0) + 1
    meetings: dict[int, Rendezvous] = _meetings.setdefault(group, {})
    meeting = meetings.get(number)
    if meeting is None:
        meeting = meetings[number] = Rendezvous(group, number)
    try:
        meeting.arrive(own, *entry)
        group.engine.wait(meeting)
        meeting.part()
    finally:
        meetings.pop(number, None)
        group.engine.pending.pop(meeting, None)
    return meeting


_meetings: WeakKeyDictionary[ProcessGroup, dict[int, Rendezvous]] = WeakKeyDictionary()


def _group_of(group: ProcessGroup | str | None, program: Program) -> ProcessGroup:
    """Return a group by itself or by name.

    Raises:
        ValueError: This rank has none of that name.
    """
    if not isinstance(group, str):
        return group_or_default(group, program)
    known = membership(program)
    for candidate in (known.default, *known.made):
        if candidate is not None and candidate.name == group:
            return candidate
    raise ValueError(f"rank {program.rank} is in no group of the name '{group}'")


class SymmetricMemory:
    """The buffers and signal pads of a group's members, as one of them sees them.

    Attributes:
        rank: This rank's number in the group.
        world_size: Number of members.
        group_name: The group's name.
        device: This rank's device.
        buffer_size: Bytes of each buffer.
        signal_pad_size: Bytes of each signal pad.
        offset: Bytes from the start of the buffer to the tensor that was given.
    """

    def __init__(self, known: Exchange, group: ProcessGroup, rank: int, tensor: Tensor) -> None:
        own = tensor.storage
        assert own.device is not None, "symmetric memory is on devices"
        self.rank = rank
        self.world_size = group.size()
        self.group_name = group.name
        self.device = own.device
        self.buffer_size = own.size_bytes
        self.signal_pad_size = known.pads[rank].size_bytes
        self.offset = tensor.data_ptr() - own.address
        self._known = known
        self._group = group
        self._buffers = [_alive(buffer(), peer) for peer, buffer in enumerate(known.buffers)]

    def __repr__(self) -> str:
        """Return group, rank and size."""
        return (
            f"<SymmetricMemory of group '{self.group_name}': rank {self.rank} of "
            f"{self.world_size}, {self.buffer_size} bytes>"
        )

    @property
    def buffer_ptrs(self) -> list[int]:
        """Return the simulated address of each member's buffer."""
        return [buffer.address for buffer in self._buffers]

    @property
    def signal_pad_ptrs(self) -> list[int]:
        """Return the simulated address of each member's signal pad."""
        return [pad.address for pad in self._known.pads]

    @property
    def multicast_ptr(self) -> int:
        """Return the address that stands for all buffers; 0 where devices or nodes have none."""
        cluster = self.device.network.cluster
        nodes = {rank // cluster.devices_per_node for rank in self._device_indices()}
        if not self.device.spec.multicast or len(nodes) > 1:
            return 0
        return self._known.multicast_address(self.device.memory.space)

    def _device_indices(self) -> list[int]:
        return [pad.device.index for pad in self._known.pads if pad.device is not None]

    @property
    def buffer_ptrs_dev(self) -> int:
        """Return the device address of the table of buffers, as int64."""
        return self._known.tables[self.rank].buffers.address

    @property
    def signal_pad_ptrs_dev(self) -> int:
        """Return the device address of the table of signal pads, as int64."""
        return self._known.tables[self.rank].pads.address

    def get_buffer(
        self,
        rank: int,
        sizes: Sequence[int],
        dtype: object,
        storage_offset: int = 0,
    ) -> Tensor:
        """Return a member's buffer, or a part of it, as a tensor.

        As in torch it counts as a tensor of this rank's device, whose streams work on it; its
        bytes cross the links.

        Args:
            rank: The member.
            sizes: The shape.
            dtype: The element type.
            storage_offset: Elements before it.

        Raises:
            RuntimeError: The buffer is too small.
        """
        buffer = self._buffers[self._member(rank)]
        return self._mapped(_part(buffer, sizes, dtype, storage_offset, "get_buffer"))

    def get_remote_tensor(
        self,
        peer: int,
        sizes: Sequence[int],
        dtype: object,
    ) -> Tensor:
        """Return of a member's buffer the part at which this rank's tensor lies in its own."""
        offset = self.offset // as_dtype(dtype).itemsize
        return self.get_buffer(peer, sizes, dtype, offset)

    def get_signal_pad(
        self,
        rank: int,
        sizes: Sequence[int] = (),
        dtype: object = None,
        storage_offset: int = 0,
    ) -> Tensor:
        """Return a member's signal pad, or a part of it; default: what is left, as uint32."""
        pad = self._known.pads[self._member(rank)]
        kind = uint32 if dtype is None else as_dtype(dtype)
        shape = tuple(sizes) or (pad.size_bytes // kind.itemsize - storage_offset,)
        return self._mapped(_part(pad, shape, kind, storage_offset, "get_signal_pad"))

    def _mapped(self, tensor: Tensor) -> Tensor:
        """Return a tensor that counts as one of this rank's device."""
        tensor.cuda_device = self.device
        return tensor

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Hold the current stream until every member's stream has come to its barrier.

        Args:
            channel: Barriers of different channels do not meet.
            timeout_ms: Simulated milliseconds after which it is an error; 0: never.
        """
        others = [peer for peer in range(self.world_size) if peer != self.rank]
        self._signal("barrier", others, others, channel, timeout_ms)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Set this rank's flag at a member, on the current stream, once the last one is taken."""
        self._signal("put_signal", [self._member(dst_rank)], [], channel, timeout_ms)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Hold the current stream until a member's flag is set here, and take it."""
        self._signal("wait_signal", [], [self._member(src_rank)], channel, timeout_ms)

    @staticmethod
    def memset32(tensor: Tensor, offset: int, val: int, count: int = 1) -> Tensor:
        """Write a 32-bit word several times, on the current stream; kernels that watch it wake.

        Args:
            tensor: Words, of this rank or as `get_buffer` and `get_signal_pad` give a peer's.
            offset: Words before the first.
            val: What is written.
            count: How often.

        Raises:
            RuntimeError: They are no words, or not all within the tensor.

        Simulated cost: a kernel that writes them; over the links where they are a peer's.
        """
        if tensor.ndim != 1 or not tensor.is_contiguous() or tensor.dtype is not uint32:
            raise RuntimeError("memset32: the tensor must be flat, contiguous and of uint32")
        if offset < 0 or count <= 0 or offset + count > tensor.numel():
            raise RuntimeError("memset32: offset and count must be within the tensor")
        if not 0 <= val < 1 << 32:
            raise RuntimeError(f"memset32: {val} is no unsigned number of 32 bits")
        words = tensor[offset : offset + count]
        run("memset32", partial(words.array.fill, val), (), (words,))
        return tensor

    @staticmethod
    def stream_write_value32(tensor: Tensor, offset: int, val: int) -> Tensor:
        """Write one 32-bit word on the current stream, behind all before it; see `memset32`."""
        return SymmetricMemory.memset32(tensor, offset, val)

    def _signal(
        self, name: str, puts: list[int], waits: list[int], channel: int, timeout_ms: int
    ) -> None:
        if channel < 0 or (channel + 1) * self.world_size * 4 > self.signal_pad_size:
            raise RuntimeError(
                f"{name}: channel {channel} of {self.world_size} ranks is not in a signal pad of "
                f"{self.signal_pad_size} bytes\n  to fix: use set_signal_pad_size before empty"
            )
        stream = current_stream()
        where = Flags(self._known.pads, self.rank, channel, self._group.ranks)
        operation = SignalOperation(
            stream, f"{name} on symmetric memory of group '{self.group_name}', channel {channel}",
            where, (puts, waits), timeout_ms, keeps=self
        )  # fmt: skip
        touched = [self._known.pads[self.rank]]
        if waits:  # What peers have put before is there after it: host reads must come behind it.
            touched += _state(require_program(name)).pads
        for storage in touched:
            storage.note_write(operation, storage.array(np.dtype(np.uint8)))
        stream.submit(operation)

    def _member(self, rank: int) -> int:
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not in a group of {self.world_size}")
        return rank


def _alive(buffer: Storage | None, peer: int) -> Storage:
    if buffer is None:
        raise ValueError(
            f"rendezvous: rank {peer} of the group has freed its buffer\n"
            "  to fix: keep the tensor there as long as others use it"
        )
    return buffer


def _part(
    storage: Storage,
    sizes: Sequence[int],
    dtype: object,
    offset: int,
    call: str,
) -> Tensor:
    shape, kind = as_shape((tuple(sizes),)), as_dtype(dtype)
    end = (offset + prod(shape)) * kind.itemsize
    if offset < 0 or end > storage.size_bytes:
        raise RuntimeError(
            f"{call}: the requested size ({end} bytes from the start) exceeds the allocated size "
            f"({storage.size_bytes} bytes)"
        )
    whole = storage.array(np.dtype(np.uint8))[offset * kind.itemsize : end]
    return Tensor(storage, kind, whole.view(kind.numpy).reshape(shape))


def counterpart(storage: Storage, peer: int) -> Storage:
    """Return at another rank what a buffer or signal pad of this rank is here.

    Args:
        storage: The buffer or signal pad.
        peer: The global rank.

    Raises:
        ValueError: No rendezvous has told where that is.
    """
    program = require_rank("an access to a peer's memory")
    for buffer, known in _state(program).exchanged.items():
        for group, exchange in known.items():
            own, other = group.group_rank(program.rank), group.group_rank(peer)
            if other < 0:
                continue
            if storage is buffer:
                return _alive(exchange.buffers[other](), peer)
            if storage is exchange.pads[own]:
                return exchange.pads[other]
    raise ValueError(
        f"rank {program.rank} does not know where rank {peer} has its part of this memory\n"
        "  to fix: allocate it with symmetric_memory.empty, and call rendezvous"
    )


_SymmetricMemory = SymmetricMemory  # torch's name of the class

# ---- Rendezvous of symmetric memory ----


class AddressTables(NamedTuple):
    """Tables of addresses in the memory of one device."""

    buffers: Storage
    pads: Storage


class Exchange:
    """The exchange of the members of a group about one buffer of each.

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
        self.add_arrival(group_rank)

    def all_came(self) -> None:
        """Send the addresses of all buffers to every member."""
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
    """Return the facts that the members must agree on, under the words of reports."""
    return {"buffer bytes": buffer.size_bytes, "signal pad bytes": pad.size_bytes}
