"""Checks of calls: gloo's, with its error texts, and those of debug level DETAIL.

Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp of torch 2.13.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from simrank.distributed.flight_recorder import DTYPE_NAMES
from simrank.distributed.objects import all_gather_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.distributed.group import ProcessGroup

_TYPE_NAMES = {  # Of C++, as libtorch prints them.
    "uint8": "unsigned char", "int8": "signed char", "int16": "short int", "int64": "long int",
    "int32": "int", "uint16": "short unsigned int", "uint32": "unsigned int",
    "uint64": "long unsigned int", "float32": "float", "float64": "double", "bool": "bool",
    "float16": "c10::Half", "bfloat16": "c10::BFloat16", "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>", "complex32": "c10::complex<c10::Half>",
}  # fmt: skip
_LAYOUTS = {torch.strided: "Strided", torch.sparse_coo: "Sparse"}


def check_root(call: str, root: int, size: int) -> None:
    """Check the root of a call.

    Raises:
        RuntimeError: It is no member's.
    """
    if not 0 <= root < size:
        _refuse(call, f"invalid root rank: {root}")


def check_root_tensor(call: str, index: int, num_tensors: int) -> None:
    """Check the index of the root's tensor.

    Raises:
        RuntimeError: There is no such tensor.
    """
    if not 0 <= index < num_tensors:
        _refuse(call, f"invalid root tensor: {index}")


def check_broadcast(tensors: Sequence[torch.Tensor]) -> None:
    """Check the tensors that a rank broadcasts, all of which get the result.

    Raises:
        RuntimeError: One is sparse, or differs from the first.
    """
    _check_dense("broadcast", tensors)
    _check_like("broadcast", tensors[1:], tensors[0])


def check_all_reduce(tensors: Sequence[torch.Tensor], *, is_sum: bool) -> None:
    """Check the tensors that a rank reduces.

    Raises:
        RuntimeError: No tensor, one differs from the first, or sparse ones are not summed.
    """
    call = "allreduce"
    if not tensors:
        _refuse(call, "requires non-empty tensor list")
    _check_layouts(call, tensors)
    _check_like(call, tensors[1:], tensors[0])
    if tensors[0].is_sparse and not is_sum:
        _refuse(
            call,
            "unsupported reduction operation "
            "(allreduce of sparse tensors only works with ReduceOp.SUM)",
        )


def check_all_reduce_coalesced(tensors: Sequence[torch.Tensor]) -> None:
    """Check the tensors that a rank reduces as one.

    Raises:
        RuntimeError: No tensor, types differ, or they are sparse or on a device.
    """
    call = "allreduce_coalesced"
    if not tensors:
        _refuse(call, "requires non-empty tensor list")
    _check_layouts(call, tensors)
    if any(tensor.type() != tensors[0].type() for tensor in tensors):
        _refuse(call, "tensors must all have the same type")
    if tensors[0].device.type != "cpu":
        _refuse(call, f"unsupported device type {tensors[0].device.type}")
    if tensors[0].layout is not torch.strided:
        _refuse(call, "unsupported layout")


def check_reduce(tensors: Sequence[torch.Tensor]) -> None:
    """Check the tensor that a rank reduces.

    Raises:
        RuntimeError: There are several, or it is sparse.
    """
    _check_single("reduce", tensors, "tensor")
    _check_dense("reduce", tensors)


def check_all_gather(
    outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], size: int
) -> None:
    """Check the tensors of an all_gather, and the list of outputs for each.

    Raises:
        RuntimeError: Numbers, types or sizes do not fit.
    """
    call = "allgather"
    if not inputs:
        _refuse(call, "requires non-empty input tensor list")
    if len(inputs) != len(outputs):
        _refuse(call, "requires input/output tensor lists to have the same length")
    expected = len(inputs) * size
    for index, listed in enumerate(outputs):
        if len(listed) != expected:
            _refuse(
                call,
                f"invalid output tensor list at index {index} "
                f"(expected length {expected}, got {len(listed)})",
            )
    _check_dense(call, inputs)
    for listed in (inputs, *outputs):
        _check_like(call, listed, inputs[0])


def check_all_gather_coalesced(
    outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], size: int
) -> None:
    """Check tensors and lists of an all_gather of several tensors, with a list for each member.

    Raises:
        RuntimeError: Numbers, types or sizes do not fit.
    """
    call = "allgather_coalesced"
    if not inputs:
        _refuse(call, "requires non-empty input tensor list")
    if len(outputs) != size:
        _refuse(call, "output lists should be equal to world size")
    for listed in outputs:
        if len(listed) != len(inputs):
            _refuse(
                call,
                f"invalid output size: (expected length {len(inputs)}, got {len(listed)})",
            )
        for index, (got, like) in enumerate(zip(listed, inputs, strict=True)):
            if got.shape != like.shape:
                _refuse(
                    call,
                    f"invalid size of output tensor at index {index} "
                    f"(expected length ({_listed(like.shape)}), got ({_listed(got.shape)}))",
                )
            if got.type() != like.type():
                _refuse(
                    call,
                    f"invalid tensor type at index {index} "
                    f"(expected {like.type()}, got {got.type()})",
                )
    _check_dense(call, inputs)


def check_list_of_root(
    call: str,
    tensors: Sequence[torch.Tensor],
    lists: Sequence[Sequence[torch.Tensor]],
    group: tuple[int, int, int],
) -> None:
    """Check the tensor that each member of a gather or scatter has, and the list of the root.

    Args:
        call: "gather" or "scatter".
        tensors: The tensor, in a list.
        lists: The list, in a list; empty where the caller is not the root.
        group: Group rank of the caller and of the root, and the size of the group.

    Raises:
        RuntimeError: Numbers, types or sizes do not fit.
    """
    rank, root, size = group
    role, other = ("output", "input") if call == "gather" else ("input", "output")
    _check_single(call, tensors, f"{other} tensor")
    _check_dense(call, tensors)
    if rank != root:
        if lists:
            _refuse(call, f"requires empty {role} on non-root")
        return
    if len(lists) != 1:
        _refuse(
            call,
            f"requires a single-element {role} list containing a list with {size} tensors.",
        )
    if len(lists[0]) != size:
        _refuse(
            call,
            f"Incorrect {role} list size {len(lists[0])}. {role.capitalize()} list size should be "
            f"{size}, same as size of the process group.",
        )
    _check_like(call, lists[0], tensors[0])


def check_reduce_scatter(
    outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], rank: int, size: int
) -> None:
    """Check the output of a reduce_scatter and the list of its inputs.

    Raises:
        RuntimeError: Numbers, types or sizes do not fit.
    """
    if len(outputs) != 1:
        raise RuntimeError("reduce_scatter only supports 1 output")
    if len(inputs) != 1 or len(inputs[0]) != size:
        raise RuntimeError("invalid input tensor list size, must be world size")
    own = inputs[0][rank]
    for tensor in inputs[0]:
        if tensor.dtype != outputs[0].dtype:
            raise RuntimeError(
                "Check failed: outputs[0].dtype() == inputs[0][i].dtype() "
                f"({_type_name(outputs[0])} vs. {_type_name(tensor)}). "
            )
    if own.shape != outputs[0].shape:
        raise RuntimeError(
            "Check failed: outputs[0].sizes().vec() == inputs[0][i].sizes().vec() "
            f"({_listed(outputs[0].shape)} vs. {_listed(own.shape)}). "
        )


def check_all_to_all(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], size: int
) -> None:
    """Check that there is an input and an output for each member.

    Raises:
        RuntimeError: There is not, or types differ.
    """
    for role, listed in (("input", inputs), ("output", outputs)):
        if len(listed) != size:
            _refuse(
                "alltoall",
                f"{role} tensor list size {len(listed)} does not match world size {size}",
            )
    if any(tensor.dtype != inputs[0].dtype for tensor in (*inputs, *outputs)):
        _refuse("alltoall", "input and output tensors must have the same type")


def check_message(tensors: Sequence[torch.Tensor], tag: int) -> None:
    """Check the tensor of a send or a receive.

    Raises:
        RuntimeError: There are several, it is not contiguous, or the tag is negative.
    """
    if len(tensors) != 1:
        raise RuntimeError("ProcessGroupGloo::send takes a single tensor")
    if tensors[0].is_sparse or not tensors[0].is_contiguous():
        raise RuntimeError("input tensor has to be contiguous")
    if tag < 0:
        raise RuntimeError("Tag must be nonnegative")


def check_gathered(output: torch.Tensor, source: torch.Tensor, size: int) -> None:
    """Check that each member's part of an output has the source's shape.

    Raises:
        RuntimeError: One has another, or there are fewer parts.
    """
    if not output.ndim:
        raise RuntimeError("chunk expects at least a 1-dimensional tensor")
    num_rows = output.shape[0]
    rows = -(-num_rows // size)  # Of all parts but the last.
    num_parts = -(-num_rows // rows) if rows else size
    if num_parts != size:
        raise RuntimeError(
            "ProcessGroupGloo::allgather: invalid output tensor list at index 0 "
            f"(expected length {size}, got {num_parts})"
        )
    for index, got in ((0, rows), (size - 1, num_rows - rows * (size - 1))):
        part = (got, *output.shape[1:])
        if part != tuple(source.shape):
            raise RuntimeError(
                f"ProcessGroupGloo::allgather: invalid tensor size at index {index} "
                f"(expected ({_listed(source.shape)}), got ({_listed(part)}))"
            )


def check_scattered(output: torch.Tensor, source: torch.Tensor, size: int) -> None:
    """Check that a source has the output's rows once per member.

    Raises:
        RuntimeError: It has not.
    """
    if output.ndim and source.ndim and output.shape[0] * size != source.shape[0]:
        raise RuntimeError(
            "Check failed: outputShape[0] * worldSize == inputShape[0] "
            f"({output.shape[0] * size} vs. {source.shape[0]}). "
        )


# ---- single checks ----


def _refuse(call: str, why: str) -> NoReturn:
    raise RuntimeError(f"ProcessGroupGloo::{call}: {why}")


def _check_single(call: str, tensors: Sequence[torch.Tensor], what: str) -> None:
    if len(tensors) != 1:
        _refuse(call, f"requires a single-element {what} list")


def _check_dense(call: str, tensors: Sequence[torch.Tensor]) -> None:
    if any(tensor.layout is not torch.strided for tensor in tensors):
        _refuse(call, "only supports dense tensors")


def _check_layouts(call: str, tensors: Sequence[torch.Tensor]) -> None:
    first = tensors[0].layout
    for index, tensor in enumerate(tensors):
        if tensor.layout is not first:
            names = [_LAYOUTS.get(layout, str(layout)) for layout in (first, tensor.layout)]
            _refuse(
                call,
                f"invalid tensor layout at index {index} (expected {names[0]}, got {names[1]})",
            )


def _check_like(call: str, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> None:
    """Check that types and sizes are those of one tensor.

    gloo counts from 0 in the list that it compares: where that is the rest of a list, 0 is its
    second tensor.
    """
    for index, tensor in enumerate(tensors):
        if _type_of(tensor) != _type_of(like):
            _refuse(
                call,
                f"invalid tensor type at index {index} "
                f"(expected {_options_text(like)}, got {_options_text(tensor)})",
            )
        if tensor.shape != like.shape:
            _refuse(
                call,
                f"invalid tensor size at index {index} "
                f"(expected ({_listed(like.shape)}), got ({_listed(tensor.shape)}))",
            )


def _type_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.layout, tensor.device.type


def _type_name(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return _TYPE_NAMES.get(name, name)


def _options_text(tensor: torch.Tensor) -> str:
    """Return libtorch's text of a tensor's options."""
    return (
        f"TensorOptions(dtype={_type_name(tensor)}, device={tensor.device}, "
        f"layout={_LAYOUTS.get(tensor.layout, tensor.layout)}, requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))"
    )


def _listed(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


# ---- checks of debug level DETAIL: members compare their calls before each collective ----
# torch wraps each backend in a `ProcessGroupWrapper` then, whose members gather a fingerprint of
# the call over a group of its own; where two differ, every member raises a RuntimeError, and goes
# on.
#
# Source: torch 2.13 `ProcessGroupWrapper.cpp`; texts as real processes print them.

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
            f"TensorDeviceTypes={', '.join(map(_device_options_text, self.devices))})"
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


def is_detail_wanted() -> bool:
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
    return DTYPE_NAMES.get(name, name)


def _device_options_text(device: str) -> str:
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
