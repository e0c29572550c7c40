"""Checks of debug level DETAIL: members compare their calls before each collective.

torch wraps each backend in a `ProcessGroupWrapper` then, whose members gather a fingerprint of the
call over a group of its own; where two differ, every member raises a RuntimeError, and goes on.

Source: torch 2.13 `ProcessGroupWrapper.cpp`; texts as real processes print them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from simrank.distributed.objects import all_gather_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.distributed.group import ProcessGroup

# How torch calls each operator, and where its tensors are that all members must agree on.
_OPERATORS: dict[str, tuple[str, int | None]] = {
    "allreduce_": ("ALLREDUCE", 0),
    "allreduce_coalesced_": ("ALLREDUCE_COALESCED", 0),
    "broadcast_": ("BROADCAST", 0),
    "reduce_": ("REDUCE", 0),
    "allgather_": ("ALLGATHER", 1),
    "allgather_coalesced_": ("ALLGATHER_COALESCED", 1),
    "_allgather_base_": ("_ALLGATHER_BASE", 1),
    "reduce_scatter_": ("REDUCE_SCATTER", 0),
    "_reduce_scatter_base_": ("_REDUCE_SCATTER_BASE", 0),
    "gather_": ("GATHER", None),
    "scatter_": ("SCATTER", None),
    "alltoall_": ("ALLTOALL", None),
    "alltoall_base_": ("ALLTOALL_BASE", None),
    "barrier": ("BARRIER", None),
}
_DTYPES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16",
    "int8": "Char", "uint8": "Byte", "int16": "Short", "int32": "Int", "int64": "Long",
    "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip


class Fingerprint(NamedTuple):
    """The parts of a call that members compare.

    Attributes:
        number: The group's calls so far.
        op: The call, as torch names it.
        shapes: Of its tensors.
        dtypes: Of its tensors.
        devices: Kinds of device of its tensors.
    """

    number: int
    op: str
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return torch's text of the fingerprint."""
        if not self.dtypes:
            return f"CollectiveFingerPrint(SequenceNumber={self.number}OpType={self.op})"
        shapes = ", ".join(f"[{', '.join(map(str, shape))}]" for shape in self.shapes)
        return (
            f"CollectiveFingerPrint(SequenceNumber={self.number}, OpType={self.op}, "
            f"TensorShape={shapes}, TensorDtypes={', '.join(self.dtypes)}, "
            f"TensorDeviceTypes={', '.join(map(_options_text, self.devices))})"
        )


class Checker:
    """Compares the calls of a group's members.

    Args:
        group: A group of the same members, which nothing else uses.
        rank: The caller's group rank.
    """

    def __init__(self, group: ProcessGroup, rank: int) -> None:
        self._group, self._rank, self._num_calls = group, rank, 0

    def check(self, operator: str, args: Sequence[Any]) -> None:
        """Compare a call with those of all members.

        Raises:
            RuntimeError: A member calls something else; raised by every member.
        """
        known = _OPERATORS.get(operator)
        if known is None:
            return  # A message, or a call that torch's wrapper passes on.
        own = _fingerprint(self._num_calls, known, args)
        found: list[Any] = [None] * self._group.size()
        all_gather_object(found, own, self._group)
        for rank, other in enumerate(found):
            if other[1:] != own[1:]:
                raise RuntimeError(
                    f"Detected mismatch between collectives on ranks. Rank {self._rank} is running "
                    f"collective: {own}, but Rank {rank} is running collective: {other}."
                    f"Collectives differ in the following aspects: {_difference(own, other)}"
                )
        self._num_calls += 1


def is_wanted() -> bool:
    """Return whether new groups compare calls (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""
    is_asked = os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL"
    return is_asked or dist.get_debug_level() == dist.DebugLevel.DETAIL


def _fingerprint(number: int, known: tuple[str, int | None], args: Sequence[Any]) -> Fingerprint:
    op, position = known
    if position is None:
        return Fingerprint(number, op)
    given = args[position]
    tensors = [given] if isinstance(given, torch.Tensor) else given
    return Fingerprint(
        number,
        op,
        tuple(tuple(tensor.shape) for tensor in tensors),
        tuple(_dtype_text(tensor.dtype) for tensor in tensors),
        tuple(tensor.device.type for tensor in tensors),
    )


def _dtype_text(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return _DTYPES.get(name, name)


def _options_text(device: str) -> str:
    return (
        f"TensorOptions(dtype=float (default), device={device}, layout=Strided (default), "
        "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
    )


def _difference(own: Fingerprint, other: Fingerprint) -> str:
    """Return the differing parts of two calls."""
    differing = []
    if own.number != other.number:
        differing.append(f"\t Sequence number: {own.number}vs {other.number}")
    if own.op != other.op:
        differing.append(f"  Op type: {own.op}vs {other.op}")
    for name, mine, others in (
        ("shapes", _joined(own.shapes), _joined(other.shapes)),
        ("dtypes", " ".join(own.dtypes), " ".join(other.dtypes)),
        ("devices", " ".join(own.devices), " ".join(other.devices)),
    ):
        if mine != others:
            differing.append(f"  Tensor Tensor {name}: {mine}vs {others}")
    return "".join(differing)


def _joined(shapes: Sequence[Sequence[int]]) -> str:
    return " ".join(str(size) for shape in shapes for size in shape)
