"""Reduction operations, with torch's names."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from simrank.errors import UnsupportedError


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


def as_reduce_op(op: Any) -> ReduceOp:  # noqa: ANN401 - a ReduceOp or one of its names
    """Return the operation named by a ReduceOp, or by nccl-tests' name of it.

    Raises:
        UnsupportedError: There is no such operation.
    """
    try:
        return ReduceOp(op)
    except ValueError:
        choices = ", ".join(op.value for op in ReduceOp)
        raise UnsupportedError(f"reduce op {op!r} is not supported; choices: {choices}") from None
