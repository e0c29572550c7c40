"""Allocated blocks of torch's tensors on simulated devices, with their call sites and users.

Out-of-memory errors name the large blocks. With race checks every block is tracked, with the
accesses of torch's operations (D5) and its uses when it is freed (D7).
"""

from __future__ import annotations

from array import array
from ctypes import c_uint8
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.device.memory import Accesses, Storage
from simrank.engine import user_site
from simrank.torch import cuda
from simrank.torch.cuda.operations import phase
from simrank.torch.devices.costs import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from simrank.device import Device, Stream
    from simrank.device.races import RaceChecker
    from simrank.engine import CallSite
    from simrank.torch.cuda.operations import DeviceOperation, Operand


# ---- kinds of the large blocks of torch's tensors: parameters, gradients, activations ----
# A block's kind comes from the phase of the training step in which it was allocated, and from
# what it lives through: what forward has allocated and an optimizer's step finds there are
# parameters (and buffers), what backward has left are gradients, what a step leaves are the
# optimizer's states. What a collective sends or receives is a communication buffer.

PARAMETERS, GRADIENTS, STATES = "parameters", "gradients", "optimizer states"
BUFFERS, ACTIVATIONS, TEMPORARIES = "communication buffers", "activations", "backward's temporaries"
KINDS = (PARAMETERS, GRADIENTS, STATES, ACTIVATIONS, BUFFERS, TEMPORARIES)
_AT_FIRST = {
    "forward": ACTIVATIONS,
    "recomputation": ACTIVATIONS,
    "backward": TEMPORARIES,
    "optimizer": STATES,
}
_BEFORE_STEP = {ACTIVATIONS: PARAMETERS, TEMPORARIES: GRADIENTS}


class Held:
    """A large block that is allocated.

    Attributes:
        owner: The number of the rank that has allocated it.
        device: The cluster's index of its device.
        size_bytes: Its size.
        site: The call site of the tensor's allocation.
        kind: One of `KINDS`.
        number: How many large blocks its device had allocated before.
    """

    __slots__ = ("device", "kind", "number", "owner", "site", "size_bytes")

    def __init__(
        self, owner: int, device: int, size_bytes: int, site: CallSite | None, phase: str
    ) -> None:
        self.owner = owner
        self.device = device
        self.size_bytes = size_bytes
        self.site = site
        self.kind = _AT_FIRST[phase]
        self.number = 0


class DeviceKinds:
    """Sums of a device's large blocks by kind, now and where they were most.

    Attributes:
        at_peak: The sums where all large blocks together were most.
        totals_bytes: The sum of all after each allocation and each free, as torch's memory
            viewer numbers them.
    """

    def __init__(self) -> None:
        self.totals_bytes = array("q")
        self._now = dict.fromkeys(KINDS, 0)
        self._total = self._peak = self._number = self._peak_number = 0
        self._has_stepped = False
        self.at_peak = dict(self._now)

    def add(self, held: Held) -> None:
        """Add a block that is allocated."""
        self._number += 1
        held.number = self._number
        self._now[held.kind] += held.size_bytes
        self._total += held.size_bytes
        if self._total > self._peak:
            self._peak, self._peak_number = self._total, self._number
            self.at_peak = dict(self._now)
        self.totals_bytes.append(self._total)

    def remove(self, held: Held) -> None:
        """Remove a block that is freed."""
        self._now[held.kind] -= held.size_bytes
        self._total -= held.size_bytes
        self.totals_bytes.append(self._total)

    def change(self, held: Held, kind: str) -> None:
        """Change a block's kind: at the peak too, if it was there already."""
        sums = [self._now, self.at_peak] if held.number <= self._peak_number else [self._now]
        for each in sums:
            each[held.kind] -= held.size_bytes
            each[kind] += held.size_bytes
        held.kind = kind

    def text(self) -> str:
        """Return the sums of now as text: `parameters 14.96 GiB, gradients 14.96 GiB`."""
        now = dict(self._now)
        if not self._has_stepped:  # Nothing tells them apart yet.
            now["parameters and activations"] = now.pop(ACTIVATIONS)
        parts = sorted(now.items(), key=lambda part: -part[1])
        return ", ".join(f"{kind} {size / 2**30:.2f} GiB" for kind, size in parts if size)

    def begin_step(self, blocks: Iterable[Held], gradients: Iterable[Held]) -> None:
        """Set the kinds of the blocks that live as an optimizer's step begins.

        Args:
            blocks: Of the rank that steps, on this device.
            gradients: Those of them in which the optimizer's gradients are.
        """
        self._has_stepped = True
        for held in blocks:
            if (kind := _BEFORE_STEP.get(held.kind)) is not None:
                self.change(held, kind)
        for held in gradients:
            self.change(held, GRADIENTS)

    def exchange(self, held: Held) -> None:
        """Note that a collective sends or receives a block."""
        if held.kind in (ACTIVATIONS, TEMPORARIES):
            self.change(held, BUFFERS)


