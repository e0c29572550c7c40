"""Object collectives: values really pickled, so that every rank gets a copy of its own.

As torch, each sends sizes first and then bytes, padded to the largest where all send. The bytes lie
in host memory under any backend (shape-only runs keep them), and the host waits for both steps.

Simulated cost: both steps at their sizes; pickling is free.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.tensors.tensor import from_numpy
from simrank.distributed.backends import GLOO
from simrank.distributed.group import Caller, caller_of
from simrank.distributed.issue import issue
from simrank.distributed.membership import Group, member_group, peer_in_group
from simrank.distributed.p2p import End, Envelope
from simrank.distributed.p2p_api import submit
from simrank.distributed.request import Request, Signature
from simrank.ranks import require_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Tensor

Bytes = np.ndarray[Any, Any]


def all_gather_object(object_list: list[Any], obj: object, group: Group = None) -> None:
    """Put every member's object, in group order, into every member's list."""
    caller = _enter("all_gather_object", group)
    if caller is None:
        return
    data = _pickled(obj)
    sizes = _all_sizes("all_gather_object", caller, data)
    padded = _padded(data, max(sizes))
    target = _bytes(len(padded) * len(sizes))
    _run("all_gather_object", caller, None, (from_numpy(padded), target), len(padded))
    for index, part in enumerate(_rows(target, sizes)):
        object_list[index] = pickle.loads(part)


def gather_object(
    obj: object,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
) -> None:
    """Put every member's object into the list on global rank `dst` (default: 0).

    Raises:
        ValueError: The list is missing on that rank, or given elsewhere.
    """
    caller = _enter("gather_object", group)
    if caller is None:
        return
    root = _root("dst", dst, group_dst, caller)
    is_root = caller.group_rank == root
    if is_root and not object_gather_list:
        raise ValueError("Argument ``gather_list`` must be specified on destination rank.")
    if not is_root and object_gather_list:
        raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")
    data = _pickled(obj)
    sizes = _all_sizes("gather_object", caller, data)
    padded = _padded(data, max(sizes))
    target = _bytes(len(padded) * len(sizes) if is_root else 0)
    _run("gather_object data", caller, root, (from_numpy(padded), target), len(padded))
    if is_root and object_gather_list is not None:
        for index, part in enumerate(_rows(target, sizes)):
            object_gather_list[index] = pickle.loads(part)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: object = None,
    group_src: int | None = None,
) -> None:
    """Replace the objects of the list by those of global rank `src` (default: 0)."""
    del device
    caller = _enter("broadcast_object_list", group)
    if caller is None:
        return
    root = _root("src", src, group_src, caller)
    is_root = caller.group_rank == root
    parts = [_pickled(value) for value in object_list] if is_root else []
    sizes = _sizes_tensor(parts) if is_root else _integers(len(object_list))
    _run("broadcast_object_list", caller, root, (sizes, sizes), len(object_list))
    total = int(sizes.array.sum())
    data = from_numpy(np.concatenate(parts)) if is_root and parts else _bytes(total)
    _run("broadcast_object_list", caller, root, (data, data), total)
    if not is_root:
        _unpickle_into(object_list, data, sizes)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
) -> None:
    """Put entry k of the list on global rank `src` (default: 0) first into the list of member k.

    Raises:
        ValueError: The output list is empty, or the input list missing on that rank.
    """
    caller = _enter("scatter_object_list", group)
    if caller is None:
        return
    root = _root("src", src, group_src, caller)
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError(
            "Expected argument scatter_object_output_list to be a list of size at least 1."
        )
    is_root, size = caller.group_rank == root, caller.group.size()
    if is_root and (scatter_object_input_list is None or len(scatter_object_input_list) != size):
        raise ValueError("source rank must provide non-None scatter_object_input_list")
    parts = [_pickled(value) for value in scatter_object_input_list or ()] if is_root else []
    largest = _integers(1)
    if is_root:
        largest.array[0] = max(len(part) for part in parts)
    _run("scatter_object_list", caller, root, (largest, largest), 1)
    length = int(largest.array[0])
    source, target = _bytes(0), _bytes(length)
    if is_root:
        source = from_numpy(np.concatenate([_padded(part, length) for part in parts]))
    _run("scatter_object_list data", caller, root, (source, target), length)
    own_size, sizes = _integers(1), _sizes_tensor(parts) if is_root else _integers(0)
    _run("scatter_object_list data", caller, root, (sizes, own_size), 1)
    data = target.array[: int(own_size.array[0])].tobytes()
    scatter_object_output_list[0] = pickle.loads(data)


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Group = None,
    device: object = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Send the objects to global rank `dst`."""
    del device
    caller = _enter("send_object_list", group)
    if caller is None:
        return
    other = _other(("destination", "dst"), dst, group_dst, caller)
    parts = [_pickled(value) for value in object_list]
    route = Envelope(caller.group_rank, other, 0, use_batch)
    for tensor in (_sizes_tensor(parts), from_numpy(np.concatenate(parts))):
        submit(caller, [End(route, tensor, is_send=True)], is_staged=True).wait()


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: object = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Replace the objects of the list by those that global rank `src` sends; returns the sender."""
    del device
    caller = _enter("recv_object_list", group)
    if caller is None:
        return -1
    other = _other(("source", "src"), src, group_src, caller)
    route = Envelope(other, caller.group_rank, 0, use_batch)
    sizes = _integers(len(object_list))
    submit(caller, [End(route, sizes, is_send=False)], is_staged=True).wait()
    data = _bytes(int(sizes.array.sum()))
    submit(caller, [End(route, data, is_send=False)], is_staged=True).wait()
    _unpickle_into(object_list, data, sizes)
    return int(caller.group.ranks[other])


# ---- how ----


def _enter(call: str, group: Group) -> Caller | None:
    program = require_rank(call)
    chosen = member_group(call, group, program)
    if chosen is None:
        return None
    return caller_of(program, chosen, chosen.backends.get("cuda", GLOO))


def _root(name: str, global_rank: int | None, group_rank: int | None, caller: Caller) -> int:
    if global_rank is None and group_rank is None:
        global_rank = 0
    return peer_in_group(name, global_rank, group_rank, caller.group)


def _other(
    words: tuple[str, str], global_rank: int | None, group_rank: int | None, caller: Caller
) -> int:
    role, name = words
    other = peer_in_group(name, global_rank, group_rank, caller.group)
    if other == caller.group_rank:
        raise ValueError(
            f"Invalid {role} rank: {role} rank should not be the same as the rank of the "
            "current process."
        )
    return other


def _run(
    op: str, caller: Caller, root: int | None, tensors: tuple[Tensor, Tensor], count: int
) -> None:
    """Run one step of an object collective, and wait for it on the host."""
    source, target = tensors
    signature = Signature(op, None, root, source.dtype.name, count)
    issue(caller, Request(signature, source, target, is_staged=True), async_op=False)


def _all_sizes(op: str, caller: Caller, data: Bytes) -> list[int]:
    """Return the number of bytes of each member."""
    sizes = _integers(caller.group.size())
    _run(op, caller, None, (_sizes_tensor([data]), sizes), 1)
    return [int(size) for size in sizes.array]


def _pickled(value: object) -> Bytes:
    return np.frombuffer(pickle.dumps(value), dtype=np.uint8)


def _padded(data: Bytes, length: int) -> Bytes:
    return np.pad(data, (0, length - len(data)))


def _rows(target: Tensor, sizes: Sequence[int]) -> list[bytes]:
    rows = target.array.reshape(len(sizes), -1)
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


def _unpickle_into(object_list: list[Any], data: Tensor, sizes: Tensor) -> None:
    start = 0
    for index, size in enumerate(sizes.array.tolist()):
        part = data.array[start : start + size].tobytes()
        object_list[index] = pickle.loads(part)
        start += size


def _sizes_tensor(parts: Sequence[Bytes]) -> Tensor:
    return from_numpy(np.array([len(part) for part in parts], dtype=np.int64))


def _integers(count: int) -> Tensor:
    return from_numpy(np.zeros(count, dtype=np.int64))


def _bytes(count: int) -> Tensor:
    return from_numpy(np.zeros(count, dtype=np.uint8))
