"""Coalescing: collectives of one kind inside a block are issued as one call at its end.

As in torch 2.13, `all_reduce`, `all_gather_into_tensor` and `reduce_scatter_tensor` on the block's
group are held back; other collectives run at once, and messages are batched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.distributed.request import Request, staging
from simrank.distributed.work import Work
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Tensor
    from simrank.distributed.issue import Place
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


class CoalescingManager:
    """What a coalescing manager yields.

    Attributes:
        works: What was started at its end.
        entries: Messages that are held back.
        held: Collectives that are held back, by the name of their function.
        groups_all: Whether it was given a device: then torch holds back every collective.
    """

    def __init__(self, *, groups_all: bool = False) -> None:
        self.works: list[Work] = []
        self.entries: list[tuple[Place, End]] = []
        self.held: list[tuple[str, Place, Request]] = []
        self.groups_all = groups_all

    def append(self, work: Work | None = None) -> None:
        """Add a Work."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Wait for everything, as `Work.wait` does."""
        for work in self.works:
            work.wait()

    def merged(self) -> tuple[Place, Request]:
        """Return the held collectives as one.

        Raises:
            RuntimeError: They are of different kinds; torch's words.
            UnsupportedError: They reduce in different ways; torch would use the first for all.
        """
        kinds = sorted({kind for kind, _, _ in self.held})
        if len(kinds) > 1:
            raise RuntimeError(
                "Coalescing manager requires all collectives to be the same type, "
                f"but got mixed types: {set(kinds)}"
            )
        requests = [request for _, _, request in self.held]
        reductions = sorted({f"{r.signature[1]}" for r in requests})
        if len(reductions) > 1 or len({str(r.factor) for r in requests}) > 1:
            raise UnsupportedError(
                f"{kinds[0]} with {' and '.join(reductions)} in one coalescing manager: torch "
                "would use the first reduction for all of them"
            )
        place = self.held[0][1]
        size = place[1].size()
        inputs = [(r.sources or [r.source])[0] for r in requests]
        outputs = [r.results[0] for r in requests]
        _check_types(kinds[0], inputs)
        if kinds[0] == "all_gather_into_tensor":
            outputs = _by_member(outputs, size)
        elif kinds[0] == "reduce_scatter_tensor":
            inputs = _by_member(inputs, size)
        first, device = inputs[0], inputs[0].place
        name, reduction, root, dtype, _ = requests[0].signature
        count = sum(int(r.signature[4] or 0) for r in requests)
        source = staging(inputs, first.dtype, device)
        in_place = kinds[0] == "all_reduce"
        target = source if in_place else staging(outputs, first.dtype, device)
        request = Request((name, reduction, root, dtype, count), source, target)
        request.sources, request.targets = inputs, outputs
        request.factor = requests[0].factor
        return place, request


def _check_types(kind: str, tensors: Sequence[Tensor]) -> None:
    names = sorted({tensor.dtype.name for tensor in tensors})
    if len(names) > 1:
        raise ValueError(f"{kind} in one coalescing manager: tensors of types {', '.join(names)}")


def _by_member(tensors: Sequence[Tensor], size: int) -> list[Tensor]:
    """Return the parts of each member in turn: of every tensor its part of member 0, and so on."""
    flat = [tensor.view(-1) for tensor in tensors]
    parts = [tensor.split(tensor.numel() // size) if tensor.numel() else () for tensor in flat]
    return [part[member] for member in range(size) for part in parts if part]