# ---- Allocated blocks of torch's tensors on simulated devices ----
# Out-of-memory errors name the large blocks. With race checks every block is tracked, with the
# accesses of torch's operations (D5) and its uses when it is freed (D7).

SHOWN_BYTES = 1 << 20  # Blocks from this size are named where memory runs out.
_NUM_SHOWN = 8
_INTEGERS = {"bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"}
_NO_BYTES = np.empty(0, np.uint8)


class Block(Storage):
    """A block for race checks: its bytes and its call site, without a reference that keeps it."""

    __slots__ = ("_made", "recorded")

    def __init__(self, device: Device, address: int, size_bytes: int) -> None:
        self.device = device
        self.size_bytes = size_bytes
        self.address = address
        self.is_real = self.has_values = True  # For race checks, which read no values.
        self.writes = None
        self._made: CallSite | None = user_site()
        self.recorded: set[Stream] = set()
        memory: Any = (c_uint8 * size_bytes).from_address(address) if size_bytes else None
        self._bytes = np.frombuffer(memory, np.uint8) if size_bytes else _NO_BYTES

    def __del__(self) -> None:
        """Do nothing: torch frees it."""

    def site(self) -> CallSite | None:
        """Return the call site of the tensor's allocation."""
        return self._made

    def made_with(self, other: Block) -> Block:
        """Take over the call site of another block, and return this one."""
        self._made = other._made
        return self


