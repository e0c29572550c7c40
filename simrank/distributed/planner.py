"""Plans of collectives: algorithm, schedule and times of one call of a group."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.collectives import DataPlayer, Problem
from simrank.collectives.nccl.cost_level import ANY, NO_SWITCH, Tuning
from simrank.collectives.nccl.environment import parse_algorithms, parse_protocols
from simrank.collectives.nccl.tuner import nvls_reduces
from simrank.collectives.problem import COPYING, GATHERED
from simrank.collectives.time_network import NOT_ARRIVED, NOT_KNOWN
from simrank.collectives.traffic import link_bytes, memory_bytes
from simrank.device.dtypes import DTYPES
from simrank.device.memory import give_values
from simrank.distributed.flight import Carried, Flow, Landing, LinkLoads, landings
from simrank.distributed.group import NO_MEMBERS
from simrank.distributed.library import MADE_OF, CollectiveLibrary
from simrank.distributed.request import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from simrank.collectives.choice import Choice
    from simrank.collectives.cost import Stretch
    from simrank.collectives.schedule import IntArray, Schedule
    from simrank.config.tuner import TunerRow
    from simrank.device import Buffer, Network
    from simrank.distributed.call import Call, CollectiveOperation
    from simrank.distributed.flight import Flight
    from simrank.distributed.group import ProcessGroup
    from simrank.distributed.request import Signature

Array = np.ndarray[Any, Any]
_MAX_FLIGHTS = 64  # Assumed: differences of arrivals that come again, of equal calls.
_MAX_PLANS = 64  # Assumed: distinct calls of one group.


class Planner:
    """Chooses and times the collectives of one group; equal calls share one plan.

    Attributes:
        network: The links.
        represented: The members that do not run, by their representatives.
        alike: What is equal for groups whose calls end alike.
        may_have_overrides: Whether NCCL's variables may be set; known after the first call.
    """

    def __init__(
        self,
        library: CollectiveLibrary,
        network: Network,
        devices: IntArray,
        replicas: Sequence[IntArray] = (),
        represented: Mapping[int, tuple[int, ...]] = NO_MEMBERS,
    ) -> None:
        self.comm_library = library
        self._replicas = replicas
        self.represented = tuple(represented.items())
        self.network = network
        self._devices = devices
        # What is known of one group holds for all that are alike.
        self._first_alike, self._nodes = network.cluster.first_alike(devices)
        self.alike = self._first_alike.tobytes(), self.represented
        self._plans: dict[Hashable, Plan] = {}
        self.may_have_overrides = True
        self._overrides: NcclOverrides | None = None
        self._heeded: set[Hashable] = set()  # What can be called with them.

    def read_overrides(self, signature: Signature) -> None:
        """Read NCCL's variables of the running rank, at the first call only, as NCCL does.

        Raises:
            ConfigError: They leave nothing that NCCL has for such a call.
        """
        if self._overrides is None:
            self._overrides = NcclOverrides.of_environment()
        self.may_have_overrides = self._overrides is not NO_OVERRIDES
        if not self.may_have_overrides:
            return
        key = op, reduce_op, dtype = signature.op, signature.reduce_op, signature.dtype
        if key not in self._heeded:
            smallest = Problem(MADE_OF.get(op, op), len(self._devices), 1, root=signature.root or 0)
            tuning = tuning_of(smallest.collective, dtype, reduce_op, self._overrides)
            self.comm_library.choose(smallest, self._first_alike, tuning)
            self._heeded.add(key)

    def plan(self, call: Call) -> Plan:
        """Return the plan of a call whose members have agreed on its signature."""
        op = call.signature.op
        splits = None if call.splits is None else call.split_sizes(MADE_OF.get(op, op))
        splits_key = None if splits is None else splits.tobytes()
        key = (call.signature, splits_key, call.count, call.on_device)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            plan = self._plans[key] = self._make(call, splits)
        return plan

    def _make(self, call: Call, splits: Array | None) -> Plan:
        op, reduce_op, root, dtype, *_ = call.signature
        problem = Problem(
            MADE_OF.get(op, op),
            len(self._devices),
            0 if splits is not None else call.count,
            root=root or 0,
            splits=None if splits is None else tuple(splits.ravel().tolist()),
            itemsize=DTYPES[dtype].itemsize,
        )
        tuning = None
        if call.on_device:
            tuning = tuning_of(
                problem.collective, dtype, reduce_op, self._overrides or NO_OVERRIDES
            )
        choice = self.comm_library.choose(problem, self._first_alike, tuning)
        if reduce_op == ReduceOp.PREMUL_SUM:  # Inputs arrive multiplied.
            reduce_op = "sum"
        reduction = None if op == "barrier" else reduce_op or "sum"
        return Plan(choice, problem, self, reduction, meets=not call.on_device)

    def completions(
        self, schedule: Schedule, stretch: Stretch | None, arrivals_ps: IntArray, itemsize: int
    ) -> IntArray:
        """Return when each rank ends; NOT_KNOWN where a missing rank decides."""
        cost = self.comm_library.cost
        devices = self._devices if cost.version else self._first_alike  # Some links are slow now.
        if stretch is None:
            return cost.completions(schedule, arrivals_ps, devices=devices, itemsize=itemsize)
        return stretch.completions(cost, schedule, arrivals_ps, devices=devices, itemsize=itemsize)

    def folded(self, ends_ps: IntArray) -> IntArray:
        """Return ends where representatives end with the last that they represent."""
        folded_ps = ends_ps.copy()
        for rank, others in self.represented:
            folded_ps[rank] = max(ends_ps[rank], ends_ps[list(others)].max())
        return folded_ps

    @property
    def has_replicas(self) -> bool:
        """Whether replicas of the group do the same and do not run."""
        return bool(self._replicas)

    def loads(self, schedule: Schedule, itemsize: int) -> LinkLoads:
        """Return the loads of a schedule on the links."""
        links, carried = self._carried(schedule, itemsize, self._first_alike, self._nodes)
        if not self._replicas:
            return LinkLoads(self.network, links, carried)
        totals = np.zeros(self.network.cluster.num_links, dtype=np.int64)
        np.add.at(totals, links, carried.num_bytes)
        for devices in self._replicas:
            first_alike, nodes = self.network.cluster.first_alike(devices)
            theirs, others = self._carried(schedule, itemsize, first_alike, nodes)
            np.add.at(totals, theirs, others.num_bytes)
        times = totals[links] / np.maximum(carried.num_bytes, 1)
        return LinkLoads(self.network, links, carried, np.maximum(times, 1.0))

    def _carried(
        self, schedule: Schedule, itemsize: int, first_alike: IntArray, nodes: IntArray
    ) -> tuple[IntArray, Carried]:
        """Return the links of devices that a schedule uses, and what they carry."""
        cluster = self.network.cluster
        carried = self.comm_library.loads(schedule, cluster, first_alike, itemsize)
        return cluster.links_on(nodes, carried.links), carried

    def link_bytes(self, schedule: Schedule, itemsize: int) -> dict[int, int]:
        """Return the bytes that a schedule sends over each link."""
        return link_bytes(schedule, self.comm_library.cost.network, self._devices, itemsize)


def planner_of(group: ProcessGroup) -> Planner:
    """Return the planner of a group, rebuilt after a member has moved to another device."""
    planner: Planner | None = group.planner
    if planner is None:
        world = group.world
        replicas: list[IntArray] = []
        if world.folding is not None:
            replicas = [world.devices[ranks] for ranks in world.folding.replicas(group.ranks)]
        planner = Planner(
            world.comm_library, world.network, group.devices, replicas, group.represented
        )
        group.planner = planner
    return planner


class Plan:
    """The schedule of a collective of one group, and the ends of its ranks.

    Attributes:
        schedule: What the ranks run.
        mover: Moves its data.
        synchronizing: Whether every rank's end depends on every rank's arrival.
        details: Facts for timelines and reports.
        meets: Whether the sender waits until its receivers have called, as hosts do with gloo.
    """

    def __init__(
        self,
        choice: Choice,
        problem: Problem,
        planner: Planner,
        reduce_op: str | None,
        *,
        meets: bool,
    ) -> None:
        self.schedule = choice.schedule
        player = planner.comm_library.player(choice.schedule)
        self.mover = DataMover(player, choice.schedule, problem, reduce_op)
        self.synchronizing = self.schedule.synchronizing
        self.meets = meets
        self._choice = choice
        self._planner = planner
        self._itemsize = problem.itemsize
        self._stretch, self._stretch_version = choice.stretch, 0
        self._nominal = planner.comm_library.ends(
            choice.schedule, choice.stretch, planner.alike, problem.itemsize
        )
        self._projected: dict[tuple[int, bytes], _Ends] = {}
        self._together: dict[int, tuple[Landing, ...]] = {}  # Of ranks that come so.
        elements = max(self.schedule.input.num_elements, self.schedule.output.num_elements)
        self.details = {
            "algorithm": choice.algorithm,
            "protocol": choice.protocol,
            "why": choice.reason,
            "bytes": elements * problem.itemsize,
            "dtype_bytes": problem.itemsize,
            "cost_level": choice.level,
        }

    @cached_property
    def link_bytes(self) -> dict[int, int]:
        """The bytes that cross each link."""
        return self._planner.link_bytes(self.schedule, self._itemsize)

    @property
    def is_crowded(self) -> bool:
        """Whether replicas that do not run share its links."""
        return self._planner.has_replicas and self.loads.is_crowded

    @cached_property
    def loads(self) -> LinkLoads:
        """Its loads on the links."""
        return self._planner.loads(self.schedule, self._itemsize)

    @cached_property
    def _messages(self) -> tuple[IntArray, IntArray]:
        """Sources and targets of all messages."""
        pairs = [np.stack([each.src, each.dst]) for each in self.schedule.rounds()]
        src, dst = np.unique(np.concatenate(pairs, axis=1), axis=1)
        return src[src != dst], dst[src != dst]

    @cached_property
    def memory_bytes(self) -> int:
        """Bytes that it reads and writes in a device's memory; the mean over the ranks."""
        return memory_bytes(self.schedule, self._itemsize)

    def flow_ps(self, took_ps: int) -> int:
        """Return the time of bytes on links, within the last arrival and the last end."""
        stretch = self._stretch
        if stretch is None:
            return int(min(took_ps, self.loads.speed.alone_ps))
        return took_ps - stretch.latency_ps

    def share_links(self, flight: Flight, last_arrival_ps: int) -> None:
        """Share its links with other transfers; see `flight.Flow`."""
        network = self._planner.network
        network.join(Flow(network, flight, self, last_arrival_ps))

    def completions(self, arrivals_ps: IntArray) -> IntArray:
        """Return when each rank ends; NOT_KNOWN where a missing rank decides."""
        begin_ps = int(arrivals_ps.min())
        skew_ps = np.where(arrivals_ps < NOT_ARRIVED, arrivals_ps - begin_ps, NOT_ARRIVED)
        ends_ps = self._ends(skew_ps).after_ps
        if self.meets:
            senders, receivers = self._messages
            ends_ps = ends_ps.copy()
            ends_ps[senders[skew_ps[receivers] == NOT_ARRIVED]] = NOT_KNOWN
        return np.where(ends_ps < NOT_KNOWN, ends_ps + begin_ps, NOT_KNOWN)

    def flight(self, arrivals_ps: Sequence[int]) -> tuple[int, tuple[Landing, ...]]:
        """Return the first arrival, and when the ranks end after it; all have arrived.

        Ranks that will never end (a link was dropped) are left out.
        """
        begin_ps = min(arrivals_ps)
        version = self._planner.comm_library.cost.version
        known = self._together.get(version)
        if known is not None and arrivals_ps.count(begin_ps) == len(arrivals_ps):
            return begin_ps, known
        skew_ps = np.array(arrivals_ps, dtype=np.int64) - begin_ps
        ahead = self._ends(skew_ps).landings
        if not skew_ps.any():
            self._together = {version: ahead}
        return begin_ps, ahead

    def _ends(self, skew_ps: IntArray) -> _Ends:
        """Return when ranks end: it depends on differences of arrivals, and programs repeat.

        Ends at nominal speed are shared with equal groups, others are this plan's own.
        """
        planner = self._planner
        version = planner.comm_library.cost.version
        known = self._projected if version else self._nominal
        key = (version, skew_ps.tobytes())
        ends = known.get(key)
        if ends is None:
            if len(known) >= _MAX_FLIGHTS:
                known.clear()
            if version != self._stretch_version:
                self._stretch_as_links_are(version)
            own_ps = planner.completions(self.schedule, self._stretch, skew_ps, self._itemsize)
            ends_ps = planner.folded(own_ps) if planner.represented else own_ps
            ends = known[key] = _Ends(ends_ps, own_ps)
        return ends

    def own_ends(self, arrivals_ps: Sequence[int]) -> IntArray:
        """Return the end of each member by itself, also of representatives."""
        begin_ps = min(arrivals_ps)
        skew_ps: IntArray = np.array(arrivals_ps, dtype=np.int64) - begin_ps
        return self._ends(skew_ps).own_ps + begin_ps

    def _stretch_as_links_are(self, version: int) -> None:
        """Stretch the flow of bytes to the busiest link's present bandwidth; keep latency (C3)."""
        self._stretch_version = version
        nominal = self._choice.stretch
        if nominal is None:
            return
        together = np.zeros(self.schedule.world_size, dtype=np.int64)
        ends_ps = self._planner.completions(self.schedule, None, together, self._itemsize)
        played_ps = int(ends_ps[ends_ps < NOT_KNOWN].max(initial=0)) or nominal.played_ps
        flow_ps = (nominal.duration_ps - nominal.latency_ps) * self.loads.slowdown
        duration_ps = nominal.latency_ps + round(flow_ps)
        self._stretch = replace(nominal, duration_ps=duration_ps, played_ps=played_ps)


