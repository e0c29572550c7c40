"""The functions of torch.distributed; see its documentation for what they mean.

Every collective costs the launch latency of the collective library once, then what its schedule
costs on the cluster's links, from the last arrival that a rank depends on; launching charges the
host. With `async_op=False` it runs on the current stream, with `async_op=True` on the group's own
stream after the current stream's work, and `Work.wait()` blocks the current stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.device import Tensor, current_device, current_stream
from simrank.distributed.call import CollectiveOperation, Signature, enter
from simrank.distributed.membership import group_or_default, peer_in_group
from simrank.distributed.p2p import PeerOperation, mailbox
from simrank.distributed.reduce_op import ReduceOp, as_reduce_op
from simrank.distributed.work import Work
from simrank.engine import user_site
from simrank.errors import UnsupportedError
from simrank.ranks import Program, require_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Stream
    from simrank.distributed.group import ProcessGroup


# ---- collectives ----


def barrier(
    group: ProcessGroup | None = None,
    async_op: bool = False,
    device_ids: Any = None,  # noqa: ANN401 - torch's signature
) -> Work | None:
    """Block the host until every member has called. Simulated cost: an all_reduce of 4 bytes."""
    del device_ids
    program = require_rank("barrier")
    nothing = _nothing(program)
    signature = ("barrier", None, None, "float32", 1)
    work = _collective(program, group, signature, nothing, nothing, async_op)
    if work is not None and not async_op:
        work.wait()
    return work if async_op else None


def all_reduce(
    tensor: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce `tensor` over the group, into `tensor` on every member."""
    program = _check_tensors("all_reduce", tensor)
    signature = ("all_reduce", as_reduce_op(op).value, None, tensor.dtype.name, tensor.numel())
    return _run(program, group, signature, tensor, tensor, async_op)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce `tensor` over the group, into `tensor` on global rank `dst`; others keep theirs."""
    program = _check_tensors("reduce", tensor)
    root = peer_in_group("dst", dst, group_dst, group, program)
    signature = ("reduce", as_reduce_op(op).value, root, tensor.dtype.name, tensor.numel())
    return _run(program, group, signature, tensor, tensor, async_op)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy `tensor` of global rank `src` into `tensor` on every member."""
    program = _check_tensors("broadcast", tensor)
    root = peer_in_group("src", src, group_src, group, program)
    signature = ("broadcast", None, root, tensor.dtype.name, tensor.numel())
    return _run(program, group, signature, tensor, tensor, async_op)


