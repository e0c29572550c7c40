"""Issue of calls: checks, matching, streams, and waits of the host.

With nccl, `async_op=False` runs on the current stream, `async_op=True` on the group's own stream
after the current stream's work. With gloo every call runs beside the device, in the order of the
group, and waits block the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.device import Buffer, Tensor, current_stream
from simrank.device.stream import streams_of, use_stream
from simrank.distributed.backends import GLOO, check_dtype
from simrank.distributed.call import CollectiveOperation, SkippedCall, enter
from simrank.distributed.findings import note_call, note_order
from simrank.distributed.group import Caller, caller_of, membership
from simrank.distributed.host_meetings import meet_first
from simrank.distributed.membership import member_group
from simrank.distributed.planner import planner_of
from simrank.distributed.request import Request, sizes_of, staging
from simrank.distributed.work import Work
from simrank.errors import UnsupportedError
from simrank.ranks import current_program, require_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from simrank.device import Operation, Stream
    from simrank.distributed.group import ProcessGroup
    from simrank.distributed.library import CollectiveLibrary, RecordedCall, RunsCollective
    from simrank.distributed.membership import Group
    from simrank.distributed.p2p import End
    from simrank.distributed.request import Signature
    from simrank.ranks import Program

COALESCED = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
_MAX_FORMS = 4096  # Assumed: distinct calls of one program; beyond, they are learned again.


class CallForm(NamedTuple):
    """Facts of a call that all members make with equal tensors; computed once (C7).

    Attributes:
        call: The function's name.
        signature: What must agree between ranks.
        is_plain: Whether the tensors need no packing.
    """

    call: str
    signature: Signature
    is_plain: bool


def group_of(call: str, group: Group, program: Program) -> ProcessGroup | None:
    """Return the group of a collective; None where the rank is no member.

    Raises:
        UnsupportedError: An open coalescing manager does not take this call.
    """
    state = membership(program)
    default = state.default
    chosen = default if group is None or group is default else None
    if chosen is None:
        chosen = member_group(call, group, program)
    if state.coalescing and chosen is not None:
        _refuse_in_batch(call, program, chosen)
    return chosen


def enter_call(
    call: str, group: Group, *tensors: Buffer, lists: Sequence[Sequence[Buffer]] = ()
) -> Caller | None:
    """Check the tensors of a call, and return its caller; None if the rank is no member.

    Args:
        call: The function's name.
        group: The group, or None.
        tensors: Tensors that must be contiguous.
        lists: Lists of tensors, which are packed and may lie in any way.

    Raises:
        TypeError: An argument is no tensor, or no list of them.
        ValueError: Dtypes or devices differ, or a tensor is not contiguous.
        RuntimeError: The group has no backend for the tensors' device.
    """
    program = require_rank(call)
    first = _check_alike(call, tensors, lists)
    chosen = group_of(call, group, program)
    if chosen is None:
        return None
    return caller_of(program, chosen, _check_backend(call, chosen, first, tensors))


def _check_backend(call: str, group: ProcessGroup, first: Buffer, tensors: Sequence[Buffer]) -> str:
    """Return the backend that tensors select, which must carry them."""
    backend = group.backend_for(first)
    for tensor in tensors:
        is_taken = is_dense if backend == GLOO else _is_channels_last
        if not tensor.is_contiguous() and not is_taken(tensor):
            raise ValueError(f"{call}: Tensors must be contiguous")
    check_dtype(backend, first.dtype)
    return backend


def run_known(
    call: str,
    group: Group,
    tensors: tuple[Buffer, Buffer],
    describe: Callable[[Caller, Buffer, Buffer, Hashable], Signature],
    option: Hashable = None,
    *,
    async_op: bool,
) -> Work | None:
    """Run a collective on one input and one output; its metadata are evaluated once.

    Args:
        call: The function's name.
        group: The group, or None.
        tensors: The input and the output, which may be the same.
        describe: Returns the signature, and raises where the call is wrong; a pure function of
            group, backend, metadata of the tensors, and `option`.
        option: The reduction or the root.
        async_op: Whether to return a Work.
    """
    program = current_program()
    if program is None or program.rank is None:
        program = require_rank(call)
    source, target = tensors
    try:
        view, on_host = source.array, source.cuda_device is None
    except AttributeError:
        check_tensor(source)
        raise
    key: Hashable = (
        describe, option, source.dtype, view.shape, view.strides, on_host,
        None if source is target else _metadata(target),
    )  # fmt: skip
    state = membership(program)
    place = (id(state.default if group is None else group), on_host)
    caller = None if state.coalescing else state.callers.get(place)
    chosen = group_of(call, group, program) if caller is None else caller.group
    if chosen is None:
        return None
    try:
        form = chosen.forms.get(key)
    except TypeError:  # An option that cannot be hashed, which `describe` may know or refuse.
        key = form = None
    if caller is None or form is None or source.cuda_device is not target.cuda_device:
        checked = tensors[:1] if source is target else tensors
        backend = _check_backend(call, chosen, _check_alike(call, checked, ()), checked)
        caller = state.callers[place] = caller_of(program, chosen, backend)
        form = form or _learn(call, describe(caller, source, target, option), tensors, key, chosen)
    request = Request(form.signature, source, target)
    if not form.is_plain:
        request = simple_request(request, caller.backend)
    if state.coalescing:
        return hold(call, caller, request, async_op=async_op)
    return issue(caller, request, async_op=async_op)


def _learn(
    call: str,
    signature: Signature,
    tensors: tuple[Buffer, Buffer],
    key: Hashable,
    group: ProcessGroup,
) -> CallForm:
    """Return the form of a call, and keep it for all members unless its key is None."""
    form = CallForm(call, signature, all(tensor.is_contiguous() for tensor in tensors))
    if len(group.forms) >= _MAX_FORMS:
        group.forms.clear()
    if key is not None:
        group.forms[key] = form
    return form


def _metadata(tensor: Buffer) -> Hashable:
    """Return the metadata that a call may depend on.

    Raises:
        TypeError: It is no tensor.
    """
    try:
        view = tensor.array
        return tensor.dtype, view.shape, view.strides, tensor.cuda_device is None
    except AttributeError:
        check_tensor(tensor)
        raise


def _check_alike(call: str, tensors: Sequence[Buffer], lists: Sequence[Sequence[Buffer]]) -> Buffer:
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
        if tensor.cuda_device is not first.cuda_device:
            names = " and ".join(sorted({str(_device_name(t)) for t in (first, tensor)}))
            raise ValueError(f"{call}: tensors lie on different devices, {names}")
    return first


def _device_name(tensor: Buffer) -> str:
    return "cpu" if tensor.cuda_device is None else f"cuda:{tensor.cuda_device.index}"


def check_tensor(tensor: object, name: str = "tensor") -> None:
    """Raise TypeError, in torch's words, unless it is a tensor."""
    if not isinstance(tensor, Tensor | Buffer):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type simrank.Tensor "
            f"but got {type(tensor)} instead."
        )


