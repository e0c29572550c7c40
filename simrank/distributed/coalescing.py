"""Coalescing: collectives of one kind inside a block are issued as one call at its end.

As in torch 2.13, `all_reduce`, `all_gather_into_tensor` and `reduce_scatter_tensor` on the block's
group are held back; other collectives run at once, and messages are batched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.device import Tensor
from simrank.distributed.request import Request, staging
from simrank.distributed.work import Work
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Buffer
    from simrank.distributed.caller import Caller
    from simrank.distributed.p2p import End

_ILLEGAL = frozenset(
    {"is_success", "exception", "wait", "source_rank", "_source_rank", "result", "synchronize"}
)


class IllegalWork(Work):
    """What a held back collective returns: it runs only at the end of the block."""

    def __init__(self) -> None:  # It has nothing of a Work but the type.
        return

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - torch's names
        """Refuse to wait for what has not been issued, in torch's words.

        Raises:
            ValueError: For everything that waits or looks at a result.
        """
        if name in _ILLEGAL:
            raise ValueError(f"Illegal to call {name} on IllegalWork object")
        return super().__getattribute__(name)


class Held(NamedTuple):
    """A collective that is held back; its kind is the name of its function."""

    kind: str
    caller: Caller
    request: Request


class CoalescingManager:
    """What a coalescing manager yields.

    Attributes:
        works: What was started at its end.
        entries: Messages that are held back.
        held: Collectives that are held back.
        groups_all: Whether it was given a device: then torch holds back every collective.
    """

    def __init__(self, *, groups_all: bool = False) -> None:
        self.works: list[Work] = []
        self.entries: list[tuple[Caller, End]] = []
        self.held: list[Held] = []
        self.groups_all = groups_all

    def append(self, work: Work | None = None) -> None:
        """Add a Work."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Wait for everything, as `Work.wait` does."""
        for work in self.works:
            work.wait()

    def merged(self) -> tuple[Caller, Request]:
        """Return the held collectives as one.

        Raises:
            RuntimeError: They are of different kinds; torch's words.
            UnsupportedError: They reduce in different ways; torch would use the first for all.
        """
        kinds = sorted({held.kind for held in self.held})
        if len(kinds) > 1:
            raise RuntimeError(
                "Coalescing manager requires all collectives to be the same type, "
                f"but got mixed types: {set(kinds)}"
            )
        requests = [held.request for held in self.held]
        reductions = sorted({f"{r.signature.reduce_op}" for r in requests})
        if len(reductions) > 1 or len({str(r.factor) for r in requests}) > 1:
            raise UnsupportedError(
                f"{kinds[0]} with {' and '.join(reductions)} in one coalescing manager: torch "
                "would use the first reduction for all of them"
            )
        caller = self.held[0].caller
        size = caller.group.size()
        inputs: Sequence[Buffer] = [r.reads[0] for r in requests]
        outputs: Sequence[Buffer] = [r.results[0] for r in requests]
        _check_types(kinds[0], inputs)
        if kinds[0] == "all_gather_into_tensor":
            outputs = _by_member(outputs, size)
        elif kinds[0] == "reduce_scatter_tensor":
            inputs = _by_member(inputs, size)
        first, device = inputs[0], inputs[0].cuda_device
        count = sum(int(r.signature.count or 0) for r in requests)
        source = staging(inputs, first.dtype, device)
        in_place = kinds[0] == "all_reduce"
        target = source if in_place else staging(outputs, first.dtype, device)
        request = Request(requests[0].signature._replace(count=count), source, target)
        request.sources, request.targets = inputs, outputs
        request.factor = requests[0].factor
        return caller, request


def _check_types(kind: str, tensors: Sequence[Buffer]) -> None:
    names = sorted({tensor.dtype.name for tensor in tensors})
    if len(names) > 1:
        raise ValueError(f"{kind} in one coalescing manager: tensors of types {', '.join(names)}")


def _by_member(tensors: Sequence[Buffer], size: int) -> Sequence[Buffer]:
    """Return the parts of each member in turn: of every tensor its part of member 0, and so on."""
    parts = [_split(tensor, size) for tensor in tensors if tensor.numel()]
    return [part[member] for member in range(size) for part in parts]


def _split(tensor: Buffer, size: int) -> list[Tensor]:
    """Return equal parts of a tensor's elements, as views."""
    if not tensor.is_contiguous():
        raise ValueError("Tensors must be contiguous")
    parts = []
    for view in np.split(tensor.array.reshape(-1), size):
        part = Tensor(tensor.storage, tensor.dtype, view)
        part.cuda_device = tensor.cuda_device
        parts.append(part)
    return parts
