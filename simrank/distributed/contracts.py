"""Contracts: the facts of each collective on which its members must agree, as one table.

The matcher compares the columns of a `Signature` and the split sizes; the issue of a call checks
where an in-place call lies; tests derive a wrong program from each entry.

Source:
    NCCL user guide, "Collective Operations" and "In-place Operations"; torch 2.13
    `ProcessGroupGloo.cpp`, which copies its inputs first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from numpy.lib.array_utils import byte_bounds

if TYPE_CHECKING:
    from simrank.distributed.request import Request

Slot = Literal["whole", "output", "input"]


class Contract(NamedTuple):
    """The facts of one collective on which its members must agree.

    Attributes:
        columns: Fields of the call's signature that must be equal, besides the collective.
        splits: Whether sizes may differ between ranks; what rank i sends to rank j must then be
            what j expects from i, where j may be i itself.
        in_place: The tensor of which the other one may be the member's own part; "whole": input
            and output may be one tensor; None: they may not share memory.
        coalesces: Whether several tensors may be one call; their sizes must agree in order.
    """

    columns: tuple[str, ...]
    splits: bool = False
    in_place: Slot | None = "whole"
    coalesces: bool = False


CONTRACTS: Final[dict[str, Contract]] = {
    "all_reduce": Contract(("reduce_op", "dtype", "count"), coalesces=True),
    "reduce": Contract(("reduce_op", "root", "dtype", "count")),
    "broadcast": Contract(("root", "dtype", "count")),
    "all_gather": Contract(("dtype", "count"), splits=True, in_place="output", coalesces=True),
    "reduce_scatter": Contract(
        ("reduce_op", "dtype", "count"), splits=True, in_place="input", coalesces=True
    ),
    "all_to_all": Contract(("dtype",), splits=True, in_place=None),
    "gather": Contract(("root", "dtype", "count"), in_place="output"),
    "scatter": Contract(("root", "dtype", "count"), in_place="input"),
    "barrier": Contract(()),
}


def check_in_place(request: Request, group_rank: int) -> None:
    """Check that input and output share no memory, or are in the place that NCCL knows.

    Args:
        request: A member's side of a call.
        group_rank: The member.

    Raises:
        ValueError: They overlap elsewhere: NCCL would overwrite elements before they are read.
    """
    source, target = request.source, request.target
    if source.storage is not target.storage:
        return
    op = request.signature.op
    contract = CONTRACTS.get(op)
    if contract is None or contract.in_place == "whole" or not (source.nbytes and target.nbytes):
        return
    source_start, source_stop = byte_bounds(source.array)
    target_start, target_stop = byte_bounds(target.array)
    if source_stop <= target_start or target_stop <= source_start:
        return
    if contract.in_place is None:
        raise ValueError(
            f"{op}: input and output share memory, which NCCL does not support\n"
            "  to fix: use separate tensors"
        )
    is_output = contract.in_place == "output"
    part, whole = ("input", "output") if is_output else ("output", "input")
    own, all_of_it = (source, target) if is_output else (target, source)
    start = (source_start - target_start) if is_output else (target_start - source_start)
    if start == group_rank * own.nbytes:
        return
    size, offset = own.numel(), start // own.dtype.itemsize
    slot = group_rank * size
    raise ValueError(
        f"{op}: the {part} lies in the {whole} of {all_of_it.numel()} elements at element {offset}"
        f", but the part of group rank {group_rank} is [{slot}:{slot + size}]: NCCL overwrites "
        f"elements before it reads them\n  to fix: pass {whole}[{slot}:{slot + size}] as the "
        f"{part}, or a separate tensor"
    )
