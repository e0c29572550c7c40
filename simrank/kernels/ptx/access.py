"""Memory instructions: loads, stores, atomics, fences, barriers, multimem."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import SimrankError, UnsupportedError
from simrank.kernels import machine, memory
from simrank.kernels.machine import Order
from simrank.kernels.machine.running import programs_text
from simrank.kernels.memory.addresses import check_vectors
from simrank.kernels.memory.atomics import modify, replaced, swap_if_equal, unchanged
from simrank.kernels.ptx.compute import PACKED, TYPES, bits_of, read_as
from simrank.kernels.shmem.teams import members_of
from simrank.kernels.values import types
from simrank.kernels.values.block import Block
from simrank.units import PS_PER_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.kernels.machine.protocols import Array, Value
    from simrank.kernels.ptx.parse import Instruction, PtxOperand
    from simrank.kernels.ptx.run import SnippetLanes
    from simrank.kernels.values.types import ElementType

_ELEMENTS: dict[str, ElementType] = {
    "b8": types.uint8, "u8": types.uint8, "s8": types.int8, "b16": types.uint16,
    "u16": types.uint16, "s16": types.int16, "b32": types.uint32, "u32": types.uint32,
    "s32": types.int32, "b64": types.uint64, "u64": types.uint64, "s64": types.int64,
    "f16": types.float16, "bf16": types.bfloat16, "f32": types.float32, "f64": types.float64,
}  # fmt: skip
_SEMS = ("relaxed", "acquire", "release", "acq_rel", "volatile", "weak", "mmio")
SCOPES = {"sys": "sys", "gpu": "gpu", "cta": "cta", "cluster": "gpu"}
_WIDTHS = {"v2": 2, "v4": 4, "v8": 8}
# Cache hints, which change no value.
_HINTS = {
    "global", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "noftz", "L1", "L2", "no_allocate",
    "evict_first", "evict_last", "evict_normal", "evict_unchanged", "64B", "128B", "256B",
}  # fmt: skip


class _Access:
    """Modifiers of a memory instruction.

    Attributes:
        element: Type of the elements.
        kind: PTX type of the elements.
        sem: Memory semantics; "" if not given.
        scope: "cta", "gpu" or "sys".
        width: Number of elements per lane.
        operation: Operation of an atomic, for example "add"; else "".
    """

    def __init__(self, instruction: Instruction) -> None:
        self.kind = instruction.opcode[-1]
        self.sem, self.scope, self.width, self.operation = "", "gpu", 1, ""
        if self.kind not in _ELEMENTS:
            raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
        self.element = _ELEMENTS[self.kind]
        is_atomic = instruction.opcode[0] in ("atom", "red")
        for part in instruction.opcode[1:-1]:
            if part in _SEMS:
                self.sem = part
            elif part in SCOPES:
                self.scope = SCOPES[part]
            elif part in _WIDTHS:
                self.width = _WIDTHS[part]
            elif is_atomic and part in _ATOMICS:
                self.operation = part
            elif part not in _HINTS:
                text = f"inline assembly with {instruction.name} is not supported: .{part}"
                raise UnsupportedError(text)

    def order(self) -> Order:
        """Return the memory order; relaxed by default."""
        sem = self.sem if self.sem in ("acquire", "release", "acq_rel") else "relaxed"
        return Order(sem, "sys" if self.sem in ("volatile", "mmio") else self.scope)


@lru_cache(maxsize=1024)
def _access(instruction: Instruction) -> _Access:
    """Return the cached modifiers of an instruction."""
    return _Access(instruction)


def _pointer(
    lanes_of: SnippetLanes, operand: PtxOperand, access: _Access, lanes: Array, width: int = 1
) -> Block:
    """Return pointers to `width` consecutive elements per lane.

    Raises:
        PublishedError: Several programs run in lockstep; each must execute this at its own time.
        IllegalAccessError: A vector's address is not a multiple of its size.
    """
    if len(machine.now()) > 1:
        raise machine.PublishedError
    address = operand.parts[0] if operand.kind == "memory" else operand
    addresses = lanes_of.read(address, "b64", lanes).view(np.int64) + int(operand.value)
    if width > 1:
        check_vectors(machine.now(), addresses, access.element, width)
        offsets = np.arange(width, dtype=np.int64) * access.element.itemsize
        addresses = addresses[:, None] + offsets
    return Block(addresses.reshape(1, -1), types.pointer_to(access.element))


def _block(lanes_of: SnippetLanes, operand: PtxOperand, access: _Access, lanes: Array) -> Block:
    bits = lanes_of.read(operand, access.kind, lanes)
    values = read_as(bits, access.kind).astype(access.element.compute)
    return Block(values.reshape(1, -1), access.element)


def _write_result(
    lanes_of: SnippetLanes, operand: PtxOperand, access: _Access, result: Block, lanes: Array
) -> None:
    values = np.broadcast_to(np.asarray(result.values).reshape(-1), (len(lanes),))
    lanes_of.write(operand, access.kind, bits_of(values, access.kind), lanes)


def registers_of(operand: PtxOperand) -> tuple[PtxOperand, ...]:
    """Return the registers of an access; several for a vector."""
    return operand.parts if operand.kind == "vector" else (operand,)


def _load(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    """Load all elements of a vector at once: protocols keep a flag beside the data."""
    access = _access(instruction)
    target, address = instruction.operands[:2]
    parts = registers_of(target)
    # Every load in a loop is a poll, since assembly is not hoisted out of loops.
    is_poll = access.sem not in ("", "weak") or lanes_of.snippet.loops
    pointer = _pointer(lanes_of, address, access, lanes, len(parts))
    if is_poll:
        result = modify(pointer, [], None, access.order(), unchanged)
    else:
        result = memory.load(pointer, None, None)
    columns = np.asarray(result.values).reshape(-1, len(parts))
    for column, part in zip(columns.T, parts, strict=True):
        _write_result(lanes_of, part, access, Block(column, access.element), lanes)


def _store(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    """Store all elements of a vector at once."""
    access = _access(instruction)
    address, source = instruction.operands[:2]
    parts = registers_of(source)
    sync, order = machine.now().sync, access.order()
    if sync is not None and access.sem not in ("", "weak"):
        sync.before_signal(order)
    columns = [_block(lanes_of, part, access, lanes).values.reshape(-1) for part in parts]
    values = np.stack(columns, axis=-1).reshape(1, -1)
    pointer = _pointer(lanes_of, address, access, lanes, len(parts))
    memory.store(pointer, Block(values, access.element), None)
    if sync is not None:
        sync.after_signal()


def _atomic(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    access = _access(instruction)
    operands = list(instruction.operands)
    target = operands.pop(0) if instruction.opcode[0] == "atom" else None
    if not access.operation or access.width > 1:
        raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
    pointer = _pointer(lanes_of, operands[0], access, lanes)
    values = [_block(lanes_of, operand, access, lanes) for operand in operands[1:]]
    result = modify(
        pointer, values, None, access.order(), _ATOMICS[access.operation],
        wants_old=target is not None,
    )  # fmt: skip
    if target is not None:
        _write_result(lanes_of, target, access, result, lanes)


def _increased(old: Value, limit: Value) -> Value:
    result: Value = np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))
    return result


def _decreased(old: Value, limit: Value) -> Value:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


_ATOMICS: dict[str, Callable[..., Any]] = {
    "add": np.add, "min": np.fmin, "max": np.fmax, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exch": replaced, "cas": swap_if_equal,
    "inc": _increased, "dec": _decreased,
}  # fmt: skip


def _fence(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    del lanes_of, lanes
    programs, parts = machine.now(), instruction.opcode[1:]
    if {"cta", "proxy", "mbarrier_init"} & set(parts):
        return
    if programs.sync is not None:
        programs.sync.fence()
    elif programs.log is not None:
        programs.log.fence(programs.ids)


def _barrier(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    """Check a barrier; it has no effect, since one lane represents all threads of its block."""
    del lanes_of, lanes
    if not {"sync", "arrive", "warp"} & set(instruction.opcode[1:]):
        raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")


def _ignore(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    """Ignore a hint."""
    del lanes_of, instruction, lanes


def _wait_for_memory(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    """Wait until the program's stores have completed; this orders no other program."""
    del lanes_of, instruction, lanes
    sync = machine.now().sync
    if sync is not None:
        sync.drain()