@dataclass(eq=False)
class _Ends:
    """When the ranks of calls end, after the first arrival.

    Shapes: (n ranks)
        after_ps: [n]

    Attributes:
        after_ps: In picoseconds; NOT_KNOWN where a missing rank or a dropped link decides.
        own_ps: The same without folding.
    """

    after_ps: IntArray
    own_ps: IntArray

    @cached_property
    def landings(self) -> tuple[Landing, ...]:
        """The ends that are known."""
        known = np.flatnonzero(self.after_ps < NOT_KNOWN)
        return landings(self.after_ps[known], known)


# ---- Moves the data of one collective ----

Values = np.ndarray[Any, Any]


@dataclass(eq=False)
class DataMover:
    """Moves the data of equal collectives of one group; what their schedule decides is kept.

    Attributes:
        player: Moves the data of all ranks.
        schedule: What the ranks run.
        problem: What it solves.
        reduce_op: How elements are combined; None: nothing moves (a barrier).
    """

    player: DataPlayer
    schedule: Schedule
    problem: Problem
    reduce_op: str | None

    def move(
        self,
        operations: Sequence[CollectiveOperation | None],
        ending: Sequence[CollectiveOperation],
        snapshots: dict[int, Values],
    ) -> None:
        """Write the outputs of the ranks that end now.

        Args:
            operations: By group rank; None where a rank has not called.
            ending: Those that end now.
            snapshots: Inputs of ranks that ended before: a sender that finished early may have
                reused its buffer since. The inputs of `ending` are added if others still run.
        """
        if self.reduce_op is None:
            return
        for operation in dict.fromkeys(
            o for o in operations if o is not None and o.request.sources
        ):
            if _is_running(operation):
                operation.request.pack()
        self._move(operations, ending, snapshots)
        for request in [o.request for o in ending if o.request.targets]:
            request.unpack()

    def _move(
        self,
        operations: Sequence[CollectiveOperation | None],
        ending: Sequence[CollectiveOperation],
        snapshots: dict[int, Values],
    ) -> None:
        if self.problem.collective in GATHERED:
            gathered = _gather if self.problem.collective == "gather" else _scatter
            gathered(operations, ending, snapshots, root=self.problem.root)
            return
        assert self.reduce_op is not None, "a barrier moves nothing"
        if len(ending) < len(operations) and self._move_unplayed(operations, ending, snapshots):
            return
        if not all(map(_has_values, operations)):
            if len(ending) == len(operations) and self._move_partly(ending):
                return
            for operation in ending:
                give_values(operation.outputs, None)
            return
        if len(ending) == len(operations):
            inputs = [operation.request.values() for operation in ending]
        else:
            inputs = self._partial(operations, ending, snapshots)
            if self.problem.collective in COPYING:
                self._copy(inputs, ending)
                return
        written = {o.group_rank: o.request.target.array.reshape(-1) for o in ending}
        # The players write outputs after all reads, so that one array does for all ranks whose
        # output is not used.
        unused = np.empty(self.schedule.output.num_elements, inputs[0].dtype)
        outputs = [written.get(rank, unused) for rank in range(len(inputs))]
        self.player.play(inputs, outputs=outputs, reduce_op=self.reduce_op)

    def _copy(self, inputs: Sequence[Values], ending: Sequence[CollectiveOperation]) -> None:
        """Write to the ranks that end now their part of each rank's input.

        Nothing is reduced, so that the result does not depend on the schedule, and ranks that do
        not run cost no step of it.
        """
        for operation in ending:
            rank, at = operation.group_rank, 0
            out = operation.request.target.array.reshape(-1)
            for values, start, size in zip(inputs, *self._parts(rank), strict=True):
                part = values[start : start + size]
                out[at : at + len(part)] = part
                at += size

    def _parts(self, rank: int) -> tuple[list[int], list[int]]:
        """Return the first element and the size of a member's part of each rank's input."""
        num_ranks = self.problem.world_size
        if self.problem.collective == "all_gather":
            sizes = self.problem.splits or (self.problem.count,) * num_ranks
            return [0] * num_ranks, list(sizes)
        sends = self._sends
        if sends is None:
            return [rank * self.problem.count] * num_ranks, [self.problem.count] * num_ranks
        starts: list[int] = sends[:, :rank].sum(axis=1).tolist()
        return starts, sends[:, rank].tolist()

    @cached_property
    def _sends(self) -> IntArray | None:
        """The split sizes of an exchange, by sender and receiver; None: they are even."""
        splits, num_ranks = self.problem.splits, self.problem.world_size
        return None if splits is None else np.reshape(splits, (num_ranks, num_ranks))

    def _move_partly(self, ending: Sequence[CollectiveOperation]) -> bool:
        """Move what some elements have no values of, or return False: it is all unknown.

        The elements of a result are unknown that depend on one that is: the same schedule tells
        which, played on flags.
        """
        flags = [o.inputs.storage.unknown_elements(o.inputs.array) for o in ending]
        known_flags = [flag for flag in flags if flag is not None]
        if len(known_flags) < len(flags) or all(flag.all() for flag in known_flags):
            return False
        unknown = [np.zeros(o.outputs.numel(), np.uint8) for o in ending]
        self.player.play(known_flags, outputs=unknown, reduce_op="max")
        if not all(o.outputs.storage.regain(o.outputs.array) for o in ending):
            return False
        inputs = [operation.request.values() for operation in ending]
        outputs = [operation.request.target.array.reshape(-1) for operation in ending]
        self.player.play(inputs, outputs=outputs, reduce_op=self.reduce_op or "sum")
        for operation, which in zip(ending, unknown, strict=True):
            operation.outputs.storage.lose_elements(operation.outputs.array, which)
        return True

    def _move_unplayed(
        self,
        operations: Sequence[CollectiveOperation | None],
        ending: Sequence[CollectiveOperation],
        snapshots: dict[int, Values],
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
            assert source is not None, "no rank ends a broadcast before its root arrives"
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
        snapshots: dict[int, Values],
    ) -> list[Values]:
        """Return the inputs of all ranks, where only those of `ending` end.

        Ranks that have not arrived contribute zeros, which by causality reach no rank that ends
        now.
        """
        dtype = ending[0].inputs.array.dtype
        by_rank = {operation.group_rank: operation for operation in ending}
        for rank, live in by_rank.items():
            snapshots[rank] = live.request.values().copy()
        zeros = np.zeros(self.schedule.input.num_elements, dtype)
        inputs = []
        for rank, operation in enumerate(operations):
            if rank in snapshots:
                inputs.append(snapshots[rank])
            elif (
                operation is not None and operation.group_rank in snapshots
            ):  # Its representative's.
                inputs.append(snapshots[operation.group_rank])
            elif operation is not None and operation.start_ps >= 0:
                inputs.append(operation.request.values())
            else:
                inputs.append(zeros)
        return inputs


