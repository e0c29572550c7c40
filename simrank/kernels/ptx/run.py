"""Runs a snippet for many lanes, each with registers and a program counter of its own.

A lane is one invocation of the snippet. Of the lanes that can go on, those furthest behind run
next, together; lanes that go round a loop without seeing anything new are blocked, and when all
that are left are blocked the program parks on what they looked at (rule K2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.ptx import access, multimem, special, warps
from simrank.kernels.ptx.compute import (
    COMBINED,
    COMPARISONS,
    TYPES,
    bits_of,
    compute,
    is_float,
    read_as,
    result_kind,
)
from simrank.kernels.ptx.convert import convert

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.arrays import Array, Value
    from simrank.kernels.ptx.parse import Instruction, Operand, Snippet

_LEAVING = ("bra", "ret", "exit")  # What goes elsewhere than to the next instruction.


class _Seen(NamedTuple):
    """What was seen when a loop was last gone round."""

    num_effects: int
    registers: list[bytes]


class Lanes:
    """The lanes of one snippet.

    Args:
        snippet: What they run.
        arguments: Bits of `$0`, `$1`, ...: outputs first; each [lanes].
        rows: [lanes] which of the programs that run now each lane is of; where it has a lane for
            each of its threads, which thread.
        active: [lanes] which of them run; None for all.

    Attributes:
        arguments: As given; outputs are there when `run` returns.
        snippet: As given.
        rows: As given.
    """

    def __init__(
        self,
        snippet: Snippet,
        arguments: list[Array],
        rows: Array,
        active: Array | None = None,
    ) -> None:
        self.snippet = snippet
        self.arguments = arguments
        self.rows = rows
        self._registers: dict[str, Array] = {}
        self._end = len(snippet.instructions)
        self._all = np.arange(len(rows)) if active is None else np.flatnonzero(active)
        self._counters = np.full(len(rows), self._end)
        self._blocked = np.zeros(len(rows), bool)
        self._blocked_effects = 0
        self._seen: dict[int, _Seen] = {}

    def run(self) -> None:
        """Run every lane to its end."""
        counter = 0
        while counter < self._end:
            counter = self._run_together(counter)
            self._counters[self._all] = counter
            counter = self._run_apart()
        self._end_wait()

    def _run_together(self, counter: int) -> int:
        """Run all lanes from one instruction on; return where the next branch is, or the end."""
        for instruction in self.snippet.instructions[counter:]:
            if instruction.opcode[0] in _LEAVING:
                return counter
            lanes = self._taking_part(instruction, self._all)
            if len(lanes):
                self._execute(instruction, counter, lanes)
            counter += 1
        return counter

    def _run_apart(self) -> int:
        """Run the lanes that are furthest behind until all are at one instruction; return which."""
        while True:
            runs = (self._counters < self._end) & ~self._blocked
            if not runs.any():
                if not self._blocked.any():
                    return self._end
                self._unblock()
                continue
            counter = int(self._counters[runs].min())
            lanes = np.flatnonzero(runs & (self._counters == counter))
            instruction = self.snippet.instructions[counter]
            if len(lanes) == len(self._all) and instruction.opcode[0] not in _LEAVING:
                return counter
            self._counters[lanes] = counter + 1
            lanes = self._taking_part(instruction, lanes)
            if len(lanes):
                self._execute(instruction, counter, lanes)

    def _taking_part(self, instruction: Instruction, lanes: Array) -> Array:
        """Return the lanes whose guard lets them run an instruction."""
        if not instruction.guard:
            return lanes
        truth = self._register(instruction.guard)[lanes] != 0
        result: Array = lanes[truth != instruction.is_negated]
        return result

    def _execute(self, instruction: Instruction, counter: int, lanes: Array) -> None:
        name = instruction.opcode[0]
        if name == "bra":
            self._branch(instruction, counter, lanes)
        elif name in _LEAVING:
            self._counters[lanes] = self._end
        else:
            handler = _HANDLERS.get(name, access.HANDLERS.get(name, _arithmetic))
            handler(self, instruction, lanes)

    # ---- branches and waits ----

    def _branch(self, instruction: Instruction, counter: int, lanes: Array) -> None:
        target = self.snippet.labels.get(instruction.operands[-1].name)
        if target is None:
            label = instruction.operands[-1].name
            raise UnsupportedError(f"inline assembly branches to '{label}', which it does not have")
        self._counters[lanes] = target
        sync = machine.now().sync
        if target > counter or sync is None:
            return
        state = [self._registers[name].tobytes() for name in sorted(self._registers)]
        before = self._seen.get(counter)
        self._seen[counter] = _Seen(sync.num_effects, state)
        if before is None or before.num_effects != sync.num_effects or not sync.has_polls:
            return
        if before.registers == state:
            self._blocked[lanes] = True
            self._blocked_effects = sync.num_effects
        else:  # It counts or looks at the clock: it goes on by itself.
            sync.poll_again()

    def _end_wait(self) -> None:
        sync = machine.now().sync
        if sync is not None and self.snippet.loops:
            compared = [
                part.opcode[1] for part in self.snippet.instructions if part.opcode[0] == "setp"
            ]
            sync.end_wait(for_value=bool(compared) and set(compared) <= {"eq", "ne"})

    def _unblock(self) -> None:
        """Let blocked lanes look again, once something they looked at may have changed."""
        sync = machine.now().sync
        assert sync is not None, "only programs that wait are blocked"
        if sync.num_effects == self._blocked_effects:
            sync.park()
        self._blocked[:] = False

    # ---- operands ----

    def _register(self, name: str) -> Array:
        result = self._registers.get(name)
        if result is None:
            result = self._registers[name] = np.zeros(len(self.rows), np.uint64)
        return result

    def read(self, operand: Operand, kind: str, lanes: Array) -> Array:
        """Return the bits of an operand in some lanes.

        Args:
            operand: The operand.
            kind: Type that a number is of.
            lanes: Which lanes.
        """
        if operand.kind == "register":
            return self._register(operand.name)[lanes]
        if operand.kind == "argument":
            return self._argument(operand)[lanes]
        if operand.kind == "number":
            number: Any = operand.value
            if not is_float(kind) and kind != "pred":
                number = int(number) & ((1 << 8 * TYPES[kind].itemsize) - 1)
                return np.full(len(lanes), number, np.uint64)
            columns = 2 if kind in ("f16x2", "bf16x2") else 1
            return bits_of(np.full((len(lanes), columns), number), kind).reshape(-1)
        if operand.kind == "special":
            return special.read(operand.name, self.rows[lanes])
        if operand.kind == "vector":
            bits = 8 * TYPES[kind].itemsize // len(operand.parts)
            result = np.zeros(len(lanes), np.uint64)
            for index, part in enumerate(operand.parts):
                piece = self.read(part, f"b{bits}", lanes) & np.uint64((1 << bits) - 1)
                result |= piece << np.uint64(index * bits)
            return result
        raise UnsupportedError(f"inline assembly reads an operand of the form {operand.kind}")

    def values(self, operand: Operand, kind: str, lanes: Array) -> Value:
        """Return an operand in some lanes, as values of a type."""
        return read_as(self.read(operand, kind, lanes), kind)

    def write(self, operand: Operand, kind: str, bits: Array, lanes: Array) -> None:
        """Set a register, an output, or each part of a vector of them."""
        if operand.kind == "register":
            if operand.name != "_":
                self._register(operand.name)[lanes] = bits
        elif operand.kind == "argument":
            self._argument(operand)[lanes] = bits
        elif operand.kind == "vector":
            width = 8 * TYPES[kind].itemsize // len(operand.parts)
            mask = np.uint64((1 << width) - 1)
            for index, part in enumerate(operand.parts):
                piece = (bits >> np.uint64(index * width)) & mask
                self.write(part, f"b{width}", piece, lanes)
        else:
            raise UnsupportedError(f"inline assembly writes an operand of the form {operand.kind}")

    def _argument(self, operand: Operand) -> Array:
        index = int(operand.value)
        if index >= len(self.arguments):
            raise ValueError(
                f"inline assembly names ${index}, but its constraints have "
                f"{len(self.arguments)} operands"
            )
        return self.arguments[index]


def _kind(instruction: Instruction) -> str:
    """Return the type of an instruction: the last part of its name.

    Raises:
        UnsupportedError: It is no type, so the instruction is none that is known.
    """
    kind = instruction.opcode[-1]
    if kind not in TYPES:
        raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
    return kind


def _arithmetic(lanes_of: Lanes, instruction: Instruction, lanes: Array) -> None:
    kind, opcode = _kind(instruction), instruction.opcode
    target, *sources = instruction.operands
    result = result_kind(opcode, kind)
    values = []
    for index, source in enumerate(sources):
        own = kind
        if index and opcode[0] in ("shl", "shr", "bfe"):
            own = "u32"
        elif index == 2 and "wide" in opcode:
            own = result
        elif index == 3 and opcode[0] == "lop3":
            own = "u32"
        values.append(lanes_of.values(source, own, lanes))
    lanes_of.write(target, result, bits_of(compute(opcode, kind, values), result), lanes)


def _move(lanes_of: Lanes, instruction: Instruction, lanes: Array) -> None:
    kind = _kind(instruction)
    target, source = instruction.operands
    bits = lanes_of.read(source, kind, lanes)
    if kind != "pred":
        bits = bits & np.uint64((1 << 8 * TYPES[kind].itemsize) - 1)
    lanes_of.write(target, kind, bits, lanes)


def _set_predicate(lanes_of: Lanes, instruction: Instruction, lanes: Array) -> None:
    kind, (_, comparison, *rest) = _kind(instruction), instruction.opcode
    target, first, second, *third = instruction.operands
    compare = COMPARISONS.get(comparison)
    if compare is None:
        raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
    truth = compare(lanes_of.values(first, kind, lanes), lanes_of.values(second, kind, lanes))
    other = ~truth
    if third:
        combine = COMBINED[rest[0]]
        also = lanes_of.values(third[0], "pred", lanes)
        truth, other = combine(truth, also), combine(other, also)
    targets = target.parts if target.kind == "pair" else (target,)
    for part, value in zip(targets, (truth, other), strict=False):
        lanes_of.write(part, "pred", bits_of(value, "pred"), lanes)


def _select(lanes_of: Lanes, instruction: Instruction, lanes: Array) -> None:
    kind = _kind(instruction)
    target, first, second, condition = instruction.operands
    truth = lanes_of.values(condition, "pred", lanes)
    chosen = np.where(truth, lanes_of.read(first, kind, lanes), lanes_of.read(second, kind, lanes))
    lanes_of.write(target, kind, chosen, lanes)


def _convert(lanes_of: Lanes, instruction: Instruction, lanes: Array) -> None:
    target, *sources = instruction.operands
    source_kind = instruction.opcode[-1]
    own = source_kind if source_kind in TYPES else "b16"
    bits = [lanes_of.read(source, own, lanes) for source in sources]
    result = convert(instruction.opcode, bits)
    kind = instruction.opcode[-2]
    lanes_of.write(target, kind if kind in TYPES else "b16", result, lanes)


_HANDLERS: dict[str, Callable[[Lanes, Instruction, Array], None]] = {
    "mov": _move,
    "cvta": _move,
    "setp": _set_predicate,
    "selp": _select,
    "cvt": _convert,
    "multimem": multimem.run,
    "shfl": warps.shuffle,
    "vote": warps.vote,
}