def _sleep(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    sync = machine.now().sync
    if sync is not None:
        nanoseconds = lanes_of.values(instruction.operands[0], "u32", lanes)
        sync.charge(int(nanoseconds.max()) * PS_PER_NS)


def _trap(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    del lanes_of, instruction, lanes
    programs = machine.now()
    shown = programs_text(programs.ids.tolist())
    raise SimrankError(f"kernel '{programs.kernel}' trapped (inline assembly), {shown}")


HANDLERS: dict[str, Callable[[SnippetLanes, Instruction, Array], None]] = {
    "ld": _load, "st": _store, "atom": _atomic, "red": _atomic, "fence": _fence, "membar": _fence,
    "bar": _barrier, "barrier": _barrier, "nanosleep": _sleep, "trap": _trap,
    "prefetch": _ignore, "prefetchu": _ignore, "griddepcontrol": _ignore,
    "s_waitcnt": _wait_for_memory, "s_barrier": _ignore, "s_nop": _ignore,
}  # fmt: skip
assert set(_ELEMENTS) <= set(TYPES)


# ---- `multimem` instructions: one address represents the memory of all ranks of a team ----

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "min": np.fmin, "max": np.fmax, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip
_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
_OTHERS = {"weak", "global", "v2", "v4", "v8"}


class _Multimem:
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
            elif part in _ORDERS:
                sem = part
            elif part in SCOPES:
                scope = SCOPES[part]
            elif part not in _OTHERS:
                text = f"inline assembly with {instruction.name} is not supported: .{part}"
                raise UnsupportedError(text)
        self.order = Order(sem, scope) if sem else None
        self.per_register = 2 if self.kind in PACKED else 1


def multimem(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    """Run one instruction on some lanes.

    Raises:
        UnsupportedError: The instruction is not emulated.
        ValueError: The address is not a multicast address.
    """
    if len(machine.now()) > 1:
        raise machine.PublishedError
    handler = _MULTIMEM.get(instruction.opcode[1] if len(instruction.opcode) > 1 else "")
    if handler is None:
        raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
    handler(lanes_of, instruction, lanes)


def _pointers(
    lanes_of: SnippetLanes, operand: PtxOperand, access: _Multimem, lanes: Array, num_registers: int
) -> list[Block]:
    """Return pointers of the lanes to the memory of each rank of the team."""
    address = operand.parts[0] if operand.kind == "memory" else operand
    first = lanes_of.read(address, "b64", lanes).view(np.int64) + int(operand.value)
    count = num_registers * access.per_register
    offsets = np.arange(count, dtype=np.int64) * access.element.itemsize
    kind = types.pointer_to(access.element)
    if count > 1:
        check_vectors(machine.now(), first, access.element, count)
    return [
        Block((addresses[:, None] + offsets).reshape(1, -1), kind)
        for addresses in members_of(first)
    ]


def _load_reduce(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    access = _Multimem(instruction)
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


def _load_from_ranks(pointers: list[Block], access: _Multimem) -> list[Any]:
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


def _values(lanes_of: SnippetLanes, operand: PtxOperand, access: _Multimem, lanes: Array) -> Block:
    columns = [
        np.asarray(read_as(lanes_of.read(part, access.kind, lanes), access.kind))
        for part in registers_of(operand)
    ]
    stacked = np.stack([column.reshape(len(lanes), -1) for column in columns], axis=1)
    return Block(stacked.reshape(1, -1).astype(access.element.compute), access.element)


def _store_to_ranks(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    access = _Multimem(instruction)
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


def _reduce(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    access = _Multimem(instruction)
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


_MULTIMEM: dict[str, Callable[[SnippetLanes, Instruction, Array], None]] = {
    "ld_reduce": _load_reduce,
    "st": _store_to_ranks,
    "red": _reduce,
}