def _knows(buffer: Buffer) -> bool:
    return buffer.storage.knows(buffer.array)


def _has_values(operation: CollectiveOperation | None) -> bool:
    if operation is None:
        return True
    inputs, outputs = operation.inputs, operation.outputs
    return inputs.storage.knows(inputs.array) and outputs.storage.regain(outputs.array)


def _copy_root(
    source: CollectiveOperation,
    ending: Sequence[CollectiveOperation],
    snapshots: dict[int, Values],
) -> None:
    """Write the root's values to the ranks that end now; keep them if the root does."""
    values = snapshots.get(source.group_rank)
    if values is None and _knows(source.inputs):
        values = source.inputs.array.reshape(-1)
        if source in ending:
            values = snapshots[source.group_rank] = values.copy()
    for operation in ending:
        give_values(operation.outputs, values)


def _is_running(operation: CollectiveOperation) -> bool:
    return operation.start_ps >= 0 and not operation.complete


def _gather(
    operations: Sequence[CollectiveOperation | None],
    ending: Sequence[CollectiveOperation],
    snapshots: dict[int, Values],
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
            known = _knows(live_operation.inputs)
            parts.append(live_operation.request.values() if known else None)
    known_parts = [part for part in parts if part is not None]
    is_whole = len(known_parts) == len(parts)
    give_values(target.outputs, np.concatenate(known_parts) if is_whole else None)


def _scatter(
    operations: Sequence[CollectiveOperation | None],
    ending: Sequence[CollectiveOperation],
    snapshots: dict[int, Values],
    *,
    root: int,
) -> None:
    """Write its part to each rank that ends now; keep the root's values if the root does."""
    source = operations[root]
    assert source is not None, "no rank ends a scatter before its root arrives"
    values = snapshots.get(root)
    if values is None and _knows(source.inputs):
        values = source.request.values()
        if source in ending:
            values = snapshots[root] = values.copy()
    for operation in ending:
        size = operation.outputs.numel()
        start = operation.group_rank * size
        give_values(operation.outputs, None if values is None else values[start : start + size])


# ---- What is left for NCCL to choose from: by the reduction, and by NCCL's variables ----
# A communicator reads the variables of the process that makes it: here those of the rank whose
# call is timed first. Source: NVIDIA/nccl v2.30.7, the user guide's environment variables.

ALGORITHMS, PROTOCOLS, TUNER_FILE = "NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_CONFIG_FILE"
NCCL_VARIABLES = (ALGORITHMS, PROTOCOLS, TUNER_FILE)


class NcclOverrides(NamedTuple):
    """Values of the variables that choose; None where one is not set.

    Attributes:
        algorithms: NCCL_ALGO.
        protocols: NCCL_PROTO.
        tuner_file: NCCL_TUNER_CONFIG_FILE.
    """

    algorithms: str | None
    protocols: str | None
    tuner_file: str | None

    @classmethod
    def of_environment(cls) -> NcclOverrides:
        """Return the overrides of the running rank: `NO_OVERRIDES` if no variable has a value."""
        found = cls(*(os.environ.get(name) or None for name in NCCL_VARIABLES))
        return NO_OVERRIDES if found == NO_OVERRIDES else found


NO_OVERRIDES = NcclOverrides(None, None, None)


def tuning_of(
    collective: str, dtype: str, reduce_op: str | None, overrides: NcclOverrides = NO_OVERRIDES
) -> Tuning:
    """Return the algorithms and protocols that NCCL may choose from for a call.

    Args:
        collective: For example all_reduce.
        dtype: torch's name of the dtype.
        reduce_op: How elements are combined: not every reduction fits into a switch. None: nothing
            is reduced.
        overrides: What the user asks for.

    Raises:
        ConfigError: A variable's value is none of NCCL's, or the tuner's file is wrong.
    """
    base = ANY if reduce_op is None or nvls_reduces(dtype, reduce_op) else NO_SWITCH
    if overrides == NO_OVERRIDES:
        return base
    algorithms = base.algorithms
    named = overrides.algorithms and parse_algorithms(overrides.algorithms, collective)
    protocols = overrides.protocols and parse_protocols(overrides.protocols, collective)
    if named:
        algorithms = named if algorithms is None else named & algorithms
    rows = () if overrides.tuner_file is None else _tuner_rows(overrides.tuner_file)
    return Tuning(algorithms, protocols or None, rows)


@lru_cache(maxsize=8)
def _tuner_rows(path: str) -> tuple[TunerRow, ...]:
    from simrank.config.tuner import load_tuner  # noqa: PLC0415 - it is slow to import

    return load_tuner(path)
