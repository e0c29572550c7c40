"""`torch.ops.symm_mem`: operators of CUDA builds, one simulated kernel each.

Every rank's kernel meets the others', moves data, and meets them again, as torch's do. Others of
these operators raise UnsupportedError.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.library import Library

from simrank.device.memory import Accesses
from simrank.device.stream import KernelOperation
from simrank.device.watch import watchers_of
from simrank.distributed.signals import Flags, SignalOperation
from simrank.errors import UnsupportedError
from simrank.ranks import require_rank
from simrank.torch.devices import activation, buffers
from simrank.torch.devices.rank_devices import note_storages
from simrank.units import transfer_ps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device import Device, Stream
    from simrank.device.memory import Storage

Array = np.ndarray[Any, Any]
_ALL = slice(None)
_NUM_OF_REDUCTIONS = {torch.float32, torch.bfloat16}  # Those that torch's kernels have.


def route_ps(device: Device, peer: int, size_bytes: int) -> int:
    """Return the time of bytes between a device and a peer on an idle route."""
    if peer == device.index or not size_bytes:
        return 0
    network = device.network
    latency_ps = int(network.cluster.paths([device.index], [peer]).latency_ps[0])
    rate = network.route_bandwidth_bytes_per_s(device.index, peer)
    return latency_ps + transfer_ps(size_bytes, int(rate))


class SymmetricKernel(SignalOperation):
    """A kernel that synchronizes with the other members', moves data, and synchronizes again.

    Args:
        stream: Where it runs.
        name: The operator's.
        flags: Where signals go.
        move: Moves the data, between the two meetings.
        move_ps: How long that takes.
        keeps: What must live until its end.
    """

    __slots__ = ("_has_moved", "_move", "_move_ps")

    def __init__(
        self,
        stream: Stream,
        name: str,
        flags: Flags,
        move: Callable[[], None],
        *,
        move_ps: int,
        keeps: object,
    ) -> None:
        others = [rank for rank in range(len(flags.pads)) if rank != flags.own]
        super().__init__(stream, name, flags, (others, others), 0, keeps=keeps)
        self._move, self._move_ps, self._has_moved = move, move_ps, False

    def _all_done(self) -> None:
        if self._has_moved:
            super()._all_done()
            return
        engine = self.stream.device.engine
        if self in engine.pending:
            self._release()
            self._has_moved = True
            engine.call_at(engine.now_ps + self._move_ps, self._moved)

    def _moved(self) -> None:
        if self.stream.head is self:  # Else it was dropped meanwhile.
            self._move()
            super().begin()


class BufferPart(NamedTuple):
    """Some elements of a member's buffer."""

    storage: Storage
    array: Array