def check_list(tensors: object, name: str = "tensor_list") -> None:
    """Raise TypeError, in torch's words, unless it is a list of tensors."""
    if not isinstance(tensors, list | tuple) or not all(
        isinstance(tensor, Tensor | Buffer) for tensor in tensors
    ):
        raise TypeError(
            f"Invalid function argument. Expected parameter `{name}` of type "
            f"List[simrank.Tensor] but got {type(tensors)} instead."
        )


def is_dense(tensor: Buffer) -> bool:
    """Return whether the elements lie without gaps, in any order of dims."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _is_channels_last(tensor: Buffer) -> bool:
    """Return whether elements lie without gaps, with the dim of channels as the innermost one.

    Source: torch 2.13 `ProcessGroupNCCL.cpp` (check_gpu_single_tensor), c10 `MemoryFormat.h`: of
    tensors with 4 or 5 dims.
    """
    strides = tensor.stride()
    if len(strides) not in (4, 5) or not is_dense(tensor):
        return False
    outer = [strides[0], *strides[2:], strides[1]]
    return outer == sorted(outer, reverse=True)


def in_memory_order(tensor: Buffer) -> Buffer:
    """Return the elements of a dense tensor as they lie in memory."""
    if tensor.is_contiguous():
        return tensor
    order = np.argsort(tensor.stride())[::-1]
    return Tensor(tensor.storage, tensor.dtype, tensor.array.transpose(order).reshape(-1))


def simple_request(request: Request, backend: str) -> Request:
    """Return a request whose tensors are in C order.

    nccl moves elements in their order in memory. gloo does so where a tensor is its own result;
    others are packed.
    """
    source, target = request.source, request.target
    if source.is_contiguous() and target.is_contiguous():
        return request
    if source.storage.knows(source.array) and (source is target or backend != GLOO):
        request.source = in_memory_order(source)
        request.target = request.source if source is target else in_memory_order(target)
        return request
    flat = staging([source], source.dtype, None)
    if not source.is_contiguous():
        request.sources, request.source = [source], flat
    if not target.is_contiguous():
        same = target is source
        request.targets = [target]
        request.target = flat if same else staging([target], target.dtype, None)
    return request


def issue(caller: Caller, request: Request, *, async_op: bool) -> Work | None:
    """Match a rank's call, issue its part, and wait for it as the backend does.

    Returns:
        With `async_op` its Work, else None.

    Raises:
        CollectiveMismatchError: Another member called something else.
    """
    group, _, backend, _ = caller
    library, operation = group.world.comm_library, None
    if library.on_call is not None:
        library.on_call()
    if group.roster is not None:
        stream_for(request.source).make_room()  # The active ranks may change meanwhile.
        part = group.roster.part_of(caller.group_rank)
        if part is None:
            operation = _sit_out(caller, request)
        else:
            request = group.roster.narrow(request, part, caller.group_rank)
            caller = caller.narrowed(part)
    if operation is None and library.kernels and backend != GLOO:
        kernel = library.kernels.get(request.signature.op)
        if kernel is not None:
            return _launch(kernel, caller, request, async_op=async_op)
    if operation is None:
        operation = _submit(caller, request, async_op=async_op)
    blocks = backend == GLOO or request.signature.op == "barrier" or request.is_staged
    if not async_op:
        if blocks:
            operation.wait_on_host()
        return None
    return make_work(caller.group, operation, request.results, blocks_host=blocks)


def _sit_out(caller: Caller, request: Request) -> CollectiveOperation:
    """Issue what an inactive member calls: it keeps its place in the stream and moves nothing."""
    stream = stream_for(request.source)
    call: Any = SkippedCall(caller.group, request.signature)
    operation = CollectiveOperation(stream, call.name)
    operation.belong(call, caller.group_rank, request)
    stream.submit(operation)
    return operation


def _launch(
    kernel: RunsCollective, caller: Caller, request: Request, *, async_op: bool
) -> Work | None:
    """Launch a user's kernel in place of the library's collective, and return its Work.

    Raises:
        UnsupportedError: The kernel sums tensors of simrank, and this is something else, or some
            members are inactive.
    """
    group = caller.group
    op, reduce_op, *_ = request.signature
    if group.roster is not None and group.roster.absent:
        what = f"{op} by the kernel {kernel.name}"
        raise UnsupportedError(f"{what} with inactive ranks in its group")
    if reduce_op not in (None, "sum") or request.is_staged or request.splits is not None:
        raise UnsupportedError(f"{op} of {request.signature} by the kernel {kernel.name}: it sums")
    stream = current = stream_for(request.source)
    if async_op:
        stream = group.stream(caller.group_rank, current.device, f"{group.name} (async)")
        after(stream, current)
    with use_stream(stream):
        operation = kernel.launch_on(group, request.source, request.target)
    if not async_op:
        return None
    return make_work(group, operation, request.results, blocks_host=False)


def make_work(
    group: ProcessGroup, operation: Operation, results: Sequence[Buffer], *, blocks_host: bool
) -> Work:
    """Return the Work of an operation; it counts as a leak until a wait."""
    leaks, rank = group.world.comm_library.leaks, operation.rank
    assert rank is not None
    what = operation.name.partition(" #")[0].partition(" on group")[0]
    key = leaks.started(f"{what} on group '{group.name}'", operation.issued_at, rank)
    return Work(operation, results, blocks_host=blocks_host, on_wait=lambda: leaks.waited(key))


def _submit(caller: Caller, request: Request, *, async_op: bool) -> CollectiveOperation:
    """Match a call, and give a rank's part of it to its stream."""
    group, group_rank, backend, in_flight = caller
    signature, on_host = request.signature, backend == GLOO or request.is_staged
    stream = _stream_of(caller, request, on_host=on_host, async_op=async_op)
    request.reads = request.sources or (request.source,)
    is_rooted = signature.root is not None and not request.is_repeated
    only_reads = is_rooted and _only_reads(signature, group_rank, backend)
    if not only_reads and signature.op != "barrier":
        request.writes = request.targets or (request.target,)
    library, entry = group.world.comm_library, None
    if library.recorder is not None or library.follower is not None:
        entry = _tell(caller, request, library)
    call = enter(group, group_rank, request, on_host=on_host)
    before = group.last_issued[group_rank]
    if before is not None and before.stream is not stream and not before.complete:
        stream.wait_for(before)  # A communicator runs one collective after the other.
    operation = CollectiveOperation(stream, call.name, None, request)
    operation.belong(call, group_rank, request, 0 if on_host else library.num_sms)
    if group.has_moved and backend != GLOO and not group.world.shares_devices:
        call.check_device(operation)
    call.add(group_rank, operation)
    if group.engine.has_threads:
        _note_thread(group, operation)
    if entry is not None:
        entry.issued(operation)
    for target in request.writes:
        target.storage.note_write(operation, target.array)
    stream.submit(operation)
    group.last_issued[group_rank] = operation
    if not on_host and (len(in_flight) != 1 or in_flight.get(stream) is not group):
        note_order(caller, operation)
    return operation


