"""The collectives of torch.distributed; see its documentation for their meaning.

Every collective costs the launch latency of the collective library once, then what its schedule
costs on the cluster's links, from the last arrival that a rank depends on; launching charges the
host. Read `issue` for streams and waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simrank.device.stream import devices_of
from simrank.device.tensors.factories import empty
from simrank.distributed.backends import GLOO, NCCL, check_reduction, check_timeout
from simrank.distributed.group import Caller, caller_of
from simrank.distributed.issue import (
    enter_call,
    group_of,
    hold,
    in_memory_order,
    issue,
    run_known,
    simple_request,
)
from simrank.distributed.membership import Group, peer_in_group
from simrank.distributed.request import (
    UNEVEN,
    PremulSum,
    ReduceOp,
    Request,
    Signature,
    as_reduce_op,
    sizes_of,
    staging,
)
from simrank.ranks import Program, require_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from datetime import timedelta

    from simrank.device import Buffer, Tensor
    from simrank.distributed.work import Future, Work, WorkIfAsync

Op = ReduceOp | PremulSum
_BARRIER = Signature("barrier", None, None, "float32", 1)


def barrier(
    group: Group = None,
    async_op: bool = False,
    device_ids: Sequence[int] | None = None,
    timeout: timedelta | None = None,
) -> WorkIfAsync:
    """Block the host until every member has called. Simulated cost: an all_reduce of 4 bytes.

    Args:
        group: The group, or None.
        async_op: Whether to return a Work.
        device_ids: The device that it runs on; None: that of the member's calls before it, or the
            rank's own.
        timeout: How long to wait.

    Raises:
        WaitTimeoutError: A timeout was given and passed.
    """
    check_timeout(timeout)
    if device_ids is not None and not isinstance(device_ids, list):
        raise TypeError("Invalid function argument: device_ids type should be List[int]")
    program = require_rank("barrier")
    chosen = group_of("barrier", group, program)
    if chosen is None:
        return None
    own = chosen.group_rank(program.rank)
    nothing = _nothing(program, device_ids[0] if device_ids else chosen.device_of(own))
    caller = caller_of(program, chosen, chosen.backends.get("cuda", GLOO))
    request = Request(_BARRIER, nothing, nothing)
    work = issue(caller, request, async_op=async_op or timeout is not None)
    if timeout is not None and work is not None and not async_op:
        work.wait(timeout)
        return None
    return work


def all_reduce(
    tensor: Tensor,
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> WorkIfAsync:
    """Reduce `tensor` over the group, into `tensor` on every member."""
    tensors = tensor, tensor
    if type(op) is ReduceOp and op is not ReduceOp.PREMUL_SUM:
        return run_known("all_reduce", group, tensors, _all_reduce, op, async_op=async_op)
    return _run_scaled("all_reduce", group, tensors, _all_reduce, op, async_op)


def _all_reduce(caller: Caller, source: Buffer, target: Buffer, op: Hashable) -> Signature:
    del target
    name = reduction_of(caller.backend, op, source).value
    return Signature("all_reduce", name, None, source.dtype.name, source.numel())


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> WorkIfAsync:
    """Reduce `tensor` over the group, into `tensor` on global rank `dst`; others keep theirs."""
    caller = enter_call("reduce", group, tensor)
    if caller is None:
        return None
    root = peer_in_group("dst", dst, group_dst, caller.group)
    reduction = reduction_of(caller.backend, op, tensor)
    signature = Signature("reduce", reduction.value, root, tensor.dtype.name, tensor.numel())
    request = Request(signature, tensor, tensor, factor=factor_of(reduction))
    return issue(caller, simple_request(request, caller.backend), async_op=async_op)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> WorkIfAsync:
    """Copy `tensor` of global rank `src` into `tensor` on every member."""
    root = (src, group_src)
    return run_known("broadcast", group, (tensor, tensor), _broadcast, root, async_op=async_op)


def _broadcast(caller: Caller, source: Buffer, target: Buffer, option: Hashable) -> Signature:
    del target
    assert isinstance(option, tuple), "(src, group_src)"
    src, group_src = option
    root = peer_in_group("src", src, group_src, caller.group)
    return Signature("broadcast", None, root, source.dtype.name, source.numel())


def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: Group = None,
    async_op: bool = False,
) -> WorkIfAsync:
    """Put the inputs of all members, in group order, into every member's output.

    Raises:
        ValueError: The output has not group size times the input's elements.
    """
    call, tensors = "all_gather_into_tensor", (input_tensor, output_tensor)
    return run_known(call, group, tensors, _all_gather, async_op=async_op)


def _all_gather(caller: Caller, source: Buffer, target: Buffer, option: Hashable) -> Signature:
    del option
    size = caller.group.size()
    if target.numel() != size * source.numel():
        raise ValueError(
            "output tensor size must be equal to world_size times input tensor size: "
            f"{target.numel()} is not {size} x {source.numel()}"
        )
    return Signature("all_gather", None, None, source.dtype.name, source.numel())


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,  # noqa: A002 - torch's name
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> WorkIfAsync:
    """Reduce the inputs of all members and leave the k-th part of the result on member k.

    Raises:
        ValueError: The input has not group size times the output's elements.
    """
    call = "reduce_scatter_tensor"
    if type(op) is ReduceOp and op is not ReduceOp.PREMUL_SUM:
        return run_known(call, group, (input, output), _reduce_scatter, op, async_op=async_op)
    return _run_scaled(call, group, (input, output), _reduce_scatter, op, async_op)


def _reduce_scatter(caller: Caller, source: Buffer, target: Buffer, op: Hashable) -> Signature:
    size = caller.group.size()
    if source.numel() != size * target.numel():
        raise ValueError(
            "input tensor must be the same size as output size times world size: "
            f"{source.numel()} is not {size} x {target.numel()}"
        )
    name = reduction_of(caller.backend, op, target).value
    return Signature("reduce_scatter", name, None, target.dtype.name, target.numel())


def _run_scaled(
    call: str,
    group: Group,
    tensors: tuple[Buffer, Buffer],
    describe: Callable[[Caller, Buffer, Buffer, Hashable], Signature],
    op: Op,
    async_op: bool,
) -> Work | None:
    """Run a collective whose reduction may multiply first, by a factor of its own."""
    caller = enter_call(call, group, *(tensors[:1] if tensors[0] is tensors[1] else tensors))
    if caller is None:
        return None
    signature = describe(caller, *tensors, op)
    request = Request(signature, *tensors, factor=factor_of(as_reduce_op(op)))
    return hold(call, caller, simple_request(request, caller.backend), async_op=async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,  # noqa: A002 - torch's name
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> WorkIfAsync:
    """Send the k-th part of the input to member k, and receive in group order.

    Args:
        output: Filled with what the members send.
        input: Split along dim 0.
        output_split_sizes: Sizes along dim 0 from each member; default: equal.
        input_split_sizes: Sizes along dim 0 to each member; default: equal.
        group: The group; default: all ranks.
        async_op: Whether to return a Work.

    Raises:
        RuntimeError: Sizes do not add up to a tensor's dim 0.
        ValueError: A tensor is not contiguous.
        CollectiveMismatchError: What one member sends is not what the other expects.
    """
    caller = enter_call("all_to_all_single", group, input, output)
    if caller is None:
        return None
    size = caller.group.size()
    splits = (
        _elements("input_split_sizes", input, input_split_sizes, size),
        _elements("output_split_sizes", output, output_split_sizes, size),
    )
    signature = Signature("all_to_all", None, None, input.dtype.name, UNEVEN)
    if caller.backend == GLOO and not (input.is_contiguous() and output.is_contiguous()):
        raise ValueError("all_to_all_single: Tensors must be contiguous")
    request = Request(signature, in_memory_order(input), in_memory_order(output), splits)
    return issue(caller, request, async_op=async_op)


def reduction_of(backend: str, op: object, tensor: Buffer) -> ReduceOp | PremulSum:
    """Return a reduction, if the backend admits it on a tensor's type."""
    chosen = as_reduce_op(op)
    check_reduction(backend or NCCL, chosen, tensor.dtype)
    return chosen


