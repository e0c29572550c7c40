"""Injected faults: killed and slow ranks, late calls, dropped and slow links.

`Faults` holds them for one Context. What each is, and how it is written, is in `config.faults`.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from simrank.collectives.cost import CostModel, cost_level
from simrank.collectives.time_network import NOT_KNOWN
from simrank.config.faults import (
    Deactivate,
    DelayArrivals,
    DropLink,
    Fault,
    FaultList,
    Kill,
    PortConflict,
    Slow,
    SlowLink,
    describe,
    load_faults,
)
from simrank.config.model import in_file_order
from simrank.config.yaml_source import Source
from simrank.distributed.active_members import roster_of
from simrank.engine import NamedWait
from simrank.engine.report import doing_text
from simrank.errors import ConfigError
from simrank.multiprocessing.processes import end_by_signal
from simrank.ranks import require_rank
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from simrank.collectives.schedule import IntArray, Schedule
    from simrank.collectives.time_network import Interconnect
    from simrank.config.faults import FaultsRef
    from simrank.device import Network
    from simrank.device.device import Device
    from simrank.distributed.library import CollectiveLibrary
    from simrank.engine import Engine, Task
    from simrank.hardware.cluster import Cluster

# Assumed: no collective takes 17 s longer than on a link that works, and half a million of its
# steps over a dropped link still fit into 64 bits.
_FAR_PS = 1 << 44


class _Ends(NamedTuple):
    """One direction of a link, by its ends; None is the node of a link between nodes."""

    tail: str
    head: str
    node: int | None


class _Levels(NamedTuple):
    """The cost level, and one where dropped links never arrive; None if none is dropped."""

    works: CostModel
    far: CostModel | None


class DevicesByIndex(Protocol):
    """The devices of a cluster, each made when it is first used."""

    def __len__(self) -> int:
        """Return the number of entries."""

    def __getitem__(self, index: int) -> Device:
        """Return a device."""


class Faults:
    """The faults of one Context, and what has become of them.

    Args:
        faults: What `simrank.config.faults.load_faults` takes.
        engine: The engine.
        network: Its links.
        comm_library: Where its collectives are counted and timed.
        devices: Its devices, by index.

    Raises:
        ConfigError: A fault is wrong, or names a rank or link that the cluster has not.
    """

    def __init__(
        self,
        faults: FaultsRef,
        engine: Engine,
        network: Network,
        comm_library: CollectiveLibrary,
        devices: DevicesByIndex,
    ) -> None:
        self._engine = engine
        self._network = network
        self._devices = devices
        self._listed = load_faults(faults)
        self._unseen = dict(enumerate(self._listed))
        self._worlds = comm_library.worlds
        self._struck: set[tuple[int, int]] = set()
        self._calls: list[tuple[int, Kill | Deactivate | DelayArrivals]] = []
        self._conflicts: list[tuple[int, PortConflict]] = []
        self._num_conflicts: dict[tuple[int, int], int] = {}
        self._generators: dict[tuple[int, int], np.random.Generator] = {}
        self._links = _FaultyLinks(network.cluster)
        check_faults(self._listed, network.cluster)
        for index, fault in enumerate(self._listed):
            self._plan(index, fault)
        if self._calls:
            comm_library.on_call = self._called
        if any(isinstance(fault, DropLink | SlowLink) for fault in self._listed):
            comm_library.cost = self._links

    def unseen(self) -> Iterator[str]:
        """Yield the faults that have not happened."""
        for fault in self._unseen.values():
            yield f"fault {describe(fault)} has not happened"

    def _plan(self, index: int, fault: Fault) -> None:
        """Queue what happens at a time; what happens at a call is looked up there."""
        match fault:
            case Kill(at_ps=at_ps) if at_ps is not None:
                self._engine.call_at(
                    max(at_ps, self._engine.now_ps),
                    lambda: self._kill(index, fault.ranks),
                    lapses=True,
                )
            case Deactivate(at_collective=None):
                at_ps = self._time_of(index, fault)
                self._at(at_ps, lambda: self._deactivate(index, fault.ranks, fault.for_ps))
            case Kill() | Deactivate() | DelayArrivals():
                self._calls.append((index, fault))
            case PortConflict():
                self._conflicts.append((index, fault))
            case Slow():
                self._while(fault, lambda factor: self._slow(index, fault.ranks, factor))
            case DropLink():
                self._at(fault.at_ps, lambda: self._set_link(index, fault, float("inf")))
            case SlowLink():
                self._while(fault, lambda factor: self._set_link(index, fault, factor))

    def _time_of(self, index: int, fault: Deactivate) -> int:
        """Return when ranks are deactivated: as written, or drawn by the seed."""
        if fault.at_ps is not None:
            return fault.at_ps
        assert fault.within_ps is not None, "one of the two is given"
        return int(self._generator(index, 0).integers(max(fault.within_ps, 1)))

    def _while(self, fault: Slow | SlowLink, slow: Callable[[float], None]) -> None:
        """Schedule a slowdown for a time."""
        self._at(fault.from_ps, lambda: slow(fault.factor))
        if fault.until_ps is not None:
            self._at(fault.until_ps, lambda: slow(1.0))

    def _at(self, time_ps: int, happen: Callable[[], None]) -> None:
        """Schedule a call at a time; it does not keep the simulation alive."""
        if time_ps <= self._engine.now_ps:
            happen()
        else:
            self._engine.call_at(time_ps, happen, lapses=True)

    # ---- ranks ----

    def _kill(self, index: int, ranks: tuple[int, ...] | None) -> None:
        for task in [task for task in self._engine.tasks if _is_rank(task, ranks)]:
            self._unseen.pop(index, None)
            kill(task)

    def _slow(self, index: int, ranks: tuple[int, ...] | None, factor: float) -> None:
        self._unseen.pop(index, None)
        for rank in range(len(self._devices)) if ranks is None else ranks:
            self._devices[rank].slow_down(factor)

    def _called(self) -> None:
        """Look whether a fault happens at the collective that the running rank calls."""
        program = require_rank("a collective")
        number = program.local["num_collectives"] = program.local.get("num_collectives", 0) + 1
        rank, task = program.rank, program.task
        assert rank is not None, "it is a rank"
        assert task is not None, "it runs"
        for index, fault in self._calls:
            if fault.ranks is not None and rank not in fault.ranks:
                continue
            if fault.at_collective not in (None, number):
                continue
            if isinstance(fault, DelayArrivals):
                self._delay(index, fault, rank)
            elif (index, rank) not in self._struck:  # Once each, also over several spawns.
                self._struck.add((index, rank))
                self._strike(index, fault, task)

    def _strike(self, index: int, fault: Kill | Deactivate, task: Task) -> None:
        """Inject a fault into the running rank, now."""
        struck, rank = NamedWait("the call of a collective"), task.rank

        def happen() -> None:
            if isinstance(fault, Kill):
                self._unseen.pop(index, None)
                kill(task)
            else:
                assert rank is not None, "it is a rank"
                self._deactivate(index, (rank,), fault.for_ps)
                struck.finish(self._engine)

        self._engine.call_at(task.clock_ps, happen)
        self._engine.wait(struck)

    def has_port(self, rank: int, port: int) -> bool:
        """Return whether a program outside of the simulation has the port that a rank names."""
        has = False
        for index, fault in self._conflicts:
            key = (index, rank)
            is_meant = fault.ranks is None or rank in fault.ranks
            if not is_meant or fault.port not in (None, port):
                continue
            if self._num_conflicts.get(key, 0) >= fault.times:
                continue
            if self._generator(index, rank).random() < fault.probability:
                self._unseen.pop(index, None)
                self._num_conflicts[key] = self._num_conflicts.get(key, 0) + 1
                has = True
        return has

    def _deactivate(self, index: int, ranks: tuple[int, ...] | None, for_ps: int | None) -> None:
        """Deactivate ranks in all their groups; the last rank of a group stays."""
        for world in list(self._worlds.values()):
            for rank in range(world.size) if ranks is None else ranks:
                for group in world.groups_of(rank):
                    roster, member = roster_of(group), group.group_rank(rank)
                    if member in roster.absent or roster.active() == [member]:
                        continue
                    self._unseen.pop(index, None)
                    roster.deactivate(member)
                    if for_ps is not None:
                        self._at(self._engine.now_ps + for_ps, partial(roster.activate, [member]))

    def _generator(self, index: int, rank: int) -> np.random.Generator:
        """Return the random numbers of a fault and a rank: a function of the seed."""
        key = (index, rank)
        generator = self._generators.get(key)
        if generator is None:
            seeds = [self._engine.seed, index, rank]
            generator = self._generators[key] = np.random.Generator(np.random.PCG64(seeds))
        return generator

    def _delay(self, index: int, fault: DelayArrivals, rank: int) -> None:
        drawn = self._generator(index, rank).random(2)
        if drawn[0] < fault.probability:
            self._unseen.pop(index, None)
            delay_ps = fault.by_ps
            if delay_ps is None:
                assert fault.up_to_ps is not None, "one of the two is given"
                delay_ps = round(drawn[1] * fault.up_to_ps)
            self._engine.charge(delay_ps, "fault: late arrival")

    # ---- links ----

    def _set_link(self, index: int, fault: DropLink | SlowLink, factor: float) -> None:
        self._unseen.pop(index, None)
        for link, ends in _links(fault, self._network.cluster):
            if factor == float("inf"):
                where = "" if ends.node is None else f"node {ends.node}: "
                note = f"a fault dropped the link {where}{ends.tail} -> {ends.head}"
                self._engine.notes[note] = None
            nominal = float(self._network.cluster.link_bandwidth_bytes_per_s[link])
            self._network.set_bandwidth(link, nominal / factor)
            self._links.set(ends, factor)


def kill(task: Task) -> None:
    """End a rank at once, as SIGKILL does: nothing of its program runs on."""
    where = "" if task.finished else doing_text(task)
    end_by_signal(task, signal.SIGKILL)
    if task.error is not None:
        clock_us = task.clock_ps / PS_PER_US
        task.error.add_note(f"simrank: killed by an injected fault at t={clock_us:.3f} us{where}")


def _is_rank(task: Task, ranks: tuple[int, ...] | None) -> bool:
    """Whether a task is the program of one of some ranks, and no kernel or greenlet of it."""
    if task.group is None or task.rank is None or task not in task.group.tasks:
        return False
    return ranks is None or task.rank in ranks


class _FaultyLinks:
    """A cost level of a cluster some of whose links are slow or dropped.

    A rank whose end a dropped link decides never ends. It is found by giving the link a latency
    that no collective could have by itself.

    Attributes:
        version: How often a link has become slow or was dropped.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._factors: dict[_Ends, float] = {}
        self._levels = _Levels(cost_level(cluster), None)
        self.version = 0

    @property
    def level(self) -> str:
        """Return the name of the level."""
        return self._levels.works.level

    @property
    def network(self) -> Interconnect:
        """Return the hardware as it is now, dropped links as they were."""
        return self._levels.works.network

    def set(self, link: _Ends, factor: float) -> None:
        """Say by how much a link is slower from now on; infinity drops it."""
        self._factors[link] = factor
        slowed = far = self._cluster
        for (tail, head, node), each in self._factors.items():
            if each == float("inf"):
                far = far.with_link(tail, head, node=node, latency_ps=_FAR_PS)
                continue
            index = self._cluster.link_index(tail, head, node=node)
            rate = float(self._cluster.link_bandwidth_bytes_per_s[index]) / each
            slowed = slowed.with_link(tail, head, node=node, bandwidth_bytes_per_s=rate)
            far = far.with_link(tail, head, node=node, bandwidth_bytes_per_s=rate)
        dropped = [each for each in self._factors.values() if each == float("inf")]
        self._levels = _Levels(cost_level(slowed), cost_level(far) if dropped else None)
        self.version += 1

    def completions(
        self, schedule: Schedule, arrivals_ps: npt.ArrayLike, *, devices: IntArray, itemsize: int
    ) -> IntArray:
        """Return when each rank is done, NOT_KNOWN where a dropped link decides."""
        works, far = self._levels
        ends_ps = works.completions(schedule, arrivals_ps, devices=devices, itemsize=itemsize)
        if far is None:
            return ends_ps
        late_ps = far.completions(schedule, arrivals_ps, devices=devices, itemsize=itemsize)
        is_stuck = (ends_ps < NOT_KNOWN) & (late_ps - ends_ps >= _FAR_PS // 2)
        return np.where(is_stuck, NOT_KNOWN, ends_ps)


def _links(fault: DropLink | SlowLink, cluster: Cluster) -> Iterable[tuple[int, _Ends]]:
    """Return the index and the ends of each direction that a fault is about."""
    node, tail, head, both = fault.link
    for ends in ((tail, head), (head, tail))[: 2 if both else 1]:
        yield cluster.link_index(*ends, node=node), _Ends(*ends, node)


def faulty_ranks(faults: FaultsRef, cluster: Cluster) -> tuple[int, ...] | None:
    """Return the ranks that faults make differ from others; None: any rank may.

    They are slow or late ones, and those at the ends of routes over a slow link. A folded run runs
    them for themselves.

    Raises:
        ConfigError: A fault is wrong, or names a rank or link that the cluster has not.
    """
    listed = load_faults(faults)
    check_faults(listed, cluster)
    found: dict[int, None] = {}
    for fault in listed:
        match fault:
            case Slow(ranks=ranks):
                found |= dict.fromkeys(ranks or ())  # Where all are slow, they are alike.
            case DelayArrivals(ranks=tuple(ranks)):
                found |= dict.fromkeys(ranks)
            case SlowLink():
                links = [link for link, _ in _links(fault, cluster)]
                found |= dict.fromkeys(_at_links(links, cluster))
            case _:
                return None
    return tuple(sorted(found))


def _at_links(links: Sequence[int], cluster: Cluster) -> list[int]:
    """Return the devices whose routes, to a neighbour or the next node, go over a link."""
    devices = np.arange(cluster.num_devices)
    found = np.zeros(cluster.num_devices, np.bool_)
    nodes, per_node = cluster.num_nodes, cluster.devices_per_node
    neighbours = devices - devices % per_node + (devices + 1) % per_node
    for peers in (neighbours, (devices + per_node) % cluster.num_devices):
        if nodes == 1 and peers is not neighbours:
            continue
        for route in (cluster.paths(devices, peers), cluster.paths(peers, devices)):
            found |= np.isin(route.links, links).any(axis=1)
    return np.flatnonzero(found).tolist()


def check_faults(faults: Sequence[Fault], cluster: Cluster) -> None:
    """Look whether a cluster has what faults are about.

    Raises:
        ConfigError: With every rank or link that it has not, where it is written.
    """
    source = faults.source if isinstance(faults, FaultList) else Source("faults", {})
    problems = []
    for index, fault in enumerate(faults):
        wrong = _wrong_with(fault, cluster)
        if wrong is not None:
            key, expected, got = wrong
            problems.append(source.problem(("faults", index, key), expected, got))
    if problems:
        raise ConfigError(*in_file_order(problems))


def _wrong_with(fault: Fault, cluster: Cluster) -> tuple[str, str, str] | None:
    """Return the key that names what the cluster has not, what is expected, and what was found."""
    if isinstance(fault, DropLink | SlowLink):
        try:
            list(_links(fault, cluster))
        except ValueError as error:
            key = type(fault).model_fields["link"].alias or "link"
            return key, f"a link of {cluster.name}", str(error)
        return None
    largest = max(fault.ranks or (0,))
    if largest < cluster.num_devices:
        return None
    key = type(fault).model_fields["ranks"].alias or "ranks"
    return key, f"ranks below {cluster.num_devices}, the devices of {cluster.name}", str(largest)
