"""Requests: one rank's side of a collective, with its signature, tensors and reduction."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from simrank.collectives.problem import reduction
from simrank.device.memory import INTEGERS_UP_TO_BYTES, Storage, give_values
from simrank.device.tensors.tensor import Tensor, empty
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Buffer, Device, DType

Array = np.ndarray[Any, Any]
UNEVEN = "uneven"


class Signature(NamedTuple):
    """Facts of a call that must agree between ranks; its fields are the words of reports.

    Attributes:
        op: The collective.
        reduce_op: How elements are combined, or None.
        root: Group rank of the root, or None.
        dtype: Name of the element type.
        count: Elements; `UNEVEN` where sizes differ from rank to rank, and split sizes are matched
            pair by pair.
        sizes: Elements of each tensor of a coalesced call, in their order; None: it has only one.
    """

    op: str
    reduce_op: str | None
    root: int | None
    dtype: str
    count: int | str | None  # type: ignore[assignment]  # Hides tuple.count, which is unused.
    sizes: tuple[int, ...] | None = None


def sizes_of(tensors: Sequence[Buffer]) -> tuple[int, ...] | None:
    """Return the elements of each tensor of a coalesced call; None: it has only one."""
    return tuple(tensor.numel() for tensor in tensors) if len(tensors) > 1 else None


@dataclass(slots=True)
class Request:
    """One rank's side of a call.

    Attributes:
        signature: What must agree between ranks.
        source: What the rank contributes, contiguous.
        target: What it gets, contiguous.
        splits: Elements that go to each member and that come from each, where sizes may differ.
        sources: Tensors that are packed into `source` when it is read; empty: it is the user's own.
        targets: Tensors that `target` is unpacked into at the end.
        factor: What the inputs are multiplied by before a sum, or None.
        is_staged: Pickled objects: they travel through host memory under any backend.
        is_repeated: Several tensors of a rank in one call, as gloo takes them: inputs of a
            reduction are reduced into `source`, and `targets` get the whole `target` again and
            again until each of them has its part.
        reads: The user's tensors that are read; known as it is issued.
        writes: The user's tensors that are written, likewise: none of the root of a broadcast.
        waits_for_flags: False: no collective waits for flags in memory.
    """

    waits_for_flags: ClassVar[bool] = False

    signature: Signature
    source: Buffer
    target: Buffer
    splits: tuple[Sequence[int], Sequence[int]] | None = None
    sources: Sequence[Buffer] = ()
    targets: Sequence[Buffer] = ()
    factor: float | Tensor | None = None
    is_staged: bool = False
    is_repeated: bool = False
    reads: Sequence[Buffer] = field(default=(), init=False)
    writes: Sequence[Buffer] = field(default=(), init=False)

    @property
    def results(self) -> Sequence[Buffer]:
        """Return the tensors that the user sees change."""
        return self.targets or (self.target,)

    @property
    def tensors(self) -> tuple[Buffer, ...]:
        """Return the user's tensors."""
        if self.source is self.target and not self.sources and not self.targets:
            return (self.source,)
        return (*(self.sources or (self.source,)), *self.results)

    def pack(self) -> None:
        """Copy the listed inputs into `source`."""
        flat = self.source
        known = all(tensor.storage.knows(tensor.array) for tensor in self.sources)
        if not known or not flat.storage.regain(flat.array):
            flat.storage.lose(flat.array)
        elif self.is_repeated and self.signature.reduce_op:
            self._merge(self.signature.reduce_op)
        else:
            for tensor, part in zip(self.sources, _parts(flat, self.sources), strict=True):
                part[...] = tensor.array

    def _merge(self, reduce_op: str) -> None:
        """Reduce the listed inputs into `source`, which is as long as each of them."""
        held = self.source.array.reshape(-1)
        first, *others = [tensor.array.reshape(-1) for tensor in self.sources]
        held[...] = first
        combine = reduction(reduce_op, held.dtype, 1).combine
        with np.errstate(all="ignore"):
            for values in others:
                combine(held, values, out=held)

    def unpack(self) -> None:
        """Copy `target` into the listed outputs."""
        flat = self.target
        parts = _parts(flat, self.targets, is_repeated=self.is_repeated)
        known = flat.storage.knows(flat.array)
        for tensor, part in zip(self.targets, parts, strict=True):
            give_values(tensor, part if known else None)

    def values(self) -> Array:
        """Return the elements that the rank contributes."""
        values: Array = self.source.array.reshape(-1)
        if self.factor is None:
            return values
        factor = getattr(self.factor, "array", self.factor)
        scaled: Array = np.multiply(values, np.asarray(factor).astype(values.dtype))
        return scaled


def _parts(flat: Buffer, tensors: Sequence[Buffer], *, is_repeated: bool = False) -> list[Array]:
    values, start, parts = flat.array.reshape(-1), 0, []
    for tensor in tensors:
        if is_repeated and start == len(values):
            start = 0
        stop = start + tensor.numel()
        parts.append(values[start:stop].reshape(tensor.shape))
        start = stop
    return parts


def staging(tensors: Sequence[Buffer], dtype: DType, device: Device | None) -> Tensor:
    """Return a tensor that the elements of all of them fit in, integers with their values."""
    num_elements = sum(tensor.numel() for tensor in tensors)
    size_bytes = num_elements * dtype.itemsize
    is_kept = dtype.numpy.kind in "biu" and size_bytes <= INTEGERS_UP_TO_BYTES
    if device is None or device.has_values or not is_kept:
        return empty((num_elements,), dtype, device, fresh=False)
    values = np.empty(num_elements, dtype.numpy)
    return Tensor(Storage.adopt(values, device), dtype, values)


# ---- reduction operations, with torch's names ----


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
    op, reduce_op, _, dtype, *_ = signature
    if op == "barrier":
        return "all_reduce sum float32"
    return op if reduce_op is None else f"{op} {reduce_op} {dtype}"


# What `ctx.preload()` loads: the types for which Mooncake's PR 1755 does, so not float16.
COLLECTIVES = (
    *_MOVING,
    *(f"{op} {redop} {dtype}" for op in _REDUCING for redop in REDUCTIONS for dtype in DTYPES),
)
