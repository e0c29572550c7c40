"""What a group runs for one collective: its algorithm and schedule, and its times."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

import numpy as np

from simrank.collectives import DataPlayer, Problem
from simrank.collectives.time_network import NOT_ARRIVED, NOT_KNOWN
from simrank.collectives.traffic import link_bytes, link_loads, memory_bytes
from simrank.device import as_dtype
from simrank.distributed.flight import Landing, landings
from simrank.distributed.leaks import Leaks
from simrank.distributed.link_sharing import Carried, Flow, LinkLoads
from simrank.distributed.mover import DataMover
from simrank.distributed.reduce_op import ReduceOp
from simrank.distributed.tuning import NO_WISHES, Wishes, tuning_of
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from simrank.collectives.choice import Choice, Chooser
    from simrank.collectives.cost import CostModel, Stretch
    from simrank.collectives.nccl.level import Tuning
    from simrank.collectives.schedule import IntArray, Schedule
    from simrank.device import Buffer, Network, Operation
    from simrank.device.races import RaceChecker
    from simrank.distributed.call import Call
    from simrank.distributed.flight import Flight
    from simrank.distributed.flight_recorder import FlightRecorder
    from simrank.distributed.group import ProcessGroup, World
    from simrank.distributed.p2p import End
    from simrank.distributed.request import Request, Signature
    from simrank.hardware.cluster import Cluster

Array = np.ndarray[Any, Any]
_MAX_FLIGHTS = 64  # Assumed: differences of arrivals that come again, of equal calls.
_MAX_PLANS = 64  # Assumed: distinct calls of one group.
_MAX_PLAYERS = 256  # Assumed: distinct calls of all groups of a program.

# Calls of other names and the collectives that they are made of.
MADE_OF = {
    "barrier": "all_reduce",
    "all_gather_object": "all_gather",
    "broadcast_object_list": "broadcast",
    "gather_object": "all_gather",  # Of sizes; the objects are gathered.
    "gather_object data": "gather",
    "scatter_object_list": "broadcast",
    "scatter_object_list data": "scatter",
}


def _collective_of(call: Call) -> str:
    op = call.signature.op
    return MADE_OF.get(op, op)


class FollowsCalls(Protocol):
    """What is told of calls, on the rank that makes them, before they are matched."""

    def collective(self, group: ProcessGroup, rank: int, request: Request) -> None:
        """A rank calls a collective."""

    def messages(self, group: ProcessGroup, ends: Sequence[End]) -> None:
        """A rank sends or receives."""


class RunsCollective(Protocol):
    """A kernel that runs in the place of the library's collective (C6).

    Attributes:
        name: What users call it.
    """

    name: str

    def launch_on(self, group: ProcessGroup, source: Buffer, target: Buffer) -> Operation:
        """Launch it on the running rank's current stream."""


