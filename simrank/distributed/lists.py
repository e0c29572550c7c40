"""The functions of torch.distributed on lists of tensors.

Lists are packed into one buffer when the operation reads them, and unpacked at its end; that copy
is not charged: the schedule's own steps are. With nccl `all_gather` and `reduce_scatter` hold their
buffer in device memory, as torch's do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simrank.distributed.api import factor_of, reduction_of
from simrank.distributed.backends import GLOO
from simrank.distributed.issue import enter_call, issue
from simrank.distributed.membership import Group, peer_in_group
from simrank.distributed.reduce_op import ReduceOp
from simrank.distributed.request import UNEVEN, Request, Signature, staging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Tensor
    from simrank.distributed.api import Op
    from simrank.distributed.caller import Caller
    from simrank.distributed.future import Future
    from simrank.distributed.work import Work, WorkIfAsync


def all_gather(
    tensor_list: list[Tensor],
    tensor: Tensor,
    group: Group = None,
    async_op: bool = False,
) -> WorkIfAsync:
    """Put the tensors of all members, in group order, into every member's list.

    With nccl their sizes may differ from member to member, with gloo not.

    Raises:
        RuntimeError: The list has another length, or (gloo) another shape somewhere.
        CollectiveMismatchError: A member expects another size than its peer sends.
    """
    caller = enter_call("all_gather", group, tensor, lists=(tensor_list,))
    if caller is None:
        return None
    size = _check_length(caller, "allgather", tensor_list, "output")
    if caller.backend == GLOO:
        _check_shapes("allgather", tensor_list, tensor)
    numels = [part.numel() for part in tensor_list]
    target = staging(tensor_list, tensor.dtype, tensor.cuda_device)
    count = _count(tensor.numel(), numels)
    splits = ([tensor.numel()] * size, numels) if count == UNEVEN else None
    request = Request(
        Signature("all_gather", None, None, tensor.dtype.name, count), tensor, target, splits
    )
    request.targets = tensor_list
    if not tensor.is_contiguous():
        request.sources, request.source = [tensor], staging([tensor], tensor.dtype, None)
    return issue(caller, request, async_op=async_op)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> WorkIfAsync:
    """Reduce the lists of all members entry by entry, and leave entry k on member k.

    Raises:
        RuntimeError: The list has another length than the group.
        CollectiveMismatchError: A member's output has another size than the entries for it.
    """
    caller = enter_call("reduce_scatter", group, output, lists=(input_list,))
    if caller is None:
        return None
    size = caller.group.size()
    if len(input_list) != size:
        raise RuntimeError(
            f"invalid input tensor list size, must be world size: {len(input_list)} is not {size}"
        )
    reduction = reduction_of(caller.backend, op, output)
    numels = [part.numel() for part in input_list]
    count = _count(output.numel(), numels)
    request = Request(
        Signature("reduce_scatter", reduction.value, None, output.dtype.name, count),
        staging(input_list, output.dtype, output.cuda_device),
        output,
        (numels, [output.numel()] * size) if count == UNEVEN else None,
        factor=factor_of(reduction),
    )
    request.sources = input_list
    if not output.is_contiguous():
        request.targets, request.target = [output], staging([output], output.dtype, None)
    return issue(caller, request, async_op=async_op)


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> WorkIfAsync:
    """Send entry k of the input list to member k, and receive in group order; sizes may differ.

    Raises:
        RuntimeError: A list has another length than the group, or (gloo) differing shapes.
        CollectiveMismatchError: What one member sends is not what the other expects.
    """
    caller = enter_call("all_to_all", group, lists=(output_tensor_list, input_tensor_list))
    if caller is None:
        return None
    for tensors, role in ((output_tensor_list, "output"), (input_tensor_list, "input")):
        _check_length(caller, "alltoall", tensors, role)
        if caller.backend == GLOO:
            _check_shapes("alltoall", tensors, tensors[0])
    dtype = input_tensor_list[0].dtype
    splits = (
        [tensor.numel() for tensor in input_tensor_list],
        [tensor.numel() for tensor in output_tensor_list],
    )
    request = Request(
        Signature("all_to_all", None, None, dtype.name, UNEVEN),
        staging(input_tensor_list, dtype, None),
        staging(output_tensor_list, dtype, None),
        splits,
        input_tensor_list,
        output_tensor_list,
    )
    return issue(caller, request, async_op=async_op)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> WorkIfAsync:
    """Put the tensors of all members into the list on global rank `dst` (default: 0).

    Raises:
        ValueError: The list is missing on that rank, or given elsewhere.
        RuntimeError: The list has another length than the group, or another shape in it.
    """
    return _run_rooted(_GATHER, group, (tensor, gather_list), (dst, group_dst), async_op)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> WorkIfAsync:
    """Put entry k of the list on global rank `src` (default: 0) into `tensor` of member k.

    Raises:
        ValueError: The list is missing on that rank, or given elsewhere.
        RuntimeError: The list has another length than the group, or another shape in it.
    """
    return _run_rooted(_SCATTER, group, (tensor, scatter_list), (src, group_src), async_op)


class _Rooted(NamedTuple):
    """What differs between a gather and a scatter, in torch's words.

    Attributes:
        call: The function.
        root: The argument that names the root.
        listed: The argument that is a list, on the root only.
        role: What the root is.
        direction: What the list is to the backend.
    """

    call: str
    root: str
    listed: str
    role: str
    direction: str


_GATHER = _Rooted("gather", "dst", "gather_list", "destination", "output")
_SCATTER = _Rooted("scatter", "src", "scatter_list", "source", "input")


def _run_rooted(
    what: _Rooted,
    group: Group,
    tensors: tuple[Tensor, list[Tensor] | None],
    root_ranks: tuple[int | None, int | None],
    async_op: bool,
) -> Work | None:
    """Run a gather or a scatter of one tensor per rank and a list on the root."""
    tensor, listed = tensors[0], tensors[1] or ()
    caller = enter_call(what.call, group, tensor, lists=(listed,))
    if caller is None:
        return None
    root = _root(caller, what.root, *root_ranks)
    _check_list_on_root(caller, root, listed, (what.listed, what.role))
    if listed:
        _check_length(caller, what.call, listed, what.direction)
        _check_shapes(what.call, listed, tensor)
    signature = Signature(what.call, None, root, tensor.dtype.name, tensor.numel())
    flat = staging(listed, tensor.dtype, None)
    own = tensor if tensor.is_contiguous() else staging([tensor], tensor.dtype, None)
    packed = () if own is tensor else (tensor,)
    if what is _GATHER:
        request = Request(signature, own, flat, sources=packed, targets=listed)
    else:
        request = Request(signature, flat, own, sources=listed, targets=packed)
    return issue(caller, request, async_op=async_op)


# ---- checks ----

_NAMES = {"nccl": "ProcessGroupNCCL", "gloo": "ProcessGroupGloo"}


def _count(own: int, numels: Sequence[int]) -> int | str:
    """Return the count that all members must agree on, or that sizes are matched instead."""
    return own if all(numel == own for numel in numels) else UNEVEN


def _root(caller: Caller, name: str, global_rank: int | None, group_rank: int | None) -> int:
    if global_rank is None and group_rank is None:
        global_rank = 0
    return peer_in_group(name, global_rank, group_rank, caller.group)


def _check_list_on_root(
    caller: Caller, root: int, tensors: Sequence[Tensor] | None, words: tuple[str, str]
) -> None:
    name, role = words
    if caller.group_rank == root:
        if not tensors:
            raise ValueError(f"Argument ``{name}`` must be specified on {role} rank.")
    elif tensors:
        raise ValueError(f"Argument ``{name}`` must NOT be specified on non-{role} ranks.")


def _check_length(caller: Caller, call: str, tensors: Sequence[Tensor], role: str) -> int:
    """Return the group's size, which must be the list's length."""
    size = caller.group.size()
    if len(tensors) != size:
        raise RuntimeError(
            f"{_NAMES[caller.backend]}::{call}: Incorrect {role} list size {len(tensors)}. "
            f"{role.capitalize()} list size should be {size}, same as size of the process group."
        )
    return size


def _check_shapes(call: str, tensors: Sequence[Tensor], like: Tensor) -> None:
    """Raise unless all tensors of a list have the shape of one."""
    for index, tensor in enumerate(tensors):
        if tensor.shape != like.shape:
            raise RuntimeError(
                f"{call}: invalid tensor size at index {index} "
                f"(expected {_sizes(like)}, got {_sizes(tensor)})"
            )


def _sizes(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def all_reduce_coalesced(
    tensors: list[Tensor] | Tensor,
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Future | None:
    """Reduce several tensors of one dtype as one call; with `async_op` returns a future."""
    listed = [tensors] if not isinstance(tensors, list | tuple) else list(tensors)
    caller = enter_call("all_reduce_coalesced", group, lists=(listed,))
    if caller is None:
        return None
    reduction = reduction_of(caller.backend, op, listed[0])
    flat = staging(listed, listed[0].dtype, listed[0].cuda_device)
    request = Request(
        Signature("all_reduce", reduction.value, None, flat.dtype.name, flat.numel()),
        flat,
        flat,
        factor=factor_of(reduction),
    )
    request.sources = request.targets = listed
    return _as_future(issue(caller, request, async_op=async_op))


def all_gather_coalesced(
    output_tensor_lists: list[list[Tensor]],
    input_tensor_list: list[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Future | None:
    """Gather several tensors as one call: list k gets the inputs of member k.

    Raises:
        RuntimeError: The backend is nccl, which has no such call.
        TypeError: The outputs are no list.
    """
    if not isinstance(output_tensor_lists, list):
        raise TypeError("Invalid function argument: output_tensor_lists should be a list")
    caller = enter_call("all_gather_coalesced", group, lists=(input_tensor_list,))
    if caller is None:
        return None
    if caller.backend != GLOO:
        raise RuntimeError(f"Backend {caller.backend} does not support allgather_coalesced")
    size = caller.group.size()
    if len(output_tensor_lists) != size or any(
        len(outputs) != len(input_tensor_list) for outputs in output_tensor_lists
    ):
        raise RuntimeError(
            f"allgather_coalesced expects {size} lists of {len(input_tensor_list)} outputs"
        )
    targets = [output for outputs in output_tensor_lists for output in outputs]
    first = input_tensor_list[0]
    source = staging(input_tensor_list, first.dtype, first.cuda_device)
    target = staging(targets, first.dtype, first.cuda_device)
    if target.numel() != size * source.numel():
        raise RuntimeError(
            f"allgather_coalesced: outputs of {target.numel()} elements for {size} members' inputs "
            f"of {source.numel()}"
        )
    request = Request(
        Signature("all_gather", None, None, first.dtype.name, source.numel()), source, target
    )
    request.sources, request.targets = input_tensor_list, targets
    return _as_future(issue(caller, request, async_op=async_op))


def _as_future(work: Work | None) -> Future | None:
    return None if work is None else work.get_future()
