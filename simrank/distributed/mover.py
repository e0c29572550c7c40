"""Moves the data of one collective: of all ranks at once, or of those that end before others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.collectives.problem import GATHERED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.collectives import DataPlayer, Problem
    from simrank.collectives.schedule import Schedule
    from simrank.distributed.collective import CollectiveOperation

Array = np.ndarray[Any, Any]


class DataMover:
    """Moves the data of equal collectives of one group; what their schedule decides is kept.

    Args:
        player: Moves the data of all ranks.
        schedule: What the ranks run.
        problem: What it solves.
        reduce_op: How elements are combined; None: nothing moves (a barrier).
    """

    def __init__(
        self, player: DataPlayer, schedule: Schedule, problem: Problem, reduce_op: str | None
    ) -> None:
        self.schedule = schedule
        self.problem = problem
        self._reduce_op = reduce_op
        self._player = player

    def move(
        self,
        operations: Sequence[CollectiveOperation | None],
        ending: Sequence[CollectiveOperation],
        snapshots: dict[int, Array],
    ) -> None:
        """Write the outputs of the ranks that end now.

        Args:
            operations: By group rank; None where a rank has not called.
            ending: Those that end now.
            snapshots: Inputs of ranks that ended before: a sender that finished early may have
                reused its buffer since. The inputs of `ending` are added if others still run.
        """
        if self._reduce_op is None:
            return
        for operation in [o for o in operations if o is not None and o.request.sources]:
            if _is_running(operation):
                operation.request.pack()
        self._move(operations, ending, snapshots)
        for request in [o.request for o in ending if o.request.targets]:
            request.unpack()

    def _move(
        self,
        operations: Sequence[CollectiveOperation | None],
        ending: Sequence[CollectiveOperation],
        snapshots: dict[int, Array],
    ) -> None:
        if self.problem.collective in GATHERED:
            gathered = _gather if self.problem.collective == "gather" else _scatter
            gathered(operations, ending, snapshots, root=self.problem.root)
            return
        assert self._reduce_op is not None, "a barrier moves nothing"
        if len(ending) < len(operations) and self._move_unplayed(operations, ending, snapshots):
            return
        if not all(map(_has_values, operations)):
            for operation in ending:
                operation.outputs.storage.lose_values()
            return
        if len(ending) == len(operations):
            inputs = [operation.request.values() for operation in ending]
            outputs = [operation.request.target.array.reshape(-1) for operation in ending]
        else:
            inputs, outputs = self._partial(operations, ending, snapshots)
        self._player.play(inputs, outputs=outputs, reduce_op=self._reduce_op)

    def _move_unplayed(
        self,
        operations: Sequence[CollectiveOperation | None],
        ending: Sequence[CollectiveOperation],
        snapshots: dict[int, Array],
    ) -> bool:
        """Do what `move` does where no schedule need be played for it, or return False.

        A broadcast leaves the root's values everywhere, and a reduce writes those of its root only.
        So ranks that end one by one cost a copy each, not a play of the whole group.
        """
        root = self.schedule.root
        if root is None:
            return False
        if self.problem.collective == "broadcast":
            source = operations[root]
            assert source is not None, "nobody ends a broadcast before its root has come"
            _copy_root(source, ending, snapshots)
            return True
        if any(operation.group_rank == root for operation in ending):
            return False
        for operation in ending:
            if _has_values(operation):
                snapshots[operation.group_rank] = operation.request.values().copy()
        return True

    def _partial(
        self,
        operations: Sequence[CollectiveOperation | None],
        ending: Sequence[CollectiveOperation],
        snapshots: dict[int, Array],
    ) -> tuple[list[Array], list[Array]]:
        """Return inputs and outputs of all ranks of which only those of `ending` are real.

        The others' outputs go to copies; ranks that have not arrived contribute zeros, which by
        causality reach nobody that ends now.
        """
        dtype = ending[0].inputs.array.dtype
        by_rank = {operation.group_rank: operation for operation in ending}
        inputs, outputs = [], []
        for rank, operation in enumerate(operations):
            if rank in by_rank:
                live = by_rank[rank]
                snapshots[rank] = live.request.values().copy()
                inputs.append(snapshots[rank])
                outputs.append(live.outputs.array.reshape(-1))
                continue
            if rank in snapshots:
                inputs.append(snapshots[rank])
            elif operation is not None and operation.start_ps >= 0:
                inputs.append(operation.request.values())
            else:
                inputs.append(np.zeros(self.schedule.input.num_elements, dtype))
            outputs.append(np.zeros(self.schedule.output.num_elements, dtype))
        return inputs, outputs


def _has_values(operation: CollectiveOperation | None) -> bool:
    return operation is None or (
        operation.inputs.storage.has_values and operation.outputs.storage.has_values
    )


def _copy_root(
    source: CollectiveOperation,
    ending: Sequence[CollectiveOperation],
    snapshots: dict[int, Array],
) -> None:
    """Write the root's values to the ranks that end now; keep them if the root does."""
    values = snapshots.get(source.group_rank)
    if values is None and source.inputs.storage.has_values:
        values = source.inputs.array.reshape(-1)
        if source in ending:
            values = snapshots[source.group_rank] = values.copy()
    for operation in ending:
        if values is None:
            operation.outputs.storage.lose_values()
        elif operation.outputs.storage.has_values:
            operation.outputs.array.reshape(-1)[...] = values


def _is_running(operation: CollectiveOperation) -> bool:
    return operation.start_ps >= 0 and not operation.complete


def _gather(
    operations: Sequence[CollectiveOperation | None],
    ending: Sequence[CollectiveOperation],
    snapshots: dict[int, Array],
    *,
    root: int,
) -> None:
    """Keep what ranks that end before the root have sent; put everything together at its end."""
    target = next((o for o in ending if o.group_rank == root), None)
    if target is None:
        for operation in ending:
            if _has_values(operation):
                snapshots[operation.group_rank] = operation.request.values().copy()
        return
    parts = []
    for rank, live_operation in enumerate(operations):
        assert live_operation is not None, "a gather's root ends after all have come"
        if live_operation.complete:
            parts.append(snapshots.get(rank))
        else:
            has_values = live_operation.inputs.storage.has_values
            parts.append(live_operation.request.values() if has_values else None)
    if any(part is None for part in parts):
        target.outputs.storage.lose_values()
    elif target.outputs.storage.has_values:
        np.concatenate([part for part in parts if part is not None], out=target.outputs.array)


def _scatter(
    operations: Sequence[CollectiveOperation | None],
    ending: Sequence[CollectiveOperation],
    snapshots: dict[int, Array],
    *,
    root: int,
) -> None:
    """Write its part to each rank that ends now; keep the root's values if the root does."""
    source = operations[root]
    assert source is not None, "nobody ends a scatter before its root has come"
    values = snapshots.get(root)
    if values is None and source.inputs.storage.has_values:
        values = source.request.values()
        if source in ending:
            values = snapshots[root] = values.copy()
    for operation in ending:
        if values is None:
            operation.outputs.storage.lose_values()
        elif operation.outputs.storage.has_values:
            out = operation.outputs.array.reshape(-1)
            start = operation.group_rank * out.size
            out[...] = values[start : start + out.size]
