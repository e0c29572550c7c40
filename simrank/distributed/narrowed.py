"""What a collective's request becomes where some members of its group sit out.

The parts of those that take part keep their places in the user's tensors; what belongs to the
others is neither sent nor written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.distributed.request import Request, Signature, staging
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Buffer, Device, DType
    from simrank.device.memory import Storage

REDUCTIONS = ("sum", "prod", "min", "max")
# Source: the types for which Mooncake's PR 1755 loads reduction kernels.
DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float32", "float64", "bool", "bfloat16",
)  # fmt: skip
# By collective: whether the input, and whether the output, consists of a part per member.
_IN_PARTS = {
    "all_gather": (False, True),
    "reduce_scatter": (True, False),
    "all_to_all": (True, True),
    "gather": (False, True),
    "scatter": (True, False),
}
_WHOLE = ("barrier", "all_reduce", "reduce", "broadcast")


class Slice:
    """Some elements of a contiguous buffer, one after the other, as a buffer."""

    def __init__(self, base: Buffer, start: int, stop: int) -> None:
        self._base, self._start, self._stop = base, start, stop
        self.storage: Storage = base.storage
        self.dtype: DType = base.dtype
        self.cuda_device: Device | None = base.cuda_device

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the size of its one dim."""
        return (self._stop - self._start,)

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""
        return (self._stop - self._start) * self.dtype.itemsize

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """Return a numpy view of its values."""
        return self._base.array.reshape(-1)[self._start : self._stop]

    def numel(self) -> int:
        """Return the number of elements."""
        return self._stop - self._start

    def stride(self) -> Sequence[int]:
        """Return the elements from one to the next."""
        return (1,)

    def is_contiguous(self) -> bool:
        """Return True."""
        return True


def check_narrow(signature: Signature) -> None:
    """Check that a collective is defined over some members of its group.

    Raises:
        UnsupportedError: It is not: the call, and the reduction or type that is too much.
    """
    op, reduce_op, _, dtype, _ = signature
    if op not in _WHOLE and op not in _IN_PARTS:
        raise UnsupportedError(f"{op} while some ranks of its group sit out")
    if reduce_op is None:
        return
    if reduce_op not in REDUCTIONS:
        raise UnsupportedError(
            f"{op} with {reduce_op} while some ranks of its group sit out: over the active ones "
            f"there are {', '.join(REDUCTIONS)}"
        )
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"{op} of {dtype} while some ranks of its group sit out: over the active ones there "
            f"are {', '.join(DTYPES)}"
        )


def narrow(request: Request, members: Sequence[int], own: int, num_ranks: int) -> Request:
    """Return what a rank asks of the active members only.

    Args:
        request: What it asks of the whole group.
        members: Positions in that group of those that take part.
        own: The rank's.
        num_ranks: The group's size.

    Raises:
        UnsupportedError: The collective is not defined over some members, or they lie in the
            tensors otherwise than one after the other.
    """
    signature = request.signature
    check_narrow(signature)
    root = signature.root
    if root is not None:
        signature = signature._replace(root=members.index(root))
    narrowed = replace(request, signature=signature)
    of_source, of_target = _IN_PARTS.get(signature.op, (False, False))
    is_root = root is None or root == own
    sends, receives = request.splits or (None, None)
    if of_source and is_root:
        parts = _parts(request.source, request.sources, sends, num_ranks)
        narrowed.sources = [parts[member] for member in members]
        narrowed.source = staging(narrowed.sources, request.source.dtype, None)
    if of_target and is_root:
        parts = _parts(request.target, request.targets, receives, num_ranks)
        narrowed.targets = [parts[member] for member in members]
        narrowed.target = staging(narrowed.targets, request.target.dtype, None)
    if request.splits is not None:
        sends, receives = request.splits
        narrowed.splits = [sends[m] for m in members], [receives[m] for m in members]
    return narrowed


def _parts(
    flat: Buffer, listed: Sequence[Buffer], sizes: Sequence[int] | None, num_ranks: int
) -> Sequence[Buffer]:
    """Return the part of each member of the whole group in a rank's tensors.

    Raises:
        UnsupportedError: There are neither as many tensors as members nor one for all.
    """
    if len(listed) == num_ranks:
        return listed
    if listed:
        raise UnsupportedError(
            f"a collective on {len(listed)} tensors while some of {num_ranks} ranks sit out\n"
            "  to fix: one contiguous tensor, or a list with a tensor for each rank"
        )
    if sizes is None:
        sizes = [flat.numel() // num_ranks] * num_ranks
    ends = np.cumsum(sizes).tolist()
    return [Slice(flat, end - size, end) for size, end in zip(sizes, ends, strict=True)]
