"""Collectives on several tensors of each rank in one call, which only gloo has.

torch's functions take one tensor per rank; methods of a process group take lists of them, which
date from processes with several devices. gloo reduces them within the rank first, moves the result
once, and copies it to all tensors of the rank.

Source:
    torch 2.13 `ProcessGroupGloo.cpp`; measured with torch 2.13 on two processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.distributed.api import reduction_of
from simrank.distributed.issue import enter_call, issue
from simrank.distributed.membership import Group, peer_in_group
from simrank.distributed.request import ReduceOp, Request, Signature, staging
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Buffer
    from simrank.distributed.api import Op
    from simrank.distributed.group import Caller
    from simrank.distributed.work import Work


def all_reduce_multi_tensor(tensors: Sequence[Buffer], op: Op, group: Group = None) -> Work | None:
    """Reduce several tensors of every member into one result, and copy it to all of them.

    Raises:
        UnsupportedError: The reduction is an average, which gloo gets right in one tensor only.
    """
    caller = enter_call("all_reduce", group, lists=(tensors,))
    if caller is None:
        return None
    reduction = reduction_of(caller.backend, op, tensors[0])
    if reduction is ReduceOp.AVG:
        raise UnsupportedError(
            f"an average of {len(tensors)} tensors per rank: gloo divides the first one alone and "
            "leaves sums in the rest\n  to fix: ReduceOp.SUM, and divide the tensors"
        )
    flat = staging(tensors[:1], tensors[0].dtype, None)
    signature = Signature("all_reduce", reduction.value, None, flat.dtype.name, flat.numel())
    return _issue(caller, Request(signature, flat, flat, None, tensors, tensors))


def broadcast_multi_tensor(
    tensors: Sequence[Buffer], index: int, root: int, group: Group = None
) -> Work | None:
    """Copy one tensor of the root to all tensors of every member.

    Args:
        tensors: The caller's.
        index: Which of them is broadcast.
        root: Group rank of the root.
        group: The group, or None.
    """
    caller = enter_call("broadcast", group, lists=(tensors,))
    if caller is None:
        return None
    root = peer_in_group("src", None, root, caller.group)
    own = tensors[index]
    flat = staging([own], own.dtype, None)
    signature = Signature("broadcast", None, root, own.dtype.name, own.numel())
    return _issue(caller, Request(signature, flat, flat, None, [own], tensors))


def all_gather_multi_tensor(
    output_lists: Sequence[Sequence[Buffer]], tensors: Sequence[Buffer], group: Group = None
) -> Work | None:
    """Put the tensors of all members, in group order, into each list of every member."""
    caller = enter_call("all_gather", group, lists=(tensors, *output_lists))
    if caller is None:
        return None
    dtype = tensors[0].dtype
    source, target = staging(tensors, dtype, None), staging(output_lists[0], dtype, None)
    outputs = [output for listed in output_lists for output in listed]
    signature = Signature("all_gather", None, None, dtype.name, source.numel())
    return _issue(caller, Request(signature, source, target, None, tensors, outputs))


def _issue(caller: Caller, request: Request) -> Work | None:
    request.is_repeated = True
    return issue(caller, request, async_op=True)
