"""Reduction operations, with torch's names."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from simrank.device import Tensor


class ReduceOp(StrEnum):
    """How elements of different ranks are combined."""

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
