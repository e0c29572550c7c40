"""The collective library of one Context: costs, choices, and the state of all groups.

Recorders and followers of calls are reached through protocols: they live above.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from simrank.collectives import DataPlayer, Problem
from simrank.collectives.traffic import link_loads
from simrank.distributed.flight import Carried
from simrank.distributed.leaks import Leaks
from simrank.units import PS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from simrank.collectives.choice import Choice, Chooser
    from simrank.collectives.cost import CostModel, Stretch
    from simrank.collectives.nccl.cost_level import Tuning
    from simrank.collectives.schedule import IntArray, Schedule
    from simrank.device import Buffer, Operation
    from simrank.device.races import RaceChecker
    from simrank.distributed.group import ProcessGroup, World
    from simrank.distributed.request import Request
    from simrank.engine import TaskGroup
    from simrank.hardware.cluster import Cluster


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


class FollowsCalls(Protocol):
    """Follows the calls of each rank before they are matched."""

    def collective(self, group: ProcessGroup, rank: int, request: Request) -> None:
        """A rank calls a collective."""

    def messages(self, group: ProcessGroup, ends: Sequence[Any]) -> None:
        """A rank sends or receives; `ends` are of `p2p.End`."""


class RecordedCall(Protocol):
    """The record of one call."""

    def issued(self, operation: Operation) -> None:
        """Follow the operation that the call has become."""


class RecordsCalls(Protocol):
    """Keeps the last calls of each rank; see `flight_recorder.FlightRecorder`."""

    def begin(self, world: World) -> None:
        """Prepare for the groups of a spawn."""

    def follow(self, ranks: TaskGroup) -> None:
        """See the ranks of a spawn before they are ended because one has failed."""

    def collective(
        self, group: ProcessGroup, rank: int, backend: str, request: Request
    ) -> RecordedCall:
        """Record a collective of a rank."""

    def messages(
        self, group: ProcessGroup, rank: int, backend: str, ends: Sequence[Any]
    ) -> Sequence[RecordedCall]:
        """Record messages of a rank; `ends` are of `p2p.End`."""


class RunsCollective(Protocol):
    """A kernel that runs in the place of the library's collective (C6).

    Attributes:
        name: What users call it.
    """

    name: str

    def launch_on(self, group: ProcessGroup, source: Buffer, target: Buffer) -> Operation:
        """Launch it on the running rank's current stream."""


class CollectiveLibrary:
    """The collective library of one Context: costs, choices, forced algorithms.

    Attributes:
        cost: The cost level in force.
        chooser: Picks algorithms.
        algorithms: Per collective the forced algorithm and its options; absent: "auto".
        kernels: Per collective the kernel that runs instead.
        num_sms: SMs that a collective occupies on each rank.
        leaks: Work that was not waited for.
        buffers_sends: Whether an nccl send up to the protocol's buffer ends without its receiver.
        makes_early: Whether groups have their communicators from the start.
        races: The race checker; None where that is off.
        follower: Notified of the calls of each rank; None without one.
        recorder: The recorder of each rank's last calls; None without one.
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
        self.recorder: RecordsCalls | None = None
        self.follower: FollowsCalls | None = None
        self.worlds: WeakValueDictionary[int, World] = WeakValueDictionary()
        self._players: OrderedDict[Schedule, DataPlayer] = OrderedDict()
        self._loads: OrderedDict[Hashable, Carried] = OrderedDict()
        self._ends: OrderedDict[Hashable, dict[tuple[int, bytes], Any]] = OrderedDict()
        self.on_call: Callable[[], None] | None = None

    def player(self, schedule: Schedule) -> DataPlayer:
        """Return the data player of a schedule; groups with equal schedules share it."""
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
        self, schedule: Schedule, stretch: Stretch | None, alike: Hashable, itemsize: int
    ) -> dict[tuple[int, bytes], Any]:
        """Return the ends that are known while links are as described; groups alike share them."""
        key = (schedule, stretch, alike, itemsize)
        found = self._ends.get(key)
        if found is None:
            if len(self._ends) >= _MAX_PLAYERS:
                self._ends.popitem(last=False)
            found = self._ends[key] = {}
        return found

    def choose(self, problem: Problem, devices: IntArray, tuning: Tuning | None) -> Choice:
        """Return the algorithm of a collective on these devices, and the reason."""
        name, options = self.algorithms.get(problem.collective, ("auto", {}))
        return self.chooser.choose(
            problem, devices=devices, algorithm=name, options=options, tuning=tuning
        )
