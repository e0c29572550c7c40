"""Interpreter of a snippet for many lanes, each with its own registers and program counter.

A lane is one invocation of the snippet. Among the runnable lanes, those with the lowest counter run
next, together. A lane that repeats a loop without observing a change is blocked. When all remaining
lanes are blocked, the program parks on the memory that they polled (rule K2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import ml_dtypes
import numpy as np

from simrank.device.memory import Storage
from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.language.special import to_tf32
from simrank.kernels.ptx import access
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
from simrank.kernels.running import threads
from simrank.kernels.values.types import to_float32
from simrank.units import PS_PER_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.kernels.machine import Programs, Statistics
    from simrank.kernels.machine.protocols import Array, Value
    from simrank.kernels.ptx.parse import Instruction, PtxOperand, Snippet

WARP = 32  # NVIDIA's; AMD has no such instructions


def _check(lanes_of: SnippetLanes, instruction: Instruction) -> None:
    if len(lanes_of.rows) != threads.num_threads():
        raise UnsupportedError(
            f"inline assembly with {instruction.name} is not supported in a kernel that does not "
            "ask which thread it is"
        )
    if threads.warp_size() != WARP:
        raise UnsupportedError(
            f"inline assembly with {instruction.name}, an instruction of warps of {WARP} threads, "
            f"is not supported on a device whose warps have {threads.warp_size()}"
        )


def shuffle(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    """Give each thread the value of another thread of its warp.

    Raises:
        UnsupportedError: The kernel has no lane per thread, or the mode is unknown.
    """
    _check(lanes_of, instruction)
    target, source, distance, bounds = instruction.operands[:4]
    by = (lanes_of.read(distance, "b32", lanes) & np.uint64(31)).astype(np.int64)
    limits = lanes_of.read(bounds, "b32", lanes).astype(np.int64)
    segment, clamp = limits >> 8 & 31, limits & 31
    own = lanes % WARP
    last = (own & segment) | (clamp & ~segment)
    mode = next((part for part in instruction.opcode if part in _MODES), "")
    if not mode:
        raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
    other = _MODES[mode](own, by, segment)
    is_inside = other >= last if mode == "up" else other <= last
    where = lanes - own + np.where(is_inside, other, own)
    targets = target.parts if target.kind == "pair" else (target,)
    lanes_of.write(targets[0], "b32", lanes_of.read(source, "b32", where), lanes)
    if len(targets) > 1:
        lanes_of.write(targets[1], "pred", bits_of(is_inside, "pred"), lanes)


_MODES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "idx": lambda own, by, segment: (own & segment) | (by & ~segment),
    "up": lambda own, by, _: own - by,
    "down": lambda own, by, _: own + by,
    "bfly": lambda own, by, _: own ^ by,
}


def vote(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    """Give each thread a summary of a condition over the threads of its warp.

    Raises:
        UnsupportedError: The kernel has no lane per thread, or the mode is unknown.
    """
    _check(lanes_of, instruction)
    target, condition = instruction.operands[:2]
    holds = np.zeros((len(lanes_of.rows) // WARP, WARP), bool)
    takes_part = holds.copy()
    holds.reshape(-1)[lanes] = lanes_of.values(condition, "pred", lanes)
    takes_part.reshape(-1)[lanes] = True
    if "ballot" in instruction.opcode:
        bits = np.uint64(1) << np.arange(WARP, dtype=np.uint64)
        result, kind = (holds * bits).sum(axis=1, dtype=np.uint64), "b32"
    elif "any" in instruction.opcode:
        result, kind = bits_of(holds.any(axis=1), "pred"), "pred"
    elif "all" in instruction.opcode:
        result, kind = bits_of((holds | ~takes_part).all(axis=1), "pred"), "pred"
    else:
        raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
    lanes_of.write(target, kind, result[lanes // WARP], lanes)


# ---- Lanes ----

_LEAVING = ("bra", "ret", "exit")  # Opcodes that leave the sequence of instructions.


class _Seen(NamedTuple):
    """State at the last iteration of a loop."""

    num_effects: int
    registers: list[bytes]


class SnippetLanes:
    """Lanes of one snippet.

    Args:
        snippet: The instructions.
        arguments: Bits of `$0`, `$1`, ..., [lanes] each; outputs first.
        rows: Index of each lane's program among the running programs, [lanes]; in a kernel with a
            lane per thread, the thread.
        active: The lanes that run, [lanes]; None for all.

    Attributes:
        arguments: As given; outputs are set when `run` returns.
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
            counter = self._run_diverged()
        self._end_wait()

    def _run_together(self, counter: int) -> int:
        """Run all lanes from one instruction to the next branch or the end; return that index."""
        for instruction in self.snippet.instructions[counter:]:
            if instruction.opcode[0] in _LEAVING:
                return counter
            lanes = self._enabled(instruction, self._all)
            if len(lanes):
                self._execute(instruction, counter, lanes)
            counter += 1
        return counter

    def _run_diverged(self) -> int:
        """Run the lanes with the lowest counter until all are at one instruction; return it."""
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
            lanes = self._enabled(instruction, lanes)
            if len(lanes):
                self._execute(instruction, counter, lanes)

    def _enabled(self, instruction: Instruction, lanes: Array) -> Array:
        """Return the lanes whose guard enables an instruction."""
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

    # ---- Branches and waits ----

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
        else:  # The loop counts or reads the clock, so it makes progress.
            sync.poll_again()

    def _end_wait(self) -> None:
        sync = machine.now().sync
        if sync is not None and self.snippet.loops:
            compared = [
                part.opcode[1] for part in self.snippet.instructions if part.opcode[0] == "setp"
            ]
            sync.end_wait(for_value=bool(compared) and set(compared) <= {"eq", "ne"})

    def _unblock(self) -> None:
        """Unblock the lanes, after a park if nothing has changed since they blocked."""
        sync = machine.now().sync
        assert sync is not None, "only programs that wait are blocked"
        if sync.num_effects == self._blocked_effects:
            sync.park()
        self._blocked[:] = False

    # ---- Operands ----

    def _register(self, name: str) -> Array:
        result = self._registers.get(name)
        if result is None:
            result = self._registers[name] = np.zeros(len(self.rows), np.uint64)
        return result

    def read(self, operand: PtxOperand, kind: str, lanes: Array) -> Array:
        """Return the bits of an operand in some lanes.

        Args:
            operand: The operand.
            kind: PTX type of a literal.
            lanes: Indices of the lanes.
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
            return read(operand.name, self.rows[lanes])
        if operand.kind == "vector":
            bits = 8 * TYPES[kind].itemsize // len(operand.parts)
            result = np.zeros(len(lanes), np.uint64)
            for index, part in enumerate(operand.parts):
                piece = self.read(part, f"b{bits}", lanes) & np.uint64((1 << bits) - 1)
                result |= piece << np.uint64(index * bits)
            return result
        raise UnsupportedError(f"inline assembly reads an operand of the form {operand.kind}")

    def values(self, operand: PtxOperand, kind: str, lanes: Array) -> Value:
        """Return an operand in some lanes, as values of a PTX type."""
        return read_as(self.read(operand, kind, lanes), kind)

    def write(self, operand: PtxOperand, kind: str, bits: Array, lanes: Array) -> None:
        """Write a register, an output, or each part of a vector."""
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

    def _argument(self, operand: PtxOperand) -> Array:
        index = int(operand.value)
        if index >= len(self.arguments):
            raise ValueError(
                f"inline assembly names ${index}, but its constraints have "
                f"{len(self.arguments)} operands"
            )
        return self.arguments[index]


def _kind(instruction: Instruction) -> str:
    """Return the PTX type of an instruction: the last part of its opcode.

    Raises:
        UnsupportedError: It is not a type, so the instruction is unknown.
    """
    kind = instruction.opcode[-1]
    if kind not in TYPES:
        raise UnsupportedError(f"inline assembly with {instruction.name} is not supported")
    return kind


def _arithmetic(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
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


def _move(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    kind = _kind(instruction)
    target, source = instruction.operands
    bits = lanes_of.read(source, kind, lanes)
    if kind != "pred":
        bits = bits & np.uint64((1 << 8 * TYPES[kind].itemsize) - 1)
    lanes_of.write(target, kind, bits, lanes)


def _set_predicate(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
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


def _select(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    kind = _kind(instruction)
    target, first, second, condition = instruction.operands
    truth = lanes_of.values(condition, "pred", lanes)
    chosen = np.where(truth, lanes_of.read(first, kind, lanes), lanes_of.read(second, kind, lanes))
    lanes_of.write(target, kind, chosen, lanes)


def _convert(lanes_of: SnippetLanes, instruction: Instruction, lanes: Array) -> None:
    target, *sources = instruction.operands
    source_kind = instruction.opcode[-1]
    own = source_kind if source_kind in TYPES else "b16"
    bits = [lanes_of.read(source, own, lanes) for source in sources]
    result = convert(instruction.opcode, bits)
    kind = instruction.opcode[-2]
    lanes_of.write(target, kind if kind in TYPES else "b16", result, lanes)


_HANDLERS: dict[str, Callable[[SnippetLanes, Instruction, Array], None]] = {
    "mov": _move,
    "cvta": _move,
    "setp": _set_predicate,
    "selp": _select,
    "cvt": _convert,
    "multimem": access.multimem,
    "shfl": shuffle,
    "vote": vote,
}

# ---- Special registers: thread indices and clocks ----
# A snippet that reads a thread index has a lane for each thread. Any other snippet has one lane for
# the thread block, or a lane for each element of a block; these lanes all are thread 0.

_OF_THREADS: dict[str, Callable[[Array], Array]] = {
    "tid.x": lambda rows: rows,
    "laneid": lambda rows: rows % threads.warp_size(),
    "warpid": lambda rows: rows // threads.warp_size(),
}
_AXES = ("x", "y", "z")


def read(name: str, rows: Array) -> Array:
    """Return the bits of a special register for lanes of the running programs.

    Raises:
        UnsupportedError: The register is not emulated.
    """
    programs = machine.now()
    register, _, axis = name.partition(".")
    number = _AXES.index(axis) if axis in _AXES else 0
    if programs.options.num_threads:
        result = _OF_THREADS.get(name)
        if result is not None:
            return result(rows).astype(np.uint64)
        rows = np.zeros(len(rows), np.int64)
    if register == "ctaid":
        ids = np.broadcast_to(programs.axis_ids(number), (len(programs),))
        return ids.astype(np.uint64)[rows]
    if register == "smid":  # Programs are assigned to SMs round-robin.
        return (programs.ids % programs.device.spec.num_sms).astype(np.uint64)[rows]
    return np.full(len(rows), _shared(register, number), np.uint64)


def _shared(register: str, axis: int) -> int:
    programs = machine.now()
    num_warps = programs.options.num_warps
    fixed = {
        "tid": 0, "laneid": 0, "warpid": 0, "cluster_ctarank": 0, "clock_hi": 0,
        "ntid": 1 if axis else threads.num_of_program(), "nwarpid": num_warps,
        "nctaid": programs.grid[axis], "nsmid": programs.device.spec.num_sms,
    }  # fmt: skip
    if register in fixed:
        return fixed[register]
    now_ps = machine.clock_ps()
    if register in ("globaltimer", "clock64"):  # Assumed: a clock of 1 GHz.
        return int(now_ps // PS_PER_NS)
    if register in ("globaltimer_lo", "clock"):
        return int(now_ps // PS_PER_NS) & 0xFFFFFFFF
    if register == "realtime":  # AMD's: 100 MHz, see the CDNA 3 ISA, S_MEMREALTIME.
        return int(now_ps // (10 * PS_PER_NS))
    if register in _HALVES:
        return _workspace(programs).address >> _HALVES[register] & 0xFFFFFFFF
    raise UnsupportedError(f"inline assembly with %{register} is not supported")


# The driver passes the address of a grid's workspace to cooperative groups in these registers.
_HALVES = {"envreg1": 32, "envreg2": 0}
_WORKSPACE_BYTES = 64
_workspaces: WeakKeyDictionary[Statistics, Storage] = WeakKeyDictionary()


def _workspace(programs: Programs) -> Storage:
    """Return the workspace of a launch, zero at its start.

    Raises:
        UnsupportedError: The launch is not cooperative.
    """
    if not programs.options.is_cooperative:
        raise UnsupportedError(
            f"kernel '{programs.kernel}' asks for the workspace of a cooperative launch\n"
            "  to fix: launch it with launch_cooperative_grid=True"
        )
    result = _workspaces.get(programs.statistics)
    if result is None:
        result = _workspaces[programs.statistics] = Storage(programs.device, _WORKSPACE_BYTES)
        result.array(np.dtype(np.uint8))[:] = 0
    return result


# ---- Conversions: `cvt` between integers, floats and pairs of narrow floats ----

# Pairs of fp8, of fp4, and of powers of two.
_FP8: dict[str, Any] = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}
_FP4, _POWERS = "e2m1x2", "ue8m0x2"
_NARROW = {*_FP8, _FP4, _POWERS}
_POWER_BIAS, _POWER_NAN = 127, 255
_PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}
_HALF_TYPES = ("f16", "bf16")
_ROUNDINGS = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_KNOWN = {
    "rn", "rz", "rp", "rna", "rni", "rzi", "rmi", "rpi", "sat", "satfinite", "ftz", "relu",
    "approx",
}  # fmt: skip


def convert(opcode: tuple[str, ...], sources: Sequence[Array]) -> Array:
    """Convert values and return their bits; the first of two sources goes to the upper half.

    Raises:
        UnsupportedError: The conversion is not emulated.
    """
    *modifiers, target, source = opcode[1:]
    name = ".".join(opcode)
    known = {*TYPES, *_NARROW}
    if target not in known or source not in known or set(modifiers) - _KNOWN:
        raise UnsupportedError(f"inline assembly with {name} is not supported: no such conversion")
    if source in _NARROW:
        return _from_narrow(sources[0], source, target)
    if target in _NARROW or target in _PAIRS:
        return _to_pair(sources, source, target, modifiers)
    values = read_as(sources[0], source)
    if is_float(source) and not is_float(target):
        return bits_of(_to_integer(values, TYPES[target], modifiers), target)
    if is_float(source) and is_float(target):
        return bits_of(_to_float(values, target, modifiers), target)
    if "sat" in modifiers:
        info = np.iinfo(TYPES[target])
        low = max(int(info.min), int(np.iinfo(values.dtype).min))
        values = np.clip(values, low, min(int(info.max), int(np.iinfo(values.dtype).max)))
    return bits_of(to_float32(values) if target in _HALF_TYPES else values, target)


def _to_float(values: Array, target: str, modifiers: Sequence[str]) -> Array:
    rounding = next((_ROUNDINGS[m] for m in modifiers if m in _ROUNDINGS), None)
    wide = values.astype(np.float32) if values.dtype.itemsize < 4 else values
    if rounding is not None:
        wide = rounding(wide)
    if "sat" in modifiers:
        wide = np.clip(wide, 0, 1)
    if "relu" in modifiers:
        wide = np.maximum(wide, 0)
    if target == "tf32":
        rounded: Array = to_tf32(wide)
        return rounded
    if target in _HALF_TYPES:
        wide = to_float32(wide)
    if "rz" in modifiers and target in _HALF_TYPES:
        return _toward_zero(wide, TYPES[target])
    return wide.astype(TYPES[target])


def _toward_zero(values: Array, dtype: np.dtype[Any]) -> Array:
    near = values.astype(dtype)
    too_large = np.abs(near.astype(np.float32)) > np.abs(values)
    smaller: Array = np.where(too_large, np.nextafter(near, dtype.type(0)), near)
    return smaller


def _to_integer(values: Array, dtype: np.dtype[Any], modifiers: Sequence[str]) -> Value:
    """Round and saturate as hardware does.

    NaN gives zero; from fp64 and to 64-bit types it gives 2**(bits - 1).
    """
    rounding = next((_ROUNDINGS[m] for m in modifiers if m in _ROUNDINGS), np.trunc)
    wide = np.nan_to_num(rounding(values.astype(np.float64)), nan=0.0)
    info = np.iinfo(dtype)
    inside = np.clip(wide, float(info.min), float(info.max))
    result = inside.astype(dtype)
    if dtype.itemsize == 8 or values.dtype == np.float64:
        nothing = np.array(1 << info.bits - 1, f"u{dtype.itemsize}").view(dtype)
        result = np.where(np.isnan(values), nothing, result)
    value_of_all: Value = np.where(wide >= float(info.max), dtype.type(info.max), result)
    return value_of_all


def _to_pair(sources: Sequence[Array], source: str, target: str, modifiers: Sequence[str]) -> Array:
    """Convert two values to a packed pair, the first in the upper half."""
    if source in _PAIRS:
        both = read_as(sources[0], source).astype(np.float32)
    else:
        upper, lower = (read_as(bits, source) for bits in sources)
        both = np.stack([lower, upper], axis=-1)
    if "relu" in modifiers:
        both = np.maximum(both, 0)
    if target in _PAIRS:
        return bits_of(both, target)
    if target == _FP4:
        # NaN gives the largest value (PTX ISA 8.8, cvt).
        narrow = np.clip(np.nan_to_num(both, nan=6.0), -6.0, 6.0).astype(ml_dtypes.float4_e2m1fn)
        codes = narrow.view(np.uint8) & 0xF
        packed: Array = codes[:, 0] | codes[:, 1] << 4
        return packed.astype(np.uint64)
    if target == _POWERS:
        codes = _power_codes(both, rounds_up="rp" in modifiers)
    else:
        dtype = np.dtype(_FP8[target])
        largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        codes = np.clip(both, -largest, largest).astype(dtype)  # Conversions to fp8 saturate.
    return np.ascontiguousarray(codes).view(np.uint16).reshape(-1).astype(np.uint64)


def _power_codes(values: Array, *, rounds_up: bool) -> Array:
    """Return the biased exponents of powers of two, rounded up or toward zero, without sign."""
    wide = np.abs(values.astype(np.float64))
    fraction, exponent = np.frexp(wide)  # In [0.5, 1): an exact power of two gives 0.5.
    exponent = exponent - 1 + ((fraction > 0.5) & rounds_up)
    inside = np.clip(exponent, -_POWER_BIAS, _POWER_BIAS)
    inside = np.where(wide == 0, -_POWER_BIAS, np.where(np.isinf(wide), _POWER_BIAS, inside))
    return np.where(np.isnan(wide), _POWER_NAN, inside + _POWER_BIAS).astype(np.uint8)


def _from_narrow(bits: Array, source: str, target: str) -> Array:
    if target not in _PAIRS:
        raise UnsupportedError(f"inline assembly with a conversion of {source} to {target}")
    if source == _FP4:
        codes = np.stack([bits & 0xF, (bits >> 4) & 0xF], axis=-1).astype(np.uint8)
        pair = codes.view(ml_dtypes.float4_e2m1fn)
    else:
        dtype = ml_dtypes.float8_e8m0fnu if source == _POWERS else _FP8[source]
        pair = bits.astype(np.uint16).view(np.dtype(dtype)).reshape(-1, 2)
    return bits_of(pair.astype(np.float32), target)
