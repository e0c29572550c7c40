"""Reduction operations, with torch's names."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from simrank.device import Tensor
    from simrank.distributed.request import Signature


class ReduceOp(StrEnum):
    """Reduce operations: the combination of elements of different ranks."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "prod"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"
    PREMUL_SUM = "premul_sum"


class PremulSum:
    """A sum of inputs that each rank multiplies by its own factor first.

    Attributes:
        value: "premul_sum", as of a ReduceOp.
        factor: A number, or a tensor of one element that is read in stream order.
    """

    __slots__ = ("factor",)
    value = ReduceOp.PREMUL_SUM.value

    def __init__(self, factor: float | Tensor) -> None:
        self.factor = factor


def _make_nccl_premul_sum(factor: float | Tensor) -> PremulSum:
    """Return the reduction that sums what each rank has multiplied by `factor`."""
    return PremulSum(factor)


def as_reduce_op(op: Any) -> ReduceOp | PremulSum:  # noqa: ANN401 - a ReduceOp or one of its names
    """Return the operation named by a ReduceOp, or by nccl-tests' name of it.

    Raises:
        UnsupportedError: There is no such operation.
        TypeError: It is `PREMUL_SUM` without a factor.
    """
    if isinstance(op, PremulSum):
        return op
    try:
        reduce_op = ReduceOp(op)
    except ValueError:
        choices = ", ".join(op.value for op in ReduceOp)
        raise UnsupportedError(f"reduce op {op!r} is not supported; choices: {choices}") from None
    if reduce_op is ReduceOp.PREMUL_SUM:
        raise TypeError(
            "ReduceOp.PREMUL_SUM needs a factor\n  to fix: pass _make_nccl_premul_sum(factor)"
        )
    return reduce_op


REDUCTIONS = ("sum", "prod", "min", "max")


# Source: the types for which Mooncake's PR 1755 loads reduction kernels.
DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float32", "float64", "bool", "bfloat16",
)  # fmt: skip

# ---- The kernels of the collective library, where devices load each at its first launch ----
# What reduces has a kernel for each reduction and type; what only moves bytes has one.

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
