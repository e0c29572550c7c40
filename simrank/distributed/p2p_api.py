"""The point-to-point functions of torch.distributed.

A single send or receive of nccl runs on a stream of its pair's own; a batch is one call on the
group's stream, so that two ranks may exchange in it. Those of gloo run beside the device.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, overload

from simrank.device.stream import new_stream
from simrank.distributed.backends import GLOO, NCCL, check_dtype
from simrank.distributed.group import Caller, ProcessGroup, caller_of, membership
from simrank.distributed.host_meetings import meet_first
from simrank.distributed.issue import (
    CoalescingManager,
    after_writes,
    check_tensor,
    is_dense,
    issue,
    make_work,
    stream_for,
)
from simrank.distributed.membership import Group, group_or_default, member_group, peer_in_group
from simrank.distributed.p2p import End, Envelope, PeerOperation, boxes_of, calls_text
from simrank.errors import UnsupportedError
from simrank.ranks import require_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from simrank.device import Buffer, Stream, Tensor
    from simrank.distributed.library import RecordedCall
    from simrank.distributed.p2p import Mailboxes
    from simrank.distributed.work import Work


_MAX_WAYS = 4096  # Assumed: pairs, types and tags of one rank; beyond, they are looked up again.


class Peer(NamedTuple):
    """The other end of a message, given in one of torch's two ways, or not at all.

    Attributes:
        name: Which end it is, as the argument is called.
        global_rank: Its global rank.
        group_rank: Its rank in the group.
    """

    name: str
    global_rank: int | None
    group_rank: int | None


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send `tensor` to global rank `dst`; NCCL ignores tags.

    With nccl it holds the current stream: up to the protocol's buffer it ends without the receiver,
    above when the receiver is there. With gloo it blocks the host until the receiver has it.

    Raises:
        ValueError: The destination is this rank.
        CollectiveMismatchError: The matching recv has another dtype or size.
    """
    _start("isend", tensor, Peer("dst", dst, group_dst), group, tag, waits=True)


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Fill `tensor` from global rank `src`, or with gloo from any; returns the sender's rank.

    Raises:
        ValueError: The source is this rank.
        UnsupportedError: No source is given: any-source receives do not exist in NCCL.
        CollectiveMismatchError: The matching send has another dtype or size.
    """
    operation = _start("irecv", tensor, Peer("src", src, group_src), group, tag, waits=True)
    if operation is None:
        return -1
    if src is not None:
        return src
    source = operation.source_rank if group_src is None else group_src
    assert source is not None, "a receive that is over knows its sender"
    return int(operation.group.ranks[source])


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """Start to send `tensor` to global rank `dst`; see `send`."""
    return _as_work(_start("isend", tensor, Peer("dst", dst, group_dst), group, tag))


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """Start to fill `tensor` from global rank `src`, or with gloo from any rank; see `recv`."""
    return _as_work(_start("irecv", tensor, Peer("src", src, group_src), group, tag))


class P2POp:
    """A send or receive for `batch_isend_irecv`; arguments and attributes as torch's.

    Raises:
        ValueError: `op` is neither isend nor irecv, or the peer is no member.
        TypeError: The tensor is none.
    """

    def __init__(
        self,
        op: Callable[..., Work | None],
        tensor: Tensor,
        peer: int | None = None,
        group: ProcessGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ValueError(
                "Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or "
                "``torch.distributed.irecv``."
            )
        check_tensor(tensor)
        self.op = op
        self.tensor = tensor
        self.group = group_or_default(group, require_rank("P2POp"))
        self.group_peer = peer_in_group("peer", peer, group_peer, self.group)
        self.peer = int(self.group.ranks[self.group_peer])
        self.tag = tag

    def __repr__(self) -> str:
        """Return the operation and its peer."""
        return f"P2POp({self.op.__name__} pg={self.group.name}, group_peer={self.group_peer})"


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Start sends and receives together.

    With nccl they are one call on the group's stream, and the result is one Work. With gloo they
    are started one by one.

    Raises:
        ValueError: Not all entries are P2POps, or they are of several groups.
        CollectiveMismatchError: A matching entry has another dtype or size.
    """
    if not isinstance(p2p_op_list, list) or not all(isinstance(o, P2POp) for o in p2p_op_list):
        raise ValueError(
            "Invalid ``p2p_op_list``. Each op is expected to to be of type "
            "``torch.distributed.P2POp``."
        )
    group = p2p_op_list[0].group
    if not all(entry.group is group for entry in p2p_op_list):
        raise ValueError("All ops need to use the same group.")
    if group.backend_for(p2p_op_list[0].tensor) == GLOO:
        works = [
            entry.op(entry.tensor, entry.peer, entry.group, entry.tag) for entry in p2p_op_list
        ]
        return [work for work in works if work is not None]
    with _coalescing_manager(group, async_ops=True) as manager:
        for entry in p2p_op_list:
            entry.op(entry.tensor, entry.peer, entry.group, entry.tag)
    return manager.works


