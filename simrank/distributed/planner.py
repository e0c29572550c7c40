"""What a group does for one collective: its algorithm and schedule, its times and its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.collectives import Problem, play_data
from simrank.device import as_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simrank.collectives.choice import Choice, Chooser
    from simrank.collectives.cost import CostModel
    from simrank.collectives.schedule import IntArray
    from simrank.distributed.call import Call, CollectiveOperation

Array = np.ndarray[Any, Any]
_MAX_PLANS = 64


class CollectiveLibrary:
    """What the collective library of one Context is: costs, choices, forced algorithms.

    Attributes:
        cost: The cost level in force.
        chooser: Picks algorithms.
        algorithms: Per collective the forced algorithm and its options; absent: "auto".
        num_sms: SMs that a collective occupies on each rank.
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

    def choose(self, problem: Problem, devices: IntArray) -> Choice:
        """Return what a collective runs on these devices, and why."""
        name, options = self.algorithms.get(problem.collective, ("auto", {}))
        return self.chooser.choose(problem, devices=devices, algorithm=name, options=options)


class Planner:
    """Chooses and times the collectives of one group; equal calls share one plan."""

    def __init__(self, library: CollectiveLibrary, devices: IntArray) -> None:
        self.library = library
        self._devices = devices
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def plan(self, call: Call) -> Plan:
        """Return the plan of a call whose members have agreed on its signature."""
        splits = call.split_matrix()
        key = (call.signature, None if splits is None else splits.tobytes(), call.count)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            plan = self._plans[key] = self._make(call, splits)
        return plan

    def _make(self, call: Call, splits: Array | None) -> Plan:
        op, reduce_op, root, dtype, _ = call.signature
        problem = Problem(
            "all_reduce" if op == "barrier" else op,
            len(self._devices),
            0 if splits is not None else call.count,
            root=root or 0,
            splits=None if splits is None else tuple(splits.ravel().tolist()),
            itemsize=as_dtype(dtype).itemsize,
        )
        choice = self.library.choose(problem, self._devices)
        return Plan(choice, problem, self, None if op == "barrier" else reduce_op or "sum")

    def completions(self, plan: Plan, arrivals_ps: IntArray) -> IntArray:
        """Return when each rank ends; NOT_KNOWN where a missing rank decides."""
        return self.library.cost.completions(
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
        if len(ending) < len(operations) and self._move_unplayed(operations, ending, snapshots):
            return
        if not all(_has_values(operation) for operation in operations):
            for operation in ending:
                operation.outputs.storage.lose_values()
            return
        if len(ending) == len(operations):
            inputs = [operation.inputs.array.reshape(-1) for operation in ending]
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
                snapshots[operation.group_rank] = operation.inputs.array.reshape(-1).copy()
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
                snapshots[rank] = live.inputs.array.reshape(-1).copy()
                inputs.append(snapshots[rank])
                outputs.append(live.outputs.array.reshape(-1))
                continue
            if rank in snapshots:
                inputs.append(snapshots[rank])
            elif operation is not None and operation.start_ps >= 0:
                inputs.append(operation.inputs.array.reshape(-1))
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
