"""`tl.inline_asm_elementwise`: conversion of blocks to registers of lanes and back."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.ptx.parse import Snippet, parse
from simrank.kernels.ptx.run import SnippetLanes
from simrank.kernels.running import threads
from simrank.kernels.values.block import Block, addresses, as_block, cast_to
from simrank.kernels.values.operators import check_broadcast, with_axes
from simrank.kernels.values.types import ElementType, element_type, int32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.kernels.machine.protocols import Array

# Each thread executes these itself, even with equal operands in all threads.
_EACH_THREAD = {"atom", "red", "shfl", "vote"}  # matches `multimem.red` too
_LETTERS = set("rlhfdcnq") | set("sv")  # The last two are AMD's.


class _Constraints:
    """Operands given by a constraint string.

    Attributes:
        num_outputs: Number of outputs, the first `$` numbers.
        ties: For each input, the output that shares its register, or -1.
    """

    def __init__(self, text: str) -> None:
        tokens = [token.strip() for token in text.split(",") if token.strip()]
        tokens = [token for token in tokens if not token.startswith("~")]
        outputs = [token for token in tokens if token.startswith("=")]
        inputs = [token for token in tokens if not token.startswith("=")]
        for token in tokens:
            letter = token.lstrip("=&")
            if letter not in _LETTERS and not letter.isdigit():
                raise UnsupportedError(f"inline assembly with the constraint '{token}'")
        self.num_outputs = len(outputs)
        self.ties = [int(token) if token.isdigit() else -1 for token in inputs]


def inline_asm_elementwise(
    asm: str, constraints: str, args: Sequence[Any], dtype: Any, is_pure: bool, pack: int
) -> Any:
    """Run inline assembly on the elements of blocks, `pack` elements at a time.

    Raises:
        UnsupportedError: The text has an instruction that is not emulated.
        ValueError: Constraints, arguments and results do not match.
    """
    del is_pure
    is_tuple = isinstance(dtype, tuple | list)
    results = [element_type(kind) for kind in (dtype if is_tuple else (dtype,))]
    snippet, wanted = parse(str(asm)), _constraints(str(constraints))
    blocks = [_input(as_block(arg), int(pack)) for arg in args]
    by_thread = threads.num_threads() if _is_by_thread(snippet, blocks) else 0
    if by_thread and pack > 1:
        raise UnsupportedError("inline assembly on packed scalars that differ between threads")
    rows, shape, values = _spread(
        blocks, is_per_program=_is_per_program(str(asm)), num_threads=by_thread
    )
    inputs = [
        register
        for block, lanes in zip(blocks, values, strict=True)
        for register in _registers(lanes, _storage(block.element), int(pack))
    ]
    num_lanes = -(-rows * math.prod(shape) // int(pack))
    counts = [_num_registers(kind, int(pack)) for kind in results]
    if sum(counts) != wanted.num_outputs or len(inputs) != len(wanted.ties):
        raise ValueError(
            f"inline assembly: the constraints have {wanted.num_outputs} outputs and "
            f"{len(wanted.ties)} inputs, results and arguments take {sum(counts)} and {len(inputs)}"
        )
    outputs = [np.zeros(num_lanes, np.uint64) for _ in range(wanted.num_outputs)]
    for tie, register in zip(wanted.ties, inputs, strict=True):
        if tie >= 0:
            outputs[tie][:] = register
    of_lanes = np.arange(num_lanes) * int(pack) // max(math.prod(shape), 1)
    lanes = SnippetLanes(
        snippet,
        outputs + inputs,
        np.minimum(of_lanes, rows - 1),
        machine.now().active if by_thread else None,
    )
    lanes.run()
    blocks_out = []
    for kind, count in zip(results, counts, strict=True):
        taken, outputs = outputs[:count], outputs[count:]
        result = _block(taken, kind, int(pack), (rows, *shape))
        if by_thread:
            result = Block(threads.as_one(result.values), result.element)
        blocks_out.append(result)
    return tuple(blocks_out) if is_tuple else blocks_out[0]


@lru_cache(maxsize=1024)
def _constraints(text: str) -> _Constraints:
    return _Constraints(text)


@lru_cache(maxsize=1024)
def _is_per_program(asm: str) -> bool:
    """Return whether each program must execute a snippet itself."""
    return any(
        instruction.opcode[0] in ("ld", "st", "atom", "red", "multimem")
        or any(operand.kind == "special" for operand in instruction.operands)
        for instruction in parse(asm).instructions
    )


def _is_by_thread(snippet: Snippet, blocks: Sequence[Block]) -> bool:
    """Return whether each thread must run a snippet, in a kernel that reads thread indices.

    Raises:
        UnsupportedError: The operands are blocks that differ between threads.
    """
    if not threads.num_threads():
        return False
    differs = any(threads.varies(block) for block in blocks)
    if any(block.shape for block in blocks):
        if differs:
            raise UnsupportedError("inline assembly on blocks that differ between threads")
        return False
    return differs or any(
        not _EACH_THREAD.isdisjoint(instruction.opcode[:2])
        or any(part.kind == "special" for part in instruction.operands)
        for instruction in snippet.instructions
    )


def _input(block: Block, pack: int) -> Block:
    """Return an input block; conditions become int32 (assumed: LLVM may pass -1 for true).

    Raises:
        UnsupportedError: Conditions are packed into one register.
    """
    if block.element.kind != "b":
        return block
    if pack > 1:
        raise UnsupportedError("inline assembly on packed int1: cast it to int32 first")
    return cast_to(block, int32)


def _storage(element: ElementType) -> np.dtype[Any]:
    """Return the unsigned dtype of an element's bits."""
    if element.kind == "b":
        raise UnsupportedError("inline assembly on int1: cast it to int32 first")
    return np.dtype(f"u{element.itemsize}")


