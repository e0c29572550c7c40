"""What a group does for one collective: its algorithm and schedule, its times and its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.collectives import Problem, play_data
from simrank.collectives.problem import GATHERED
from simrank.device import as_dtype
from simrank.distributed.leaks import Leaks
from simrank.distributed.reduce_op import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simrank.collectives.choice import Choice, Chooser
    from simrank.collectives.cost import CostModel
    from simrank.collectives.schedule import IntArray
    from simrank.distributed.call import Call, CollectiveOperation

Array = np.ndarray[Any, Any]
_MAX_PLANS = 64

# Calls of other names and the collectives that they are made of.
_MADE_OF = {
    "barrier": "all_reduce",
    "all_gather_object": "all_gather",
    "broadcast_object_list": "broadcast",
    "gather_object": "all_gather",  # Of sizes; the objects are gathered.
    "gather_object data": "gather",
    "scatter_object_list": "broadcast",
    "scatter_object_list data": "scatter",
}


def _collective_of(call: Call) -> str:
    op = call.signature[0]
    return _MADE_OF.get(op, op)


class CollectiveLibrary:
    """What the collective library of one Context is: costs, choices, forced algorithms.

    Attributes:
        cost: The cost level in force.
        chooser: Picks algorithms.
        algorithms: Per collective the forced algorithm and its options; absent: "auto".
        num_sms: SMs that a collective occupies on each rank.
        leaks: Work that nobody has waited for.
        on_call: Called by each rank that calls a collective, before it is matched; or None.
    """

    def __init__(
        self,
        cost: CostModel,
        chooser: Chooser,
        algorithms: Mapping[str, tuple[str, Mapping[str, int]]],
        num_sms: int,
    ) -> None:
        self.cost = cost
        self.chooser = chooser
        self.algorithms = algorithms
        self.num_sms = num_sms
        self.leaks = Leaks()
        self.on_call: Callable[[], None] | None = None

    def choose(self, problem: Problem, devices: IntArray) -> Choice:
        """Return what a collective runs on these devices, and why."""
        name, options = self.algorithms.get(problem.collective, ("auto", {}))
        return self.chooser.choose(problem, devices=devices, algorithm=name, options=options)


class Planner:
    """Chooses and times the collectives of one group; equal calls share one plan."""

    def __init__(self, library: CollectiveLibrary, devices: IntArray) -> None:
        self.comm_library = library
        self._devices = devices
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def plan(self, call: Call) -> Plan:
        """Return the plan of a call whose members have agreed on its signature."""
        splits = call.split_sizes(_collective_of(call))
        key = (call.signature, None if splits is None else splits.tobytes(), call.count)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            plan = self._plans[key] = self._make(call, splits)
        return plan

    def _make(self, call: Call, splits: Array | None) -> Plan:
        op, reduce_op, root, dtype, _ = call.signature
        if reduce_op == ReduceOp.PREMUL_SUM:  # Inputs arrive multiplied.
            reduce_op = "sum"
        problem = Problem(
            _collective_of(call),
            len(self._devices),
            0 if splits is not None else call.count,
            root=root or 0,
            splits=None if splits is None else tuple(splits.ravel().tolist()),
            itemsize=as_dtype(dtype).itemsize,
        )
        choice = self.comm_library.choose(problem, self._devices)
        return Plan(choice, problem, self, None if op == "barrier" else reduce_op or "sum")

    def completions(self, plan: Plan, arrivals_ps: IntArray) -> IntArray:
        """Return when each rank ends; NOT_KNOWN where a missing rank decides."""
        return self.comm_library.cost.completions(
            plan.schedule, arrivals_ps, devices=self._devices, itemsize=plan.problem.itemsize
        )


class Plan:
    """One schedule on one group.

    Attributes:
        schedule: What the ranks run.
        problem: What it solves.
        synchronizing: Whether every rank's end depends on every rank's arrival.
        details: Facts for timelines and reports.
    """

    def __init__(
        self, choice: Choice, problem: Problem, planner: Planner, reduce_op: str | None
    ) -> None:
        self.schedule = choice.schedule
        self.problem = problem
        self._planner = planner
        self._reduce_op = reduce_op
        self.synchronizing = self.schedule.synchronizing
        elements = max(self.schedule.input.num_elements, self.schedule.output.num_elements)
        self.details = {
            "algorithm": choice.algorithm,
            "why": choice.reason,
            "bytes": elements * problem.itemsize,
            "dtype_bytes": problem.itemsize,
            "cost_level": choice.level,
        }

    def completions(self, arrivals_ps: IntArray) -> IntArray:
        """Return when each rank ends; NOT_KNOWN where a missing rank decides."""
        return self._planner.completions(self, arrivals_ps)

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
        for operation in operations:
            if operation is not None and operation.request.sources and _is_running(operation):
                operation.request.pack()
        self._move(operations, ending, snapshots)
        for operation in ending:
            if operation.request.targets:
                operation.request.unpack()

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
        if not all(_has_values(operation) for operation in operations):
            for operation in ending:
                operation.outputs.storage.lose_values()
            return
        if len(ending) == len(operations):
            inputs = [operation.request.values() for operation in ending]
            outputs = [operation.outputs.array.reshape(-1) for operation in ending]
        else:
            inputs, outputs = self._partial(operations, ending, snapshots)
        with np.errstate(over="ignore", invalid="ignore"):  # As on a device: inf and NaN.
            play_data(self.schedule, inputs, outputs=outputs, reduce_op=self._reduce_op)

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
