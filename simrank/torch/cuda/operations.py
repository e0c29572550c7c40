"""Records of operations on devices: operator, stream and tensors."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, NamedTuple

from simrank.torch.cuda.native import native, raise_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HEAD_WORDS = 8


class OperationFlag(IntFlag):
    """Kinds of operations, numbered as in `fallback.h`."""

    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    REPLAYED = 4
    BLOCKING = 8
    CAUSAL = 16
    CUDNN = 32
    TF32 = 64


class Operand(NamedTuple):
    """One tensor of an operation.

    Attributes:
        dtype: torch's number of it (`c10::ScalarType`).
        strides: In elements.
    """

    address: int
    dtype: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    is_written: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on a device.

    Attributes:
        name: The operator's, without `aten::`, for example `add.Tensor`.
        rank: The number given to `RankState`.
        device: The index among the devices that the rank sees.
        outputs: Tensors that it made; those that it wrote in place are among the inputs.
    """

    name: str
    rank: int
    device: int
    stream: int
    flags: OperationFlag
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]


def start_recording() -> None:
    """Record every operation, or pass it to `Callbacks.on_op` if that is set."""
    native().simrank_record(1)


def start_recording_forms() -> None:
    """Record the form number of every operation: everything except addresses."""
    native().simrank_record(2)


# C++'s `Phase`: recomputation is what activation checkpoints do in backward.
PHASES = ("forward", "backward", "recomputation", "optimizer")


class Launch(NamedTuple):
    """One recorded launch, by its form.

    Attributes:
        form: Its number, for `form`.
        device: The index among the devices that the rank sees.
        stream: torch's number.
        phase: Of a training step.
    """

    form: int
    device: int
    stream: int
    phase: str


def drain_launches() -> list[Launch]:
    """Return and clear the recorded launches."""
    count = ctypes.c_int64()
    pointer = native().simrank_launched(ctypes.byref(count))
    if not count.value:
        return []
    packed = pointer[: count.value]
    native().simrank_forget_launched()
    return [
        Launch(word & 0x3FFFFFFF, word >> 32 & 0xFF, word >> 40, PHASES[word >> 30 & 3])
        for word in packed
    ]


def phase() -> str:
    """Return the phase of a training step in which the running rank is."""
    return PHASES[native().simrank_phase()]


def step(is_stepping: bool) -> None:
    """Note that the running rank enters or leaves an optimizer's step."""
    native().simrank_step(is_stepping)


def form(number: int) -> Operation:
    """Return the operation of a form, without rank, device, stream and addresses."""
    count = ctypes.c_int64()
    pointer = native().simrank_form(number, ctypes.byref(count))
    (operation,) = decode(pointer[: count.value])
    return operation


def watch_scopes(is_on: bool) -> None:
    """Turn `Callbacks.on_scope` on or off."""
    native().simrank_watch_scopes(is_on)


def stop_recording() -> None:
    """Stop recording, and clear the records."""
    native().simrank_record(0)
    native().simrank_forget_recorded()
    native().simrank_forget_launched()


def drain_words() -> list[int]:
    """Return and clear the records, not decoded."""
    num_words = ctypes.c_int64()
    pointer = native().simrank_recorded(ctypes.byref(num_words))
    words: list[int] = pointer[: num_words.value] if num_words.value else []
    native().simrank_forget_recorded()
    return words


@contextmanager
def recording() -> Iterator[Callable[[], list[Operation]]]:
    """Record within a block; the value returns the operations since it was last called."""
    start_recording()
    try:
        yield lambda: list(decode(drain_words()))
    finally:
        stop_recording()


def decode(words: list[int]) -> Iterator[Operation]:
    """Yield the operations of encoded records in launch order."""
    position = 0
    while position < len(words):
        length, op, rank, device, stream, flags, num_inputs, num_outputs = words[
            position : position + _HEAD_WORDS
        ]
        operands = _operands(words, position + _HEAD_WORDS, num_inputs + num_outputs)
        inputs, outputs = tuple(operands[:num_inputs]), tuple(operands[num_inputs:])
        yield Operation(op_name(op), rank, device, stream, OperationFlag(flags), inputs, outputs)
        position += length


_names: dict[int, str] = {}


def op_name(op: int) -> str:
    """Return the name of an operator by its number in records."""
    if op not in _names:
        _names[op] = native().simrank_op_name(op).decode()
    return _names[op]


def _operands(words: list[int], position: int, count: int) -> list[Operand]:
    operands = []
    for _ in range(count):
        address, packed = words[position : position + 2]
        num_dims = packed >> 8 & 0xFF
        sizes = position + 2
        strides = sizes + num_dims
        position = strides + num_dims
        operands.append(
            Operand(
                address,
                packed & 0xFF,
                tuple(words[sizes:strides]),
                tuple(words[strides:position]),
                bool(packed >> 16 & 1),
            )
        )
    return operands


# ---- Ranges of memory that operations in flight still read or write ----
# An operation or a host read that touches such a range calls `Callbacks.on_pending` first,
# unless both only read. While no range is in flight that costs one load and one branch.


def pending_add(address: int, size_bytes: int, *, writes: bool, pending_id: int) -> None:
    """Mark a range; one id may have several."""
    native().simrank_pending_add(address, size_bytes, int(writes), pending_id)


def pending_remove(pending_id: int) -> None:
    """Unmark all ranges of an id."""
    native().simrank_pending_remove(pending_id)


def touch(address: int, size_bytes: int, *, writes: bool) -> None:
    """Wait for pending operations on a range, as torch's operations do."""
    if native().simrank_touch(address, size_bytes, int(writes)):
        raise_kept()