def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Put the inputs of all members, in group order, into every member's output.

    Raises:
        ValueError: The output has not group size times the input's elements.
    """
    program = _check_tensors("all_gather_into_tensor", input_tensor, output_tensor)
    size = group_or_default(group, program).size()
    if output_tensor.numel() != size * input_tensor.numel():
        raise ValueError(
            "output tensor size must be equal to world_size times input tensor size: "
            f"{output_tensor.numel()} is not {size} x {input_tensor.numel()}"
        )
    signature = ("all_gather", None, None, input_tensor.dtype.name, input_tensor.numel())
    return _run(program, group, signature, input_tensor, output_tensor, async_op)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,  # noqa: A002 - torch's name
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the inputs of all members and leave the k-th part of the result on member k.

    Raises:
        ValueError: The input has not group size times the output's elements.
    """
    program = _check_tensors("reduce_scatter_tensor", input, output)
    size = group_or_default(group, program).size()
    if input.numel() != size * output.numel():
        raise ValueError(
            "input tensor must be the same size as output size times world size: "
            f"{input.numel()} is not {size} x {output.numel()}"
        )
    name = as_reduce_op(op).value
    signature = ("reduce_scatter", name, None, output.dtype.name, output.numel())
    return _run(program, group, signature, input, output, async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,  # noqa: A002 - torch's name
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
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
        ValueError: Sizes do not add up to a tensor's dim 0.
        CollectiveMismatchError: What one member sends is not what the other expects.
    """
    program = _check_tensors("all_to_all_single", input, output)
    size = group_or_default(group, program).size()
    splits = (
        _elements("input_split_sizes", input, input_split_sizes, size),
        _elements("output_split_sizes", output, output_split_sizes, size),
    )
    signature = ("all_to_all", None, None, input.dtype.name, None)
    return _run(program, group, signature, input, output, async_op, splits)


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send `tensor` to global rank `dst`, on a stream of the pair's own; NCCL ignores tags.

    Up to the protocol's buffer it ends without the receiver, above when the receiver is there.

    Raises:
        ValueError: The destination is this rank.
        CollectiveMismatchError: The matching recv has another dtype or size.
    """
    del tag
    _point_to_point("send", tensor, ("dst", dst, group_dst), group)


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Fill `tensor` from global rank `src`; returns the sender's global rank.

    Raises:
        ValueError: The source is this rank.
        UnsupportedError: No source is given: any-source receives do not exist in NCCL.
        CollectiveMismatchError: The matching send has another dtype or size.
    """
    del tag
    if src is None and group_src is None:
        raise UnsupportedError("recv from any source is not supported by the nccl backend")
    return _point_to_point("recv", tensor, ("src", src, group_src), group)


# ---- how ----


def _check_tensors(call: str, *tensors: Tensor) -> Program:
    """Return the running rank after checking the tensors of a collective.

    Raises:
        TypeError: One is no simrank tensor.
        RuntimeError: One lies on the host.
        ValueError: One is not contiguous, or dtypes differ.
    """
    program = require_rank(call)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"Invalid function argument. Expected parameter `tensor` of type simrank.Tensor "
                f"but got {type(tensor)} instead."
            )
        if tensor.storage.device is None:
            raise RuntimeError(
                f"No backend type associated with device type cpu: {call} needs a device tensor\n"
                "  to fix: move it with .cuda()"
            )
        if not tensor.is_contiguous():
            raise ValueError(f"{call}: Tensors must be contiguous")
        if tensor.dtype is not tensors[0].dtype:
            raise ValueError(
                f"{call}: output tensor must have the same type as input tensor, "
                f"got {tensor.dtype.name} and {tensors[0].dtype.name}"
            )
    return program


def _run(
    program: Program,
    group: ProcessGroup | None,
    signature: Signature,
    source: Tensor,
    target: Tensor,
    async_op: bool,
    splits: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Work | None:
    work = _collective(program, group, signature, source, target, async_op, splits)
    return work if async_op else None


def _collective(
    program: Program,
    group: ProcessGroup | None,
    signature: Signature,
    source: Tensor,
    target: Tensor,
    async_op: bool,
    splits: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Work | None:
    """Match a rank's call and issue its part of the collective on the right stream."""
    chosen = group_or_default(group, program)
    group_rank = chosen.group_rank(program.rank)
    if group_rank < 0:
        return None
    call = enter(chosen, group_rank, signature, user_site)
    if splits is not None:
        call.join_splits(group_rank, *splits, user_site())
    current = current_stream(program)
    stream = current
    if async_op:
        stream = chosen.stream(current.device, f"{chosen.name} (async)")
        _after(stream, current)
    operation = CollectiveOperation(stream, call, group_rank, (source, target))
    call.join(operation)
    if signature[0] != "barrier":
        target.storage.note_write(operation, target.array)
    stream.submit(operation)
    return Work(operation, [target], blocks_host=signature[0] == "barrier")


def _after(stream: Stream, current: Stream) -> None:
    """Let `stream` go on only after what `current` has been given so far."""
    if current.tail is not None:
        stream.wait_for(current.tail)


def _point_to_point(
    kind: str,
    tensor: Tensor,
    peer: tuple[str, int | None, int | None],
    group: ProcessGroup | None,
) -> int:
    """Issue one end of a message on the pair's own stream; the current stream waits for it."""
    program = _check_tensors(kind, tensor)
    chosen = group_or_default(group, program)
    own = chosen.group_rank(program.rank)
    other = peer_in_group(*peer, group, program)
    if other == own:
        role = "destination" if kind == "send" else "source"
        raise ValueError(
            f"Invalid {role} rank: {role} rank should not be the same as the rank of the "
            "current process."
        )
    is_send = kind == "send"
    box = mailbox(chosen, *((own, other) if is_send else (other, own)))
    current = current_stream(program)
    pair = f"{chosen.name} p2p {min(own, other)}:{max(own, other)}"
    stream = chosen.stream(current.device, pair)
    operation = PeerOperation(stream, box, tensor, is_send=is_send)
    box.post(operation)
    if not is_send:
        tensor.storage.note_write(operation, tensor.array)
    _after(stream, current)
    stream.submit(operation)
    current.wait_for(operation)
    return int(chosen.ranks[other])


def _elements(name: str, tensor: Tensor, splits: Sequence[int] | None, size: int) -> Sequence[int]:
    """Return how many elements of a tensor belong to each member.

    Raises:
        ValueError: They do not add up.
    """
    rows = tensor.shape[0] if tensor.ndim else 1
    if splits is None or not len(splits):
        if rows % size:
            raise ValueError(
                "Tensor's dim 0 does not divide equally across group size: "
                f"{rows} rows, {size} ranks"
            )
        return [tensor.numel() // size] * size
    if len(splits) != size:
        raise ValueError(
            f"Number of tensor splits not equal to group size: {name} has {len(splits)}, not {size}"
        )
    if sum(splits) != rows or min(splits) < 0:
        raise ValueError(
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
