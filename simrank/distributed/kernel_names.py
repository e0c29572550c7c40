"""The kernels of the collective library, where devices load each at its first launch.

What reduces has a kernel for each reduction and type; what only moves bytes has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.distributed.narrowed import DTYPES, REDUCTIONS

if TYPE_CHECKING:
    from simrank.distributed.request import Signature

_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_MOVING = ("broadcast", "all_gather", "all_to_all", "gather", "scatter")


def module_of(signature: Signature) -> str:
    """Return the kernel that a collective runs, for example `all_reduce sum bfloat16`.

    Source: NCCL compiles one for each function, reduction and type; a barrier is an all_reduce.
    """
    op, reduce_op, _, dtype, _ = signature
    if op == "barrier":
        return "all_reduce sum float32"
    return op if reduce_op is None else f"{op} {reduce_op} {dtype}"


# What `ctx.preload()` loads: the types for which Mooncake's PR 1755 does, so not float16.
COLLECTIVES = (
    *_MOVING,
    *(f"{op} {redop} {dtype}" for op in _REDUCING for redop in REDUCTIONS for dtype in DTYPES),
)
