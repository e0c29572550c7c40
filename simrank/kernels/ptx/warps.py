"""What threads of a warp tell each other: shuffles and votes, in kernels with a lane per thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels.ptx.compute import bits_of
from simrank.kernels.running import threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine.arrays import Array
    from simrank.kernels.ptx.parse import Instruction
    from simrank.kernels.ptx.run import Lanes

WARP = 32  # NVIDIA's, whose instructions these are


def _check(lanes_of: Lanes, instruction: Instruction) -> None:
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


def shuffle(lanes_of: Lanes, instruction: Instruction, lanes: Array) -> None:
    """Give each thread the value of another one of its warp.

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


def vote(lanes_of: Lanes, instruction: Instruction, lanes: Array) -> None:
    """Tell each thread for which threads of its warp a condition holds.

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