def _note_thread(group: ProcessGroup, operation: CollectiveOperation) -> None:
    """Note which thread of the rank has called."""
    program, task = current_program(), group.engine.current_task()
    if program is not None and task is not None:
        note_call(group, program, task, operation)


def _stream_of(caller: Caller, request: Request, *, on_host: bool, async_op: bool) -> Stream:
    """Return the stream that a call runs on, once there is room for it."""
    group, group_rank, backend, _ = caller
    stream, device = current_stream(), request.source.cuda_device
    if device is not None and device is not stream.device:
        stream = stream_for(request.source)
    device = stream.device
    if backend != GLOO and group.device_indices[group_rank] != device.index:
        group.use_device(group_rank, device)
    if on_host:
        current, name = stream, f"{group.name} (gloo)"
        stream = group.stream(group_rank, device, name, by_host=True)
        after_writes(stream, current, request.tensors)
        return stream
    if async_op:
        current = stream
        stream = group.stream(group_rank, device, f"{group.name} (async)")
        after(stream, current)
    if not group.is_eager:
        meet_first(group, group_rank)  # The first call makes its communicator.
    planner = planner_of(group)
    if planner.may_have_overrides:
        planner.read_overrides(request.signature)
    launches = device.launches
    if launches.num_outstanding >= launches.capacity:
        stream.make_room()  # Before the others see this call: the wait may be long.
    return stream