@contextmanager
def _coalescing_manager(
    group: ProcessGroup | None = None,
    device: object = None,
    async_ops: bool = False,
) -> Iterator[CoalescingManager]:
    """Hold back collectives of one kind, or messages, and issue them as one call at the end.

    Args:
        group: Whose calls are held back.
        device: With one, every collective would be held back: other kinds raise UnsupportedError.
        async_ops: Whether to wait with `wait()` of what is yielded, and not at the end.

    Raises:
        ValueError: One is open for this group already.
        RuntimeError: Collectives of several kinds were called inside.

    Simulated cost: one collective of all elements.
    """
    program = require_rank("_coalescing_manager")
    chosen = group_or_default(group, program)
    managers = membership(program).coalescing
    if chosen in managers:
        raise ValueError("ProcessGroup has non-empty op list at the start of coalescing")
    manager = managers[chosen] = CoalescingManager(groups_all=device is not None)
    try:
        yield manager
    finally:
        del managers[chosen]
    if manager.held:
        caller, request = manager.merged()
        manager.append(issue(caller, request, async_op=True))
    if manager.entries:
        caller = caller_of(program, chosen, NCCL)
        manager.append(submit(caller, [end for _, end in manager.entries]))
    if not async_ops:
        manager.wait()


# ---- how ----


class Way(NamedTuple):
    """The group, stream and matching of a message; looked up once per pair with nccl.

    Attributes:
        caller: The member that calls.
        rank: Its global rank.
        stream: Its stream of the group; None: a new one for each call (gloo).
        boxes: Where its messages are matched.
        route: Of its first message.
        name: The operation's, in the user's words.
    """

    caller: Caller
    rank: int
    stream: Stream | None
    boxes: Mailboxes
    route: Envelope
    name: str

    def device_index(self) -> int:
        """Return the index of the device that the member's communicator is on now."""
        return self.caller.group.device_indices[self.caller.group_rank]


def _start(
    call: str, tensor: Buffer, peer: Peer, group: Group, tag: int, *, waits: bool = False
) -> PeerOperation | None:
    """Issue one end of a message and perhaps wait for it, or add it to the open batch."""
    program = require_rank(call)
    state = membership(program)
    key: Hashable = None
    way: Way | None = None
    device = getattr(tensor, "cuda_device", None)
    if device is not None and not state.coalescing and tensor.is_contiguous():
        named = state.default if group is None else group
        key = (call, named, peer, tag, tensor.dtype, device)
        try:
            way = state.ways.get(key)
        except TypeError:  # An argument that cannot be hashed: the checks say what it should be.
            key = None
    if way is None or device is None or way.device_index() != device.index:
        checked = _checked(call, tensor, peer, group, tag)
        if checked is None:
            return None
        caller, route = checked
        if route.batched:
            batch = state.coalescing[caller.group]
            batch.entries.append((caller, End(route, tensor, is_send=call == "isend")))
            return None
        way = _way_of(caller, [End(route, tensor, is_send=call == "isend")])
        if key is not None and way.stream is not None:
            if len(state.ways) >= _MAX_WAYS:
                state.ways.clear()
            state.ways[key] = way
    return _submit(way, [End(way.route, tensor, is_send=call == "isend")], waits=waits)


def _checked(
    call: str, tensor: Buffer, peer: Peer, group: Group, tag: int
) -> tuple[Caller, Envelope] | None:
    """Return the caller and the route of a message, once its arguments are right.

    None: the rank is no member.
    """
    program = require_rank(call)
    check_tensor(tensor)
    chosen = member_group(call, group, program)
    if chosen is None:
        return None
    backend = chosen.backend_for(tensor)
    if backend == NCCL:
        check_dtype(backend, tensor.dtype)
    if backend == GLOO and not tensor.is_contiguous():
        raise RuntimeError(f"{call[1:]}: tensor must be contiguous")
    if not is_dense(tensor):
        raise ValueError(f"{call[1:]}: Tensors must be contiguous")
    batched = backend != GLOO and chosen in membership(program).coalescing
    caller = caller_of(program, chosen, backend)
    return caller, _route(call, peer, caller, tag, batched=batched)


