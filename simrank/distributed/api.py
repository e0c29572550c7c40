"""The functions of torch.distributed on single tensors; see its documentation for their meaning.

Every collective costs the launch latency of the collective library once, then what its schedule
costs on the cluster's links, from the last arrival that a rank depends on; launching charges the
host. Read `issue` for streams and waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.device import Tensor, current_device
from simrank.distributed.backends import GLOO, NCCL, check_reduction, check_timeout
from simrank.distributed.issue import enter_call, hold, issue, refuse_in_batch, simple_request
from simrank.distributed.membership import Group, member_group, peer_in_group
from simrank.distributed.reduce_op import PremulSum, ReduceOp, as_reduce_op
from simrank.distributed.request import UNEVEN, Request
from simrank.ranks import Program, require_rank

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from simrank.distributed.issue import Place
    from simrank.distributed.work import Work

Op = ReduceOp | PremulSum


def barrier(
    group: Group = None,
    async_op: bool = False,
    device_ids: Any = None,  # noqa: ANN401 - torch's signature
    timeout: timedelta | None = None,
) -> Work | None:
    """Block the host until every member has called. Simulated cost: an all_reduce of 4 bytes.

    Raises:
        WaitTimeoutError: A timeout was given and passed.
    """
    del device_ids
    check_timeout(timeout)
    program = require_rank("barrier")
    chosen = member_group("barrier", group, program)
    if chosen is None:
        return None
    refuse_in_batch("barrier", program, chosen)
    nothing = _nothing(program)
    request = Request(("barrier", None, None, "float32", 1), nothing, nothing)
    place = (program, chosen, chosen.backends.get("cuda", GLOO))
    work = issue(place, request, async_op=async_op or timeout is not None)
    if timeout is not None and work is not None and not async_op:
        work.wait(timeout)
        return None
    return work


def all_reduce(
    tensor: Tensor,
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce `tensor` over the group, into `tensor` on every member."""
    place = enter_call("all_reduce", group, tensor)
    if place is None:
        return None
    name, factor = reduction_of(place, op, tensor)
    signature = ("all_reduce", name, None, tensor.dtype.name, tensor.numel())
    request = simple_request(place, Request(signature, tensor, tensor, factor=factor))
    return hold("all_reduce", place, request, async_op=async_op)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce `tensor` over the group, into `tensor` on global rank `dst`; others keep theirs."""
    place = enter_call("reduce", group, tensor)
    if place is None:
        return None
    root = peer_in_group("dst", dst, group_dst, place[1])
    name, factor = reduction_of(place, op, tensor)
    signature = ("reduce", name, root, tensor.dtype.name, tensor.numel())
    request = Request(signature, tensor, tensor, factor=factor)
    return issue(place, simple_request(place, request), async_op=async_op)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy `tensor` of global rank `src` into `tensor` on every member."""
    place = enter_call("broadcast", group, tensor)
    if place is None:
        return None
    root = peer_in_group("src", src, group_src, place[1])
    signature = ("broadcast", None, root, tensor.dtype.name, tensor.numel())
    request = simple_request(place, Request(signature, tensor, tensor))
    return issue(place, request, async_op=async_op)


def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Put the inputs of all members, in group order, into every member's output.

    Raises:
        ValueError: The output has not group size times the input's elements.
    """
    place = enter_call("all_gather_into_tensor", group, input_tensor, output_tensor)
    if place is None:
        return None
    size = place[1].size()
    if output_tensor.numel() != size * input_tensor.numel():
        raise ValueError(
            "output tensor size must be equal to world_size times input tensor size: "
            f"{output_tensor.numel()} is not {size} x {input_tensor.numel()}"
        )
    signature = ("all_gather", None, None, input_tensor.dtype.name, input_tensor.numel())
    request = simple_request(place, Request(signature, input_tensor, output_tensor))
    return hold("all_gather_into_tensor", place, request, async_op=async_op)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,  # noqa: A002 - torch's name
    op: Op = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the inputs of all members and leave the k-th part of the result on member k.

    Raises:
        ValueError: The input has not group size times the output's elements.
    """
    place = enter_call("reduce_scatter_tensor", group, input, output)
    if place is None:
        return None
    size = place[1].size()
    if input.numel() != size * output.numel():
        raise ValueError(
            "input tensor must be the same size as output size times world size: "
            f"{input.numel()} is not {size} x {output.numel()}"
        )
    name, factor = reduction_of(place, op, output)
    signature = ("reduce_scatter", name, None, output.dtype.name, output.numel())
    request = simple_request(place, Request(signature, input, output, factor=factor))
    return hold("reduce_scatter_tensor", place, request, async_op=async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,  # noqa: A002 - torch's name
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
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
    place = enter_call("all_to_all_single", group, input, output)
    if place is None:
        return None
    size = place[1].size()
    splits = (
        _elements("input_split_sizes", input, input_split_sizes, size),
        _elements("output_split_sizes", output, output_split_sizes, size),
    )
    signature = ("all_to_all", None, None, input.dtype.name, UNEVEN)
    if not (input.is_contiguous() and output.is_contiguous()):
        raise ValueError("all_to_all_single: Tensors must be contiguous")
    return issue(place, Request(signature, input, output, splits), async_op=async_op)


def reduction_of(place: Place, op: Op, tensor: Tensor) -> tuple[str, float | Tensor | None]:
    """Return the name of a reduction and the factor of its inputs, if the backend admits it."""
    chosen = as_reduce_op(op)
    check_reduction(place[2] or NCCL, chosen, tensor.dtype)
    return chosen.value, chosen.factor if isinstance(chosen, PremulSum) else None


def _elements(name: str, tensor: Tensor, splits: Sequence[int] | None, size: int) -> Sequence[int]:
    """Return how many elements of a tensor belong to each member.

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


def _nothing(program: Program) -> Tensor:
    """Return the small tensor on which a rank's barriers run."""
    tensor = program.local.get("barrier")
    if tensor is None:
        from simrank.device.factories import empty  # noqa: PLC0415 - only barriers need it

        tensor = program.local["barrier"] = empty(1, device=current_device(program))
    assert isinstance(tensor, Tensor)
    return tensor
