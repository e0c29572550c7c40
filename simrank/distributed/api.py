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
from simrank.distributed.group import ProcessGroup, World, membership
from simrank.distributed.p2p import PeerOperation, mailbox
from simrank.distributed.reduce_op import ReduceOp, as_reduce_op
from simrank.distributed.work import Work
from simrank.engine import user_site
from simrank.errors import UnsupportedError
from simrank.ranks import Program, require_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Stream

_BACKENDS = ("nccl", "simrank", "cuda:nccl")
_NOT_INITIALIZED = (
    "Default process group has not been initialized, please make sure to call init_process_group."
)


# ---- groups ----


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Any = None,  # noqa: ANN401 - torch's signature
    world_size: int = -1,
    rank: int = -1,
    **ignored: Any,  # noqa: ANN401 - store, group_name, pg_options, device_id: nothing to set up
) -> None:
    """Join the default group of the ranks of this spawn; no rank waits for another.

    Raises:
        ValueError: Called twice, or with a rank or world size that is not this rank's.
        UnsupportedError: The backend is not simulated.
    """
    del init_method, timeout, ignored
    program = require_rank("init_process_group")
    state = membership(program)
    if state.default is not None:
        raise ValueError("trying to initialize the default process group twice!")
    if backend is not None and backend not in _BACKENDS:
        raise UnsupportedError(
            f"backend {backend!r} is not simulated; choices: {', '.join(_BACKENDS)}"
        )
    for name, given, actual in (
        ("rank", rank, program.rank),
        ("world_size", world_size, program.world_size),
    ):
        if given not in (-1, actual):
            raise ValueError(
                f"{name}={given}, but this is rank {program.rank} of {program.world_size}"
            )
    state.generation += 1
    state.num_groups = 0
    world = _world(program)
    state.default = world.group((state.generation, 0), "default_pg", range(world.size))


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Leave the default group (and with it all groups), or forget one group; never waits.

    Raises:
        ValueError: There is no default group.
    """
    state = membership(require_rank("destroy_process_group"))
    if state.default is None:
        raise ValueError("Invalid process group specified")
    if group is None or group is state.default:
        state.default = None


def is_initialized() -> bool:
    """Return whether this rank has a default group."""
    return membership(require_rank("is_initialized")).default is not None


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Any = None,  # noqa: ANN401 - torch's signature
    backend: str | None = None,
    pg_options: Any = None,  # noqa: ANN401
    group_desc: str | None = None,
    **ignored: Any,  # noqa: ANN401 - use_local_synchronization, device_id
) -> ProcessGroup:
    """Make a group of some ranks; every rank must call it, in the same order, members or not.

    Raises:
        ValueError: A rank is named twice or does not exist.
        SimrankError: Another rank made its n-th group with other members.
    """
    del timeout, backend, pg_options, ignored
    program = require_rank("new_group")
    default = _group(None, program)
    state = membership(program)
    members: Sequence[int] = default.ranks if ranks is None else tuple(sorted(ranks))
    if len(set(members)) != len(members):
        raise ValueError("duplicate rank")
    for member in members:
        if not 0 <= member < default.size():
            raise ValueError(
                "the new group's rank should be within the world_size set by init_process_group, "
                f"got rank {member} of {default.size()}"
            )
    state.num_groups += 1
    number = state.num_groups
    name = group_desc or f"group_{number}"
    return _world(program).group((state.generation, number), name, members)


def get_rank(group: ProcessGroup | None = None) -> int:
    """Return this rank in the group; -1 if it is no member."""
    program = require_rank("get_rank")
    return _group(group, program).group_rank(program.rank)


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Return the number of members; -1 if this rank is none of them."""
    program = require_rank("get_world_size")
    chosen = _group(group, program)
    return chosen.size() if chosen.group_rank(program.rank) >= 0 else -1


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
    root = _peer("dst", dst, group_dst, group, program)
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
    root = _peer("src", src, group_src, group, program)
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
    size = _group(group, program).size()
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
    size = _group(group, program).size()
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
    size = _group(group, program).size()
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


def _world(program: Program) -> World:
    world = program.local["world"]
    assert isinstance(world, World)
    return world


def _group(group: ProcessGroup | None, program: Program) -> ProcessGroup:
    default = membership(program).default
    if default is None:
        raise ValueError(_NOT_INITIALIZED)
    return default if group is None else group


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
    chosen = _group(group, program)
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
    chosen = _group(group, program)
    own = chosen.group_rank(program.rank)
    other = _peer(*peer, group, program)
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


def _peer(
    name: str,
    global_rank: int | None,
    group_rank: int | None,
    group: ProcessGroup | None,
    program: Program,
) -> int:
    """Return the group rank of a root or peer given in one of torch's two ways.

    Raises:
        ValueError: Both or neither is given, or the rank is no member.
    """
    chosen = _group(group, program)
    if (global_rank is None) == (group_rank is None):
        raise ValueError(f"Must specify exactly one of {name} and group_{name}")
    if group_rank is not None:
        if not 0 <= group_rank < chosen.size():
            raise ValueError(f"group_{name}={group_rank} is not part of {chosen!r}")
        return group_rank
    found = chosen.group_rank(global_rank)
    if found < 0 or not (global_rank or 0) >= 0:
        raise ValueError(f"Global rank {global_rank} is not part of group {chosen!r}")
    return found


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