class _Call:
    """One call of an operator: the members' parts of a symmetric tensor, as arrays.

    Attributes:
        rank: This rank's number in the group.
        parts: The elements at each member.
        num_bytes: Of one part.
    """

    def __init__(self, name: str, tensor: torch.Tensor, group_name: str) -> None:
        module: Any = torch.distributed._symmetric_memory  # noqa: SLF001 - torch's name
        if not tensor.is_contiguous():
            raise RuntimeError(f"{name}: input must be contiguous.")
        handle = module._SymmetricMemory.rendezvous(tensor, group_name)  # noqa: SLF001 - as above
        if handle is None:
            raise RuntimeError(f"{name}: input must be allocated with empty_strided_p2p().")
        self.name, self.handle, self._tensor = name, handle, tensor
        self.rank, self.size = handle.rank, handle.world_size
        self.num_bytes = tensor.numel() * tensor.element_size()
        view = buffers.argument_of(tensor)
        self.dtype = view.dtype.numpy
        offset = tensor.data_ptr() - handle.buffer_ptrs[self.rank]
        self.storages = [_storage(address) for address in handle.buffer_ptrs]
        self.parts = [self._part(storage, offset) for storage in self.storages]

    def touches(self, chosen: slice = _ALL) -> list[BufferPart]:
        """Return some elements of every member's part, for race checks."""
        pairs = zip(self.storages, self.parts, strict=True)
        return [BufferPart(storage, part[chosen]) for storage, part in pairs]

    def _part(self, storage: Storage, offset: int) -> Array:
        whole = storage.array(np.dtype(np.uint8))
        return whole[offset : offset + self.num_bytes].view(self.dtype)

    def chunk(self, rank: int) -> slice:
        """Return the elements that a member reduces."""
        each = -(-len(self.parts[0]) // self.size)
        return slice(rank * each, (rank + 1) * each)

    def issue(
        self,
        move: Callable[[], None],
        link_bytes: int,
        *,
        writes: Sequence[torch.Tensor] = (),
        reads_of: Sequence[Any] = (),
        writes_of: Sequence[Any] = (),
    ) -> None:
        """Submit the kernel; torch's operations on the same memory wait for it.

        Args:
            move: Moves the data.
            link_bytes: What goes into, or out of, this device: the larger.
            writes: What it fills, besides symmetric memory.
            reads_of: What it reads of symmetric memory, the peers' too.
            writes_of: What it writes there.
        """
        again = partial(
            self.issue, move, link_bytes, writes=writes, reads_of=reads_of, writes_of=writes_of
        )
        activation.keep_in_graph(again, [self._tensor, *writes])
        own = activation.devices_in_use()
        assert own is not None, "its tensors lie on devices"
        own.flush()
        own.make_current()
        stream = own.current_stream()
        device, space = stream.device, stream.device.memory.space
        pads = [_storage(address) for address in self.handle.signal_pad_ptrs]
        ranks = [storage.device.index for storage in self.storages if storage.device is not None]
        peers = [index for index in ranks if index != device.index]
        filled = [buffers.storage_of(tensor) for tensor in writes]

        def moved() -> None:
            races = device.races
            if races is not None and races.order.listener is not None:
                races.order.listener.met(operation, reads_of, writes_of)
            with np.errstate(all="ignore"):
                move()
            watchers = watchers_of(space)
            for storage in [*filled, *(part.storage for part in writes_of)]:
                watchers.wrote(device.engine, storage, 0, storage.size_bytes)

        link_ps = max((route_ps(device, peer, link_bytes) for peer in peers), default=0)
        own_bytes = self.num_bytes * 2
        memory_ps = transfer_ps(own_bytes, int(device.spec.memory_bandwidth_bytes_per_s))
        operation = SymmetricKernel(
            stream, self.name, Flags(pads, self.rank, 0, ranks), moved,
            move_ps=max(link_ps, memory_ps), keeps=(filled, self.storages),
        )  # fmt: skip
        if device.races is not None:
            operation.touched = Accesses([], [buffers.argument_of(tensor) for tensor in writes])
        stream.submit(operation)
        program = require_rank(self.name)
        note_storages(operation, [], [*filled, self.storages[self.rank]], program)


def _storage(address: int) -> Storage:
    found = buffers.storage_at(address)
    assert found is not None, "symmetric memory is alive"
    return found


def _check(name: str, tensor: torch.Tensor, reduce_op: str) -> None:
    if reduce_op != "sum":
        raise RuntimeError(f"{name}: only sum is supported for now.")
    if tensor.dtype not in _NUM_OF_REDUCTIONS:
        raise RuntimeError(
            f"{name}: only float and bfloat16 are supported for now, not {tensor.dtype}"
        )


def _summed(parts: Sequence[Array]) -> Array:
    """Return the sum in the order of ranks, rounded at each step, as torch's kernels add."""
    total = parts[0].copy()
    for part in parts[1:]:
        total = total + part
    return total


def _summed_in_switch(parts: Sequence[Array]) -> Array:
    """Return the sum in fp32, rounded once, as the switch adds (`multimem`, `.acc::f32`)."""
    total: Array = np.stack([part.astype(np.float32) for part in parts]).sum(axis=0)
    return total.astype(parts[0].dtype)


def _flat(tensor: torch.Tensor) -> Array:
    array: Array = buffers.argument_of(tensor).array
    return array.reshape(-1)


_PLAIN = _summed
_SWITCH = _summed_in_switch


def _one_shot(
    name: str, tensor: torch.Tensor, group: str, out: torch.Tensor, add: Any = _PLAIN
) -> torch.Tensor:
    """Read all of every member's part, and add.

    Simulated cost: the part of each peer into this device. With multicast each device answers as
    many times.
    """
    if not out.is_contiguous() or out.numel() != tensor.numel():
        raise RuntimeError(f"{name}: output must be contiguous and of the input's size.")
    call, target = _Call(name, tensor, group), _flat(out)

    def move() -> None:
        target[...] = add(call.parts)

    reads_of = call.touches()
    call.issue(move, (call.size - 1) * call.num_bytes, writes=[out], reads_of=reads_of)
    return out


def one_shot_all_reduce_out(
    input: torch.Tensor, reduce_op: str, group_name: str, out: torch.Tensor
) -> torch.Tensor:
    """Sum every member's part into a tensor of each."""
    _check("one_shot_all_reduce", input, reduce_op)
    return _one_shot("one_shot_all_reduce", input, group_name, out)


def one_shot_all_reduce(input: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    """Return the sum of every member's part."""
    return one_shot_all_reduce_out(input, reduce_op, group_name, torch.empty_like(input))


def one_shot_all_reduce_copy_out(
    symm_buffer: torch.Tensor,
    local_input: torch.Tensor,
    reduce_op: str,
    group_name: str,
    out: torch.Tensor,
) -> torch.Tensor:
    """Copy to symmetric memory first, and sum then."""
    part = symm_buffer.view(-1)[: local_input.numel()]
    part.copy_(local_input.reshape(-1))
    _check("one_shot_all_reduce_copy", part, reduce_op)
    return _one_shot("one_shot_all_reduce_copy", part, group_name, out)


def one_shot_all_reduce_copy(
    symm_buffer: torch.Tensor, local_input: torch.Tensor, reduce_op: str, group_name: str
) -> torch.Tensor:
    """Return the sum of what every member copies to symmetric memory."""
    out = torch.empty_like(local_input)
    return one_shot_all_reduce_copy_out(symm_buffer, local_input, reduce_op, group_name, out)


def _two_shot(name: str, tensor: torch.Tensor, group: str, add: Any = _PLAIN) -> torch.Tensor:
    """Each member sums its chunk, and writes it to all.

    Simulated cost: the chunk of each peer in and out, and the peers' the same way: twice
    (p - 1) / p of the part. A switch that adds and multicasts: (p + 1) / p of it.
    """
    call = _Call(name, tensor, group)

    def move() -> None:
        mine = call.chunk(call.rank)
        total = add([part[mine] for part in call.parts])
        for part in call.parts:
            part[mine] = total

    factor = call.size + 1 if add is _SWITCH else 2 * (call.size - 1)
    chunk = call.touches(call.chunk(call.rank))
    call.issue(move, call.num_bytes * factor // call.size, reads_of=chunk, writes_of=chunk)
    return tensor


def two_shot_all_reduce_(input: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    """Sum every member's part, in place."""
    _check("two_shot_all_reduce_", input, reduce_op)
    return _two_shot("two_shot_all_reduce_", input, group_name)


def two_shot_all_reduce_out(
    input: torch.Tensor, reduce_op: str, group_name: str, output: torch.Tensor
) -> torch.Tensor:
    """Sum every member's part into a tensor of each; the chunks go through symmetric memory."""
    _check("two_shot_all_reduce_out", input, reduce_op)
    return output.copy_(_two_shot("two_shot_all_reduce_out", input, group_name))


def reduce_scatter_out(
    input: torch.Tensor, group_name: str, split_last_dim: bool, output: torch.Tensor
) -> torch.Tensor:
    """Sum every member's part; each member keeps its share.

    Simulated cost: the share of each peer into this device.
    """
    _check("reduce_scatter_out", input, "sum")
    call = _Call("reduce_scatter_out", input, group_name)
    shape, target = tuple(input.shape), buffers.argument_of(output).array
    dim = len(shape) - 1 if split_last_dim else 0
    share = shape[dim] // call.size
    chosen = [slice(None)] * len(shape)
    chosen[dim] = slice(call.rank * share, (call.rank + 1) * share)
    parts = [BufferPart(s, part.reshape(shape)[tuple(chosen)]) for s, part in call.touches()]

    def move() -> None:
        target[...] = _summed([part.array for part in parts]).reshape(target.shape)

    link_bytes = (call.size - 1) * call.num_bytes // call.size
    call.issue(move, link_bytes, writes=[output], reads_of=parts)
    return output


# ---- with multicast ----


def _require_multicast(name: str, tensor: torch.Tensor, group_name: str) -> None:
    if not _Call(name, tensor, group_name).handle.multicast_ptr:
        raise RuntimeError(f"{name}: requires multicast support.")


def multimem_all_reduce_(input: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    """Sum every member's part in the switch, in place."""
    _check("multimem_all_reduce_", input, reduce_op)
    _require_multicast("multimem_all_reduce_", input, group_name)
    return _two_shot("multimem_all_reduce_", input, group_name, _SWITCH)


def multimem_one_shot_all_reduce_out(
    input: torch.Tensor, reduce_op: str, group_name: str, out: torch.Tensor
) -> torch.Tensor:
    """Sum every member's part in the switch, into a tensor of each."""
    _check("multimem_one_shot_all_reduce", input, reduce_op)
    _require_multicast("multimem_one_shot_all_reduce", input, group_name)
    return _one_shot("multimem_one_shot_all_reduce", input, group_name, out, _SWITCH)


def multimem_one_shot_all_reduce(
    input: torch.Tensor, reduce_op: str, group_name: str
) -> torch.Tensor:
    """Return the sum of every member's part, added in the switch."""
    out = torch.empty_like(input)
    return multimem_one_shot_all_reduce_out(input, reduce_op, group_name, out)


def multimem_one_shot_reduce_out(
    input: torch.Tensor, reduce_op: str, root: int, group_name: str, out: torch.Tensor
) -> torch.Tensor:
    """Sum every member's part in the switch, into a tensor of one of them.

    Simulated cost: one part into the root.
    """
    _check("multimem_one_shot_reduce", input, reduce_op)
    _require_multicast("multimem_one_shot_reduce", input, group_name)
    call, target = _Call("multimem_one_shot_reduce", input, group_name), _flat(out)

    def move() -> None:
        if call.rank == root:
            target[...] = _summed_in_switch(call.parts)

    call.issue(
        move, call.num_bytes, writes=[out], reads_of=call.touches() if call.rank == root else []
    )
    return out


def multimem_all_gather_out(
    input: torch.Tensor, group_name: str, out: torch.Tensor
) -> torch.Tensor:
    """Write this rank's tensor to its place in every member's symmetric tensor.

    Simulated cost: one tensor out of this device, and that of each peer in.
    """
    _require_multicast("multimem_all_gather", out, group_name)
    call, source = _Call("multimem_all_gather", out, group_name), _flat(input.contiguous())
    first = call.rank * len(source)

    def move() -> None:
        for part in call.parts:
            part[first : first + len(source)] = source

    call.issue(move, call.num_bytes, writes_of=call.touches(slice(first, first + len(source))))
    return out


# ---- words ----


class _Words(KernelOperation):
    """A write of words that kernels wait for; it orders them and never races."""

    __slots__ = ()
    tells_accesses = True


def write_words(stream: Stream, storage: Storage, values: tuple[int, int, int]) -> None:
    """Write a 32-bit value a number of times from an offset on, in stream order."""
    offset, value, count = values
    words = storage.array(np.dtype(np.uint32))[offset : offset + count]

    def write() -> None:
        words[...] = value
        watchers = watchers_of(stream.device.memory.space)
        watchers.wrote(stream.device.engine, storage, 4 * offset, 4 * (offset + count))

    floor_ps = stream.device.spec.kernel_floor_ps
    operation = _Words(stream, "memset32", write, duration_ps=floor_ps, demands=())
    written: Any = BufferPart(storage, words)
    operation.touched = Accesses([], [written])
    stream.submit(operation)
    note_storages(operation, [], [storage], require_rank("memset32"))


def _write_operators(issue: Callable[[Storage, tuple[int, int, int]], None]) -> dict[str, Any]:
    def memset32_(input: torch.Tensor, offset: int, val: int, count: int) -> torch.Tensor:
        """Write a 32-bit word several times."""
        if input.element_size() != 4 or not input.is_contiguous():
            raise RuntimeError(
                "symm_mem::memset32_: input must be a flat, contiguous uint32 tensor."
            )
        if offset < 0 or count <= 0 or offset + count > input.numel():
            raise RuntimeError("symm_mem::memset32_: offset and count must be within the input.")
        storage = buffers.storage_of(input)
        first = (input.data_ptr() - storage.address) // 4 + offset
        issue(storage, (first, val % (1 << 32), count))
        return input

    def stream_write_value32_(input: torch.Tensor, offset: int, val: int) -> torch.Tensor:
        """Write a 32-bit word."""
        return memset32_(input, offset, val, 1)

    return {"memset32_": memset32_, "stream_write_value32_": stream_write_value32_}


# ---- registration ----

_OPERATORS = (
    one_shot_all_reduce, one_shot_all_reduce_out, one_shot_all_reduce_copy,
    one_shot_all_reduce_copy_out, two_shot_all_reduce_, two_shot_all_reduce_out, reduce_scatter_out,
    multimem_all_reduce_, multimem_one_shot_all_reduce, multimem_one_shot_all_reduce_out,
    multimem_one_shot_reduce_out, multimem_all_gather_out,
)  # fmt: skip
REFUSED = (
    "_async_input_mm", "all_to_all_vdev", "all_to_all_vdev_2d", "all_to_all_vdev_2d_offset",
    "multi_root_tile_reduce", "nccl_get", "nccl_put", "nccl_put_signal", "nccl_put_with_signal",
    "nccl_reduce_scatter_offset", "nccl_wait_for_signal", "nccl_wait_signal", "nvshmem_all_to_all",
    "nvshmem_broadcast", "nvshmem_get", "nvshmem_put", "nvshmem_put_with_signal",
    "nvshmem_wait_for_signal", "tile_reduce",
)  # fmt: skip
_library: list[Any] = []


def register(issue: Callable[[Storage, tuple[int, int, int]], None]) -> None:
    """Register kernels of the operators for simulated devices, once per process."""
    if _library:
        return
    library: Any = Library("symm_mem", "IMPL")
    _library.append(library)
    for operator in _OPERATORS:
        library.impl(operator.__name__, operator, "CUDA")
    for name, operator in _write_operators(issue).items():
        library.impl(name, operator, "CUDA")
    for name in REFUSED:
        library.impl(name, _refusing(name), "CUDA")


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedError(f"torch.ops.symm_mem.{name} on simulated CUDA devices")

    return refuse