class CollectiveLibrary:
    """What the collective library of one Context is: costs, choices, forced algorithms.

    Attributes:
        cost: The cost level in force.
        chooser: Picks algorithms.
        algorithms: Per collective the forced algorithm and its options; absent: "auto".
        kernels: Per collective the kernel that runs instead.
        num_sms: SMs that a collective occupies on each rank.
        leaks: Work that nobody has waited for.
        buffers_sends: Whether an nccl send up to the protocol's buffer ends without its receiver.
        makes_early: Whether groups have their communicators from the start.
        races: Who looks for races; None where that is off.
        follower: Told of the calls of each rank; None where nobody asked.
        recorder: Who keeps the last calls of each rank; None where nobody asked.
        worlds: The groups of each spawn that is alive, by its number.
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
        self.kernels: dict[str, RunsCollective] = {}
        self.num_sms = num_sms
        self.leaks = Leaks()
        self.buffers_sends = True
        self.makes_early = True
        self.races: RaceChecker | None = None
        self.recorder: FlightRecorder | None = None
        self.follower: FollowsCalls | None = None
        self.worlds: WeakValueDictionary[int, World] = WeakValueDictionary()
        self._players: OrderedDict[Schedule, DataPlayer] = OrderedDict()
        self._loads: OrderedDict[Hashable, Carried] = OrderedDict()
        self._ends: OrderedDict[Hashable, dict[tuple[int, bytes], _Ends]] = OrderedDict()
        self.on_call: Callable[[], None] | None = None

    def player(self, schedule: Schedule) -> DataPlayer:
        """Return what moves the data of a schedule; groups that run the same one share it."""
        player = self._players.get(schedule)
        if player is None:
            if len(self._players) >= _MAX_PLAYERS:
                self._players.popitem(last=False)
            player = self._players[schedule] = DataPlayer(schedule)
        return player

    def loads(
        self, schedule: Schedule, cluster: Cluster, devices: IntArray, itemsize: int
    ) -> Carried:
        """Return the links that a schedule uses and their bytes; groups alike share them."""
        key = (schedule, devices.tobytes(), itemsize)
        found = self._loads.get(key)
        if found is None:
            if len(self._loads) >= _MAX_PLAYERS:
                self._loads.popitem(last=False)
            links, num_bytes = link_loads(schedule, self.cost.network, devices, itemsize)
            bandwidths = cluster.link_bandwidth_bytes_per_s[links] / PS_PER_S
            found = self._loads[key] = Carried(links, num_bytes, bandwidths)
        return found

    def ends(
        self, schedule: Schedule, stretch: Stretch | None, devices: IntArray, itemsize: int
    ) -> dict[tuple[int, bytes], _Ends]:
        """Return the ends that are known while links are as described; groups alike share them."""
        key = (schedule, stretch, devices.tobytes(), itemsize)
        found = self._ends.get(key)
        if found is None:
            if len(self._ends) >= _MAX_PLAYERS:
                self._ends.popitem(last=False)
            found = self._ends[key] = {}
        return found

    def choose(self, problem: Problem, devices: IntArray, tuning: Tuning | None) -> Choice:
        """Return what a collective runs on these devices, and why."""
        name, options = self.algorithms.get(problem.collective, ("auto", {}))
        return self.chooser.choose(
            problem, devices=devices, algorithm=name, options=options, tuning=tuning
        )


class Planner:
    """Chooses and times the collectives of one group; equal calls share one plan.

    Attributes:
        may_have_wishes: Whether NCCL's variables may ask for something; known after the first call.
    """

    def __init__(self, library: CollectiveLibrary, network: Network, devices: IntArray) -> None:
        self.comm_library = library
        self._network = network
        self._devices = devices
        # What is known of one group holds for all that are alike.
        self._first_alike, self._nodes = network.cluster.first_alike(devices)
        self._plans: dict[Hashable, Plan] = {}
        self.may_have_wishes = True
        self._wishes: Wishes | None = None
        self._heeded: set[Hashable] = set()  # What can be called with them.

    def heed_wishes(self, signature: Signature) -> None:
        """Read NCCL's variables of the running rank, at the first call only, as NCCL does.

        Raises:
            ConfigError: They leave nothing that NCCL has for such a call.
        """
        if self._wishes is None:
            self._wishes = Wishes.of_environment()
        self.may_have_wishes = self._wishes is not NO_WISHES
        if not self.may_have_wishes:
            return
        key = op, reduce_op, dtype = signature.op, signature.reduce_op, signature.dtype
        if key not in self._heeded:
            smallest = Problem(MADE_OF.get(op, op), len(self._devices), 1, root=signature.root or 0)
            tuning = tuning_of(smallest.collective, dtype, reduce_op, self._wishes)
            self.comm_library.choose(smallest, self._first_alike, tuning)
            self._heeded.add(key)

    def plan(self, call: Call) -> Plan:
        """Return the plan of a call whose members have agreed on its signature."""
        splits = call.split_sizes(_collective_of(call))
        splits_key = None if splits is None else splits.tobytes()
        key = (call.signature, splits_key, call.count, call.on_device)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            plan = self._plans[key] = self._make(call, splits)
        return plan

    def _make(self, call: Call, splits: Array | None) -> Plan:
        op, reduce_op, root, dtype, _ = call.signature
        problem = Problem(
            _collective_of(call),
            len(self._devices),
            0 if splits is not None else call.count,
            root=root or 0,
            splits=None if splits is None else tuple(splits.ravel().tolist()),
            itemsize=as_dtype(dtype).itemsize,
        )
        tuning = None
        if call.on_device:
            tuning = tuning_of(problem.collective, dtype, reduce_op, self._wishes or NO_WISHES)
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

    def nominal_ends(
        self, schedule: Schedule, stretch: Stretch | None, itemsize: int
    ) -> dict[tuple[int, bytes], _Ends]:
        """Return the ends of such calls that are known, while links are as described."""
        return self.comm_library.ends(schedule, stretch, self._first_alike, itemsize)

    def loads(self, schedule: Schedule, itemsize: int) -> LinkLoads:
        """Return what a schedule does to the links."""
        cluster = self._network.cluster
        carried = self.comm_library.loads(schedule, cluster, self._first_alike, itemsize)
        links = cluster.links_on(self._nodes, carried.links)
        return LinkLoads(self._network, links, carried)

    def share_links(self, flight: Flight, plan: Plan, last_arrival_ps: int) -> None:
        """Let the bytes of a collective in flight share links with what else crosses them."""
        self._network.join(Flow(self._network, flight, plan, last_arrival_ps))

    def link_bytes(self, schedule: Schedule, itemsize: int) -> dict[int, int]:
        """Return the bytes that a schedule sends over each link."""
        return link_bytes(schedule, self.comm_library.cost.network, self._devices, itemsize)


class Plan:
    """What a collective of one group runs, and when its ranks end.

    Attributes:
        schedule: What the ranks run.
        mover: Moves its data.
        synchronizing: Whether every rank's end depends on every rank's arrival.
        details: Facts for timelines and reports.
        meets: Whether who sends waits until its receivers have called, as hosts do with gloo.
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
        self._nominal = planner.nominal_ends(choice.schedule, choice.stretch, problem.itemsize)
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

    @cached_property
    def loads(self) -> LinkLoads:
        """What it does to the links."""
        return self._planner.loads(self.schedule, self._itemsize)

    @cached_property
    def _messages(self) -> tuple[IntArray, IntArray]:
        """Who sends to whom."""
        pairs = [np.stack([each.src, each.dst]) for each in self.schedule.rounds()]
        src, dst = np.unique(np.concatenate(pairs, axis=1), axis=1)
        return src[src != dst], dst[src != dst]

    @cached_property
    def memory_bytes(self) -> int:
        """What it reads and writes in a device's memory; the mean over the ranks."""
        return memory_bytes(self.schedule, self._itemsize)

    def flow_ps(self, took_ps: int) -> int:
        """Return how long bytes flow, of what it takes from its last arrival to its last end."""
        stretch = self._stretch
        if stretch is None:
            return int(min(took_ps, self.loads.speed.alone_ps))
        return took_ps - stretch.latency_ps

    def share_links(self, flight: Flight, last_arrival_ps: int) -> None:
        """Let its bytes share links; see `link_sharing`."""
        self._planner.share_links(flight, self, last_arrival_ps)

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
        """Return when ranks end: it depends on differences of arrivals, and programs repeat."""
        version = self._planner.comm_library.cost.version
        key = (version, skew_ps.tobytes())
        ends = self._projected.get(key)
        if ends is None:
            if len(self._projected) >= _MAX_FLIGHTS:
                self._projected.clear()
            ends = self._projected[key] = self._project(key, skew_ps)
        return ends

    def _project(self, key: tuple[int, bytes], skew_ps: IntArray) -> _Ends:
        """Return when ranks end, as a group alike has found out before, or anew."""
        version = key[0]
        known = {} if version else self._nominal
        ends = known.get(key)
        if ends is None:
            if len(known) >= _MAX_FLIGHTS:
                known.clear()
            if version != self._stretch_version:
                self._stretch_as_links_are(version)
            after_ps = self._planner.completions(
                self.schedule, self._stretch, skew_ps, self._itemsize
            )
            ends = known[key] = _Ends(after_ps)
        return ends

    def _stretch_as_links_are(self, version: int) -> None:
        """Let bytes flow as much longer as their busiest link needs now; latency stays (C3)."""
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


class _Ends:
    """When the ranks of calls end, after the first arrival.

    Shapes: (n ranks)
        after_ps: [n]

    Attributes:
        after_ps: In picoseconds; NOT_KNOWN where a missing rank or a dropped link decides.
    """

    def __init__(self, after_ps: IntArray) -> None:
        self.after_ps = after_ps

    @cached_property
    def landings(self) -> tuple[Landing, ...]:
        """The ends that are known."""
        known = np.flatnonzero(self.after_ps < NOT_KNOWN)
        return landings(self.after_ps[known], known)
