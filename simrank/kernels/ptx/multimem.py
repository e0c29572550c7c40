"""`multimem` instructions: one address represents the memory of all ranks of a team."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels import machine, memory
from simrank.kernels.machine import Order
from simrank.kernels.memory import illegal
from simrank.kernels.memory.atomics import modify, unchanged
from simrank.kernels.ptx.access import SCOPES, registers_of
from simrank.kernels.ptx.compute import PACKED, TYPES, bits_of, read_as
from simrank.kernels.shmem import multicast
from simrank.kernels.values import types
from simrank.kernels.values.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.kernels.machine.arrays import Array
    from simrank.kernels.ptx.parse import Instruction, Operand
    from simrank.kernels.ptx.run import Lanes

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "min": np.fmin, "max": np.fmax, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip
_SEMS = ("relaxed", "acquire", "release", "acq_rel")
_OTHERS = {"weak", "global", "v2", "v4", "v8"}


class _Access:
    """Modifiers of a multimem instruction.

    Attributes:
        kind: PTX type of a register.
        element: Type of the elements in memory.
        operation: Operation that combines values; "" if none.
        order: Memory order; None for weak accesses.
        accumulates: Whether sums are rounded only once, at the end.
    """

    def __init__(self, instruction: Instruction) -> None:
        *parts, self.kind = instruction.opcode[2:]
        if "acc" in parts:  # `.acc::f32`
            parts = [part for part in parts if part not in ("acc", "f32")]
        self.accumulates = len(parts) < len(instruction.opcode) - 3
        if self.kind not in TYPES or self.kind == "pred":
            raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
        self.element = types.of_memory(TYPES[self.kind])
        self.operation, sem, scope = "", "", "sys"
        for part in parts:
            if part in _OPERATIONS:
                self.operation = part
            elif part in _SEMS:
                sem = part
            elif part in SCOPES:
                scope = SCOPES[part]
            elif part not in _OTHERS:
                text = f"inline assembly with {instruction.name} is not supported: .{part}"
                raise UnsupportedError(text)
        self.order = Order(sem, scope) if sem else None
        self.per_register = 2 if self.kind in PACKED else 1


def run(lanes_of: Lanes, instruction: Instruction, lanes: Array) -> None:
    """Run one instruction on some lanes.

    Raises:
        UnsupportedError: The instruction is not emulated.
        ValueError: The address is not a multicast address.
    """
    if len(machine.now()) > 1:
        raise machine.PublishedError
    handler = _HANDLERS.get(instruction.opcode[1] if len(instruction.opcode) > 1 else "")
    if handler is None:
        raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
    handler(lanes_of, instruction, lanes)


def _pointers(
    lanes_of: Lanes, operand: Operand, access: _Access, lanes: Array, num_registers: int
) -> list[Block]:
    """Return pointers of the lanes to the memory of each rank of the team."""
    address = operand.parts[0] if operand.kind == "memory" else operand
    first = lanes_of.read(address, "b64", lanes).view(np.int64) + int(operand.value)
    count = num_registers * access.per_register
    offsets = np.arange(count, dtype=np.int64) * access.element.itemsize
    kind = types.pointer_to(access.element)
    if count > 1:
        illegal.check_vectors(machine.now(), first, access.element, count)
    return [
        Block((addresses[:, None] + offsets).reshape(1, -1), kind)
        for addresses in multicast.members_of(first)
    ]


def _load_reduce(lanes_of: Lanes, instruction: Instruction, lanes: Array) -> None:
    access = _Access(instruction)
    target, address = instruction.operands
    registers = registers_of(target)
    combine = _OPERATIONS.get(access.operation)
    if combine is None:
        raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
    total: Any = None
    pointers = _pointers(lanes_of, address, access, lanes, len(registers))
    for result in _load_from_ranks(pointers, access):
        total = result if total is None else combine(total, result)
        if access.element.round is not None and not access.accumulates:
            total = access.element.round(total)
    shaped = np.asarray(total).reshape(len(lanes), len(registers), access.per_register)
    for index, register in enumerate(registers):
        values = shaped[:, index].astype(TYPES[access.kind])
        flat = values if access.per_register > 1 else values.reshape(-1)
        lanes_of.write(register, access.kind, bits_of(flat, access.kind), lanes)


def _load_from_ranks(pointers: list[Block], access: _Access) -> list[Any]:
    """Load the elements from each rank; the switch loads from all ranks at the same time."""
    if access.order is None:
        return [memory.load(pointer, None, None).values for pointer in _parts_per_rank(pointers)]
    result: Any = modify(_concatenated(pointers), [], None, access.order, unchanged).values
    return np.split(result.reshape(1, -1), len(pointers), axis=1)


def _parts_per_rank(pointers: list[Block]) -> Iterator[Block]:
    """Yield the part of an access for each rank; the program is charged for the first only."""
    sync = machine.now().sync
    for number, pointer in enumerate(pointers):
        if sync is not None:
            sync.is_free = number > 0
        yield pointer
    if sync is not None:
        sync.is_free = False


def _concatenated(pointers: list[Block]) -> Block:
    addresses = np.concatenate([pointer.values for pointer in pointers], axis=1)
    return Block(addresses, pointers[0].element)


def _values(lanes_of: Lanes, operand: Operand, access: _Access, lanes: Array) -> Block:
    columns = [
        np.asarray(read_as(lanes_of.read(part, access.kind, lanes), access.kind))
        for part in registers_of(operand)
    ]
    stacked = np.stack([column.reshape(len(lanes), -1) for column in columns], axis=1)
    return Block(stacked.reshape(1, -1).astype(access.element.compute), access.element)


def _store(lanes_of: Lanes, instruction: Instruction, lanes: Array) -> None:
    access = _Access(instruction)
    address, source = instruction.operands
    values = _values(lanes_of, source, access, lanes)
    sync = machine.now().sync
    if sync is not None and access.order is not None:
        sync.before_signal(access.order)
    for pointer in _parts_per_rank(
        _pointers(lanes_of, address, access, lanes, len(registers_of(source)))
    ):
        memory.store(pointer, values, None)
    if sync is not None:
        sync.after_signal()


def _reduce(lanes_of: Lanes, instruction: Instruction, lanes: Array) -> None:
    access = _Access(instruction)
    address, source = instruction.operands
    combine = _OPERATIONS.get(access.operation)
    if combine is None:
        raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
    values, order = (
        _values(lanes_of, source, access, lanes),
        access.order or Order("relaxed", "sys"),
    )
    pointers = _pointers(lanes_of, address, access, lanes, len(registers_of(source)))
    operand = Block(np.tile(np.asarray(values.values), (1, len(pointers))), values.element)
    modify(_concatenated(pointers), [operand], None, order, combine, wants_old=False)


_HANDLERS: dict[str, Callable[[Lanes, Instruction, Array], None]] = {
    "ld_reduce": _load_reduce,
    "st": _store,
    "red": _reduce,
}