def _route(call: str, peer: Peer, caller: Caller, tag: int, *, batched: bool) -> Envelope:
    group, own, backend, _ = caller
    is_send = call == "isend"
    if not is_send and peer.global_rank is None and peer.group_rank is None:
        if backend == NCCL:
            raise UnsupportedError(
                "ProcessGroupNCCL does not support recvAnysource: "
                "recv from any source is not supported by the nccl backend"
            )
        return Envelope(None, own, tag)
    other = peer_in_group(*peer, group)
    if other == own and not batched:
        role = "destination" if is_send else "source"
        raise ValueError(
            f"Invalid {role} rank: {role} rank should not be the same as the rank of the "
            "current process."
        )
    src, dst = (own, other) if is_send else (other, own)
    return Envelope(src, dst, 0 if backend == NCCL else tag, batched)


def submit(caller: Caller, ends: Sequence[End], *, is_staged: bool = False) -> Work:
    """Issue a call; the host waits for pickled objects under any backend."""
    return _as_work(_submit(_way_of(caller, ends), ends), is_staged=is_staged)


@overload
def _as_work(operation: PeerOperation, *, is_staged: bool = False) -> Work: ...


@overload
def _as_work(operation: None) -> None: ...


def _as_work(operation: PeerOperation | None, *, is_staged: bool = False) -> Work | None:
    if operation is None:
        return None
    blocks = operation.is_on_host or is_staged
    tensors = [end.tensor for end in operation.ends]
    return make_work(operation.group, operation, tensors, blocks_host=blocks)


def _way_of(caller: Caller, ends: Sequence[End]) -> Way:
    """Return the way of a call, and note the device of its tensors' communicator."""
    group, own, backend, _ = caller
    route, stream = ends[0].route, None
    if backend != GLOO:
        device = stream_for(ends[0].tensor).device
        group.use_device(own, device)
        stream = group.stream(own, device, _stream_name(group, route))
    name = f"{calls_text(ends, group.ranks)} on group '{group.name}'"
    return Way(caller, caller.rank, stream, boxes_of(group, backend), route, name)


def _submit(way: Way, ends: Sequence[End], *, waits: bool = False) -> PeerOperation:
    """Give a call to its stream; wait for it as `Work.wait` does, if asked."""
    group, own, _, _ = way.caller
    current, stream = stream_for(ends[0].tensor), way.stream
    if stream is None:
        stream = new_stream(current.device, f"{group.name} (gloo p2p)", by_host=True)
        after_writes(stream, current, [end.tensor for end in ends])
    else:
        if not group.is_eager:
            src, dst, _, batched = way.route
            assert src is not None, "nccl has no receives from any source"
            meet_first(group, own, None if batched else (src, dst))
        stream.wait_stream(current)
        stream.make_room()
    library = group.world.comm_library
    entries: Sequence[RecordedCall] = ()
    if library.recorder is not None or library.follower is not None:
        entries = _tell(way.caller, ends)
    operation = PeerOperation(stream, way.boxes, ends, way.rank, way.name)
    for entry in entries:
        entry.issued(operation)
    group.world.history.note(way.rank, operation.issued_at, way.name.partition(" ")[0], None)
    way.boxes.issue(operation)
    if way.route.src is None:
        library.leaks.any_source[operation.issued_at] = None
    for end in ends:
        if not end.is_send:
            end.tensor.storage.note_write(operation, end.tensor.array)
    stream.submit(operation)
    if waits and way.stream is not None:
        current.wait_for(operation)
    elif waits:
        operation.wait_on_host()
    return operation


def _tell(caller: Caller, ends: Sequence[End]) -> Sequence[RecordedCall]:
    """Report messages to follower and recorder, before they are matched."""
    group, _, backend, _ = caller
    library = group.world.comm_library
    if library.follower is not None:
        library.follower.messages(group, ends)
    recorder = library.recorder
    return [] if recorder is None else recorder.messages(group, caller.rank, backend, ends)


def _stream_name(group: ProcessGroup, route: Envelope) -> str:
    if route.batched:
        return f"{group.name} (async)"
    assert route.src is not None, "nccl has no receives from any source"
    return f"{group.name} p2p {min(route.src, route.dst)}:{max(route.src, route.dst)}"
