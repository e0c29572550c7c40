"""torch's reductions as simrank's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from simrank.distributed.reduce_op import PremulSum, ReduceOp

if TYPE_CHECKING:
    from simrank.distributed.api import Op

_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_BY_KIND: dict[Any, ReduceOp] = {getattr(dist.ReduceOp, name): ReduceOp[name] for name in _NAMES}


def reduction_of(op: Any) -> Op:
    """Return simrank's name of a reduction; one that multiplies first keeps its factor."""
    kind = getattr(op, "op", op)
    found = _BY_KIND.get(kind)
    if found is not None:
        return found
    return PremulSum(op.__getstate__()[1])