def _spread(
    blocks: Sequence[Block], *, is_per_program: bool, num_threads: int
) -> tuple[int, tuple[int, ...], list[Array]]:
    """Return the number of rows, the common shape, and each block's bits in lane order."""
    for block in blocks[1:]:
        check_broadcast(blocks[0], block)
    arrays: list[Array] = []
    for block in blocks:
        values = addresses(block) if block.element.kind == "p" else block.values
        memory = np.asarray(values).astype(block.element.memory)
        bits: Array = (
            np.ascontiguousarray(memory).view(_storage(block.element)).reshape(memory.shape)
        )
        arrays.append(bits if bits.ndim else bits.reshape(1))
    shapes = [array.shape[1:] for array in arrays]
    shape: tuple[int, ...] = tuple(np.broadcast_shapes(*shapes)) if shapes else ()
    rows = max([array.shape[0] for array in arrays] + [1])
    if num_threads:
        rows = num_threads
    elif is_per_program:
        rows = len(machine.now())
    spread = []
    for array in arrays:
        wide = with_axes(array, len(shape) + 1)
        spread.append(np.broadcast_to(wide, (rows, *shape)).reshape(-1))
    return rows, shape, spread


def _per_register(bits: int, pack: int) -> int:
    return min(32 // bits, pack) if bits < 32 else 1


def _num_registers(element: ElementType, pack: int) -> int:
    return -(-pack // _per_register(8 * element.itemsize, pack))


def _registers(lanes: Array, storage: np.dtype[Any], pack: int) -> list[Array]:
    """Return the registers of an input; elements below 32 bits share a register."""
    bits = 8 * storage.itemsize
    per = _per_register(bits, pack)
    padded = np.pad(lanes, (0, -len(lanes) % pack), mode="edge") if len(lanes) % pack else lanes
    columns = padded.reshape(-1, pack).astype(np.uint64)
    result = []
    for first in range(0, pack, per):
        register = np.zeros(len(columns), np.uint64)
        for index in range(per):
            register |= columns[:, first + index] << np.uint64(bits * index)
        result.append(register)
    return result


def _block(
    registers: Sequence[Array], element: ElementType, pack: int, shape: tuple[int, ...]
) -> Block:
    """Return an output block, given its registers."""
    storage = _storage(element)
    bits = 8 * storage.itemsize
    per = _per_register(bits, pack)
    columns = [
        (register >> np.uint64(bits * index)).astype(storage)
        for register in registers
        for index in range(per)
    ]
    flat = np.stack(columns, axis=-1).reshape(-1)[: math.prod(shape)]
    values = np.ascontiguousarray(flat).view(element.memory).astype(element.compute)
    shaped = values.reshape(shape)
    scalar = shaped.ndim == 1 and len(shaped) == 1
    return Block(shaped[0] if scalar else shaped, element)