def _tell(caller: Caller, request: Request, library: CollectiveLibrary) -> RecordedCall | None:
    """Report a call to follower and recorder, before it is matched."""
    if library.follower is not None:
        library.follower.collective(caller.group, caller.rank, request)
    if library.recorder is None:
        return None
    return library.recorder.collective(caller.group, caller.rank, caller.backend, request)


def _only_reads(signature: Signature, group_rank: int, backend: str) -> bool:
    """Return whether a member's tensor is only read: its values stay.

    Source: NCCL's API: ncclReduce uses recvbuff on the root only, and an in-place ncclBroadcast
    leaves the root's. Gloo's reduce may write to every member's.
    """
    if signature.op == "broadcast":
        return signature.root == group_rank
    return signature.op == "reduce" and backend != GLOO and signature.root != group_rank


def stream_for(tensor: Buffer) -> Stream:
    """Return the current stream of a tensor's device; for host tensors, of the rank's device.

    It need not be the rank's current device.
    """
    stream, device = current_stream(), tensor.cuda_device
    if device is None or device is stream.device:
        return stream
    return streams_of(device, require_rank("a collective")).default


def after(stream: Stream, current: Stream) -> None:
    """Hold `stream` until the operations issued to `current` so far have ended."""
    stream.wait_stream(current)


def after_writes(stream: Stream, current: Stream, tensors: Sequence[Buffer]) -> None:
    """Hold `stream` until operations of `current` and pending writes to host tensors end."""
    if any(tensor.cuda_device is not None for tensor in tensors):
        after(stream, current)
    for tensor in tensors:
        if tensor.cuda_device is None:
            for operation in tensor.storage.pending_writes(tensor.array):
                stream.wait_for(operation)


def hold(call: str, caller: Caller, request: Request, *, async_op: bool) -> Work | None:
    """Issue a collective, or hold back one that can be coalesced for the open manager."""
    managers = membership(require_rank(call)).coalescing
    manager = managers.get(caller.group) if managers else None
    if manager is None or call not in COALESCED:
        return issue(caller, request, async_op=async_op)
    manager.held.append(HeldCollective(call, caller, request))
    return IllegalWork() if async_op else None


def _refuse_in_batch(call: str, program: Program, group: ProcessGroup) -> None:
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


