"""How a call reaches its stream: checks, matching, and what the host waits for.

With nccl, `async_op=False` runs on the current stream, `async_op=True` on the group's own stream
after the current stream's work. With gloo every call runs beside the device, in the order of the
group, and waits block the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.device import Tensor, current_stream
from simrank.distributed.backends import GLOO, check_dtype
from simrank.distributed.call import CollectiveOperation, enter
from simrank.distributed.coalescing import IllegalWork
from simrank.distributed.group import membership
from simrank.distributed.membership import member_group
from simrank.distributed.request import Request, staging
from simrank.distributed.work import Work
from simrank.engine import user_site
from simrank.errors import UnsupportedError
from simrank.ranks import Program, require_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Operation, Stream
    from simrank.distributed.group import ProcessGroup
    from simrank.distributed.membership import Group

COALESCED = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
Place = tuple[Program, "ProcessGroup", str]  # Who calls, in which group, on which backend.


def enter_call(
    call: str, group: Group, *tensors: Tensor, lists: Sequence[Sequence[Tensor]] = ()
) -> Place | None:
    """Check the tensors of a call, and return where it goes; None where the rank is no member.

    Args:
        call: The function's name.
        group: The group, or None.
        tensors: Tensors that must be contiguous.
        lists: Lists of tensors, which are packed and may lie in any way.

    Raises:
        TypeError: An argument is no simrank tensor, or no list of them.
        ValueError: Dtypes or places differ, or a tensor is not contiguous.
        RuntimeError: The group has no backend for the tensors' place.
    """
    program = require_rank(call)
    first = _check_alike(call, tensors, lists)
    chosen = member_group(call, group, program)
    if chosen is None:
        return None
    refuse_in_batch(call, program, chosen)
    backend = chosen.backend_for(first)
    for tensor in tensors:
        if not tensor.is_contiguous() and not (backend == GLOO and is_dense(tensor)):
            raise ValueError(f"{call}: Tensors must be contiguous")
    check_dtype(backend, first.dtype)
    return program, chosen, backend


def _check_alike(call: str, tensors: Sequence[Tensor], lists: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the first tensor of a call, which all others must resemble."""
    for tensor in tensors:
        check_tensor(tensor)
    everything = [*tensors]
    for listed in lists:
        check_list(listed)
        everything += listed
    if not everything:
        raise RuntimeError(f"{call}: tensor list must be nonempty")
    first = everything[0]
    for tensor in everything:
        if tensor.dtype is not first.dtype:
            raise ValueError(
                "Invalid usage of tensors with different dtypes: "
                f"{call} found {first.dtype.name} and {tensor.dtype.name}"
            )
        if (tensor.place is None) != (first.place is None):
            raise ValueError(f"{call}: tensors lie on the host and on a device")
    return first


def check_tensor(tensor: object, name: str = "tensor") -> None:
    """Raise TypeError, in torch's words, unless it is a tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type simrank.Tensor "
            f"but got {type(tensor)} instead."
        )


def check_list(tensors: object, name: str = "tensor_list") -> None:
    """Raise TypeError, in torch's words, unless it is a list of tensors."""
    if not isinstance(tensors, list | tuple) or not all(isinstance(t, Tensor) for t in tensors):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type "
            f"List[simrank.Tensor] but got {type(tensors)} instead."
        )


def is_dense(tensor: Tensor) -> bool:
    """Return whether the elements lie without gaps, in any order of dims."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def simple_request(place: Place, request: Request) -> Request:
    """Pack tensors that are dense, but not in C order, as gloo takes them."""
    del place
    source, target = request.source, request.target
    if source.is_contiguous() and target.is_contiguous():
        return request
    flat = staging([source], source.dtype, None)
    if not source.is_contiguous():
        request.sources, request.source = [source], flat
    if not target.is_contiguous():
        same = target is source
        request.targets = [target]
        request.target = flat if same else staging([target], target.dtype, None)
    return request


def issue(place: Place, request: Request, *, async_op: bool) -> Work | None:
    """Match a rank's call, issue its part, and wait for it as the backend does.

    Returns:
        With `async_op` its Work, else None.

    Raises:
        CollectiveMismatchError: Another member called something else.
    """
    program, group, backend = place
    operation = _submit(place, request, async_op=async_op)
    blocks = backend == GLOO or request.signature[0] == "barrier" or request.is_staged
    if not async_op:
        if blocks:
            group.engine.wait(operation)
            operation.host_ordered()
        return None
    return make_work(program, group, operation, request.results, blocks_host=blocks)


def make_work(
    program: Program,
    group: ProcessGroup,
    operation: Operation,
    results: Sequence[Tensor],
    *,
    blocks_host: bool,
) -> Work:
    """Return the Work of what was issued, counted until somebody waits for it."""
    leaks, rank = group.world.comm_library.leaks, program.rank
    assert rank is not None
    what = operation.name.partition(" #")[0].partition(" on group")[0]
    key = leaks.started(f"{what} on group '{group.name}'", operation.issued_at, rank)
    return Work(operation, results, blocks_host=blocks_host, on_wait=lambda: leaks.waited(key))


def _submit(place: Place, request: Request, *, async_op: bool) -> CollectiveOperation:
    program, group, backend = place
    group_rank = group.group_rank(program.rank)
    call = enter(group, group_rank, request.signature, user_site)
    if request.splits is not None:
        call.join_splits(group_rank, *request.splits, user_site())
    on_host = backend == GLOO or request.is_staged
    stream = current = current_stream(program)
    if on_host:
        stream = group.stream(current.device, f"{group.name} (gloo)")
        after_writes(stream, current, request.tensors)
    elif async_op:
        stream = group.stream(current.device, f"{group.name} (async)")
        after(stream, current)
    before = group.last_issued.get(group_rank)
    if before is not None and before.stream is not stream and not before.complete:
        stream.wait_for(before)  # A communicator runs one collective after the other.
    num_sms = 0 if on_host else group.world.comm_library.num_sms
    operation = CollectiveOperation(stream, call, group_rank, request, num_sms)
    call.join(operation)
    if request.signature[0] != "barrier":
        for target in request.results:
            target.storage.note_write(operation, target.array)
    stream.submit(operation)
    group.last_issued[group_rank] = operation
    return operation


def after(stream: Stream, current: Stream) -> None:
    """Let `stream` go on only after what `current` has been given so far."""
    stream.wait_stream(current)


def after_writes(stream: Stream, current: Stream, tensors: Sequence[Tensor]) -> None:
    """Let `stream` go on after what `current` was given, or still writes to host tensors."""
    if any(tensor.place is not None for tensor in tensors):
        after(stream, current)
    for tensor in tensors:
        if tensor.place is None:
            for operation in tensor.storage.pending_writes(tensor.array):
                stream.wait_for(operation)


def hold(call: str, place: Place, request: Request, *, async_op: bool) -> Work | None:
    """Issue a collective that can be coalesced, or hold it back for the open manager."""
    manager = membership(place[0]).coalescing.get(place[1])
    if manager is None:
        return issue(place, request, async_op=async_op)
    manager.held.append((call, place, request))
    return IllegalWork() if async_op else None


def refuse_in_batch(call: str, program: Program, group: ProcessGroup) -> None:
    """Raise where a collective that is not coalesced is called in a manager that has a device.

    Raises:
        UnsupportedError: It is.
    """
    manager = membership(program).coalescing.get(group)
    if manager is not None and manager.groups_all and call not in COALESCED:
        raise UnsupportedError(
            f"{call} inside a coalescing manager with a device is not supported: only "
            f"{', '.join(COALESCED)}, isend and irecv are"
        )