class Allocations:
    """The blocks on the devices of one Context.

    Args:
        checker: The race checker, or None.
    """

    def __init__(self, checker: RaceChecker | None) -> None:
        self.checker = checker
        self.shown_bytes = 0 if checker is not None else SHOWN_BYTES
        self._large: dict[int, Held] = {}  # By address.
        self._owned: dict[int, dict[int, Held]] = {}  # By the number of its rank, and address.
        self._kinds: dict[int, DeviceKinds] = {}  # By device.
        self._blocks: dict[int, Block] = {}

    def stop_race_checks(self) -> None:
        """Keep large blocks alone from now on."""
        self.checker, self.shown_bytes = None, SHOWN_BYTES
        self._blocks.clear()

    def allocated(self, owner: int, stream: Stream, address: int, size_bytes: int) -> None:
        """Record a new block of a stream, that a rank owns.

        Raises:
            RaceError: Another stream may still use what the stream has given back.
        """
        if size_bytes >= SHOWN_BYTES:
            held = Held(owner, stream.device.index, size_bytes, user_site(), phase())
            self._large[address] = self._owned.setdefault(owner, {})[address] = held
            self._kinds_of(held).add(held)
        if self.checker is not None:
            block = self._blocks[address] = Block(stream.device, address, size_bytes)
            if cuda.signal_pad(address):  # A pool of symmetric memory gives it out.
                self.checker.order.share(block)
            self.checker.allocated(stream, size_bytes)

    def freed(self, stream: Stream, address: int) -> None:
        """Record that a block was freed."""
        held = self._large.pop(address, None)
        if held is not None:
            del self._owned[held.owner][address]
            self._kinds_of(held).remove(held)
        block = self._blocks.pop(address, None)
        if self.checker is not None and block is not None:
            self.checker.freed(block, stream, block.recorded)

    def recorded(self, stream: Stream, address: int) -> None:
        """Record `Tensor.record_stream` of a block."""
        block = self._blocks.get(address)
        if block is not None:
            block.recorded.add(stream)

    def add_signal_pad(self, pad: Storage, buffer: Storage) -> None:
        """Record the signal pad of a buffer for race checks; the allocator does not report it."""
        made = self._blocks.get(buffer.address)
        if made is not None and pad.device is not None:
            block = Block(pad.device, pad.address, pad.size_bytes)
            self._blocks[pad.address] = block.made_with(made)

    def block_at(self, address: int) -> Block | None:
        """Return the block that begins at an address; None without race checks."""
        return self._blocks.get(address)

    def accesses(self, operation: DeviceOperation) -> Accesses:
        """Return the accesses of a torch operation."""
        return Accesses(
            list(self._views(o for o in operation.inputs if not o.is_written)),
            list(self._views(o for o in (*operation.inputs, *operation.outputs) if o.is_written)),
        )

    def _views(self, operands: Iterable[Operand]) -> Iterator[Any]:
        for operand in operands:
            found = cuda.find_block(operand.address) if operand.address else None
            block = None if found is None else self._blocks.get(found.address)
            if block is not None and 0 not in operand.sizes:
                yield _View(block, _array(block, operand))

    def begin_step(self, owner: int, gradients: Iterable[int]) -> None:
        """Set the kinds of a rank's blocks, as an optimizer's step of it begins.

        Args:
            owner: The rank.
            gradients: Addresses of the gradients' blocks.
        """
        blocks = self._owned.get(owner, {})
        of_gradients = [blocks[address] for address in gradients if address in blocks]
        for device in {held.device for held in blocks.values()}:
            own = [held for held in blocks.values() if held.device == device]
            there = [held for held in of_gradients if held.device == device]
            self._kinds[device].begin_step(own, there)

    def exchanged(self, owner: int, address: int) -> None:
        """Note that a collective sends or receives a rank's block at an address."""
        held = self._owned.get(owner, {}).get(address)
        if held is not None:
            self._kinds_of(held).exchange(held)

    def peak_by_kind(self, device: int) -> dict[str, int]:
        """Return the bytes of a device's large blocks by kind, where they were most."""
        found = self._kinds.get(device)
        return {} if found is None else {kind: n for kind, n in found.at_peak.items() if n}

    def totals_bytes(self, device: int) -> Sequence[int]:
        """Return the bytes of a device's large blocks after each allocation and each free."""
        found = self._kinds.get(device)
        return () if found is None else found.totals_bytes

    def _kinds_of(self, held: Held) -> DeviceKinds:
        found = self._kinds.get(held.device)
        if found is None:
            found = self._kinds[held.device] = DeviceKinds()
        return found

    def held_by_line(self, device: int) -> Iterator[str]:
        """Yield the sums of a device's large blocks by kind, then by the lines that hold most."""
        if device in self._kinds:
            yield f"  now: {self._kinds[device].text()}"
        held: dict[str, list[int]] = {}
        for block in self._large.values():
            if block.device == device:
                line = "?" if block.site is None else str(block.site.line())
                held.setdefault(line, []).append(block.size_bytes)
        lines = sorted(held.items(), key=lambda entry: -sum(entry[1]))
        for line, sizes in lines[:_NUM_SHOWN]:
            yield f"  {_sum_text(sizes)} allocated at {line}"
        rest = [size for _, sizes in lines[_NUM_SHOWN:] for size in sizes]
        if rest:
            yield f"  {_sum_text(rest)} allocated at {len(lines) - _NUM_SHOWN} other lines"


def _sum_text(sizes: Sequence[int]) -> str:
    """Return `20480.00 MiB in 80 tensors`."""
    number = f" in {len(sizes)} tensors" if len(sizes) > 1 else ""
    return f"{sum(sizes) / 2**20:.2f} MiB{number}"


class _View(NamedTuple):
    """Some elements of a block, as a buffer."""

    storage: Block
    array: np.ndarray[Any, Any]


def _array(block: Block, operand: Operand) -> np.ndarray[Any, Any]:
    name, size = DTYPES.get(operand.dtype, ("", 1))
    dtype = np.dtype(name) if name in _INTEGERS else np.dtype(f"V{size}")
    strides = [stride * size for stride in operand.strides]
    offset = operand.address - block.address
    return np.ndarray(operand.sizes, dtype, block._bytes, offset, strides)  # noqa: SLF001 - our own class