# ---- Coalescing: collectives of one kind inside a block are issued as one call at its end ----
# As in torch 2.13, `all_reduce`, `all_gather_into_tensor` and `reduce_scatter_tensor` on the
# block's group are held back; other collectives run at once, and messages are batched.

_ILLEGAL = frozenset(
    {"is_success", "exception", "wait", "source_rank", "_source_rank", "result", "synchronize"}
)


class IllegalWork(Work):
    """The Work of a coalesced collective, which runs only at the end of the block."""

    def __init__(self) -> None:  # It has nothing of a Work but the type.
        return

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - torch's names
        """Refuse to wait for what has not been issued, in torch's words.

        Raises:
            ValueError: For everything that waits or looks at a result.
        """
        if name in _ILLEGAL:
            raise ValueError(f"Illegal to call {name} on IllegalWork object")
        return super().__getattribute__(name)


class HeldCollective(NamedTuple):
    """A collective that is held back; its kind is the name of its function."""

    kind: str
    caller: Caller
    request: Request


class CoalescingManager:
    """The object that a coalescing manager yields.

    Attributes:
        works: What was started at its end.
        entries: Messages that are held back.
        held: Collectives that are held back.
        groups_all: Whether it was given a device: then torch holds back every collective.
    """

    def __init__(self, *, groups_all: bool = False) -> None:
        self.works: list[Work] = []
        self.entries: list[tuple[Caller, End]] = []
        self.held: list[HeldCollective] = []
        self.groups_all = groups_all

    def append(self, work: Work | None = None) -> None:
        """Add a Work."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Wait for everything, as `Work.wait` does."""
        for work in self.works:
            work.wait()

    def merged(self) -> tuple[Caller, Request]:
        """Return the held collectives as one.

        Raises:
            RuntimeError: They are of different kinds; torch's words.
            UnsupportedError: They reduce in different ways; torch would use the first for all.
        """
        kinds = sorted({held.kind for held in self.held})
        if len(kinds) > 1:
            raise RuntimeError(
                "Coalescing manager requires all collectives to be the same type, "
                f"but got mixed types: {set(kinds)}"
            )
        requests = [held.request for held in self.held]
        reductions = sorted({f"{r.signature.reduce_op}" for r in requests})
        if len(reductions) > 1 or len({str(r.factor) for r in requests}) > 1:
            raise UnsupportedError(
                f"{kinds[0]} with {' and '.join(reductions)} in one coalescing manager: torch "
                "would use the first reduction for all of them"
            )
        caller = self.held[0].caller
        size = caller.group.size()
        inputs: Sequence[Buffer] = [tensor for r in requests for tensor in r.sources or (r.source,)]
        outputs: Sequence[Buffer] = [tensor for r in requests for tensor in r.results]
        sizes = sizes_of(inputs)
        _check_types(kinds[0], inputs)
        if kinds[0] == "all_gather_into_tensor":
            outputs = _by_member(outputs, size)
        elif kinds[0] == "reduce_scatter_tensor":
            inputs = _by_member(inputs, size)
        first, device = inputs[0], inputs[0].cuda_device
        count = sum(int(r.signature.count or 0) for r in requests)
        source = staging(inputs, first.dtype, device)
        in_place = kinds[0] == "all_reduce"
        target = source if in_place else staging(outputs, first.dtype, device)
        signature = requests[0].signature._replace(count=count, sizes=sizes)
        request = Request(signature, source, target)
        request.sources, request.targets = inputs, outputs
        request.factor = requests[0].factor
        return caller, request


def _check_types(kind: str, tensors: Sequence[Buffer]) -> None:
    names = sorted({tensor.dtype.name for tensor in tensors})
    if len(names) > 1:
        raise ValueError(f"{kind} in one coalescing manager: tensors of types {', '.join(names)}")


def _by_member(tensors: Sequence[Buffer], size: int) -> Sequence[Buffer]:
    """Return the parts of each member in turn: of every tensor its part of member 0, and so on."""
    parts = [_split(tensor, size) for tensor in tensors if tensor.numel()]
    return [part[member] for member in range(size) for part in parts]


def _split(tensor: Buffer, size: int) -> list[Tensor]:
    """Return equal parts of a tensor's elements, as views."""
    if not tensor.is_contiguous():
        raise ValueError("Tensors must be contiguous")
    parts = []
    for view in np.split(tensor.array.reshape(-1), size):
        part = Tensor(tensor.storage, tensor.dtype, view)
        part.cuda_device = tensor.cuda_device
        parts.append(part)
    return parts