def factor_of(reduction: ReduceOp | PremulSum) -> float | Tensor | None:
    """Return the factor of the inputs of a sum, or None."""
    return reduction.factor if isinstance(reduction, PremulSum) else None


def _elements(name: str, tensor: Tensor, splits: Sequence[int] | None, size: int) -> Sequence[int]:
    """Return the number of a tensor's elements per member.

    Raises:
        RuntimeError: They do not add up.
    """
    rows = tensor.shape[0] if tensor.ndim else 1
    if splits is None or not len(splits):
        if rows % size:
            raise RuntimeError(
                "Tensor's dim 0 does not divide equally across group size: "
                f"{rows} rows, {size} ranks"
            )
        return [tensor.numel() // size] * size
    if len(splits) != size:
        raise RuntimeError(
            f"Number of tensor splits not equal to group size: {name} has {len(splits)}, not {size}"
        )
    if sum(splits) != rows or min(splits) < 0:
        raise RuntimeError(
            f"Split sizes doesn't match total dim 0 size: "
            f"{name} adds up to {sum(splits)}, not {rows}"
        )
    row_elements = tensor.numel() // rows if rows else 0
    return [split * row_elements for split in splits]


def _nothing(program: Program, device_index: int) -> Tensor:
    """Return the small tensor on a device on which a rank's barriers run."""
    tensors: dict[int, Tensor] = program.local.setdefault("barrier", {})
    tensor = tensors.get(device_index)
    if tensor is None:
        device = devices_of(program)[device_index]
        tensor = tensors[device_index] = empty(1, device=device)
    return tensor


# ---- The functions of torch.distributed on lists of tensors ----
# Lists are packed into one buffer when the operation reads them, and unpacked at its end; that
# copy is not charged: the schedule's own steps are. With nccl `all_gather` and `reduce_scatter`
# hold their buffer in device memory, as torch's do.


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
    """The differences between a gather and a scatter, in torch's words.

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
        Signature(
            "all_reduce", reduction.value, None, flat.dtype.name, flat.numel(), sizes_of(listed)
        ),
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
    sizes = sizes_of(input_tensor_list)
    signature = Signature("all_gather", None, None, first.dtype.name, source.numel(), sizes)
    request = Request(signature, source, target)
    request.sources, request.targets = input_tensor_list, targets
    return _as_future(issue(caller, request, async_op=async_op))


def _as_future(work: Work | None) -> Future | None:
    return None if work is None else work.get_future()
