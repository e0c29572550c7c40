"""Choice of a collective's algorithm: forced by name, or `auto`.

`auto` is what NCCL would choose, where the cluster says what NCCL finds on it; else the fastest of
our own algorithms for this problem on these devices when all ranks arrive together.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from simrank.collectives.algorithms import auto_algorithms, build, check_nodes
from simrank.collectives.cost import CostModel, Stretch, cost_level
from simrank.collectives.nccl.cost_level import (
    ANY,
    LEVEL,
    NcclLevel,
    Tuning,
    algorithm_of,
    schedules_of,
)
from simrank.collectives.problem import Problem, node_size_of, runs_of
from simrank.collectives.schedule import IntArray, Schedule
from simrank.collectives.traffic import uplink_slowdown
from simrank.hardware import Cluster

AUTO = "auto"
MAX_CHOICES = 1024  # Assumed: distinct calls of one program.


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated time of an algorithm.

    Attributes:
        algorithm: Its name.
        duration_ps: From the common arrival to the last rank's completion.
    """

    algorithm: str
    duration_ps: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen algorithm, and the reason.

    Attributes:
        algorithm: Name of what was chosen.
        schedule: Its steps.
        is_forced: The caller named it.
        estimates: The alternatives that were compared, fastest first; empty if there was no
            choice.
        level: Cost level of the estimates.
        protocol: How bytes are put on a link (NCCL's word); None where the level knows of none.
        stretch: How much longer, or shorter, the library takes than the schedule as it is played.
    """

    algorithm: str
    schedule: Schedule
    is_forced: bool
    estimates: tuple[Estimate, ...]
    level: str
    protocol: str | None = None
    stretch: Stretch | None = None

    @property
    def reason(self) -> str:
        """One line that says why this algorithm runs."""
        name = self.algorithm if self.protocol is None else f"{self.algorithm} {self.protocol}"
        if self.is_forced:
            return f"{name}: named by the caller"
        if not self.estimates:
            return f"{name}: the only algorithm of {self.schedule.collective} here"
        others = ", ".join(
            f"{estimate.algorithm} {estimate.duration_ps / 1e6:.3f} us"
            for estimate in self.estimates
        )
        return f"{name}: fastest at {self.level} level of {others}"


class Chooser:
    """Chooses algorithms, and remembers its choices.

    Args:
        cost: Estimates durations.
        nccl: What NCCL chooses on this cluster; None: nothing is known of that.

    Attributes:
        cost, nccl: As given.
    """

    def __init__(self, cost: CostModel, nccl: NcclLevel | None = None) -> None:
        self.cost = cost
        self.nccl = nccl
        self._memo: OrderedDict[object, Choice] = OrderedDict()
        self._schedules: OrderedDict[object, Schedule] = OrderedDict()

    def choose(
        self,
        problem: Problem,
        *,
        devices: IntArray,
        algorithm: str = AUTO,
        options: Mapping[str, int] | None = None,
        tuning: Tuning | None = ANY,
    ) -> Choice:
        """Return the choice for a collective.

        Args:
            problem: The collective and its sizes; how its ranks stand on nodes is filled in.
            devices: Device of each rank.
            algorithm: A name in the table of algorithms, or "auto".
            options: Options of a named algorithm; with any, its time is that of its schedule.
            tuning: What NCCL may choose from; None: another library than NCCL runs it.

        Raises:
            ValueError: The algorithm or an option is unknown, the world size or how the ranks stand
                on nodes is not admitted, or the tuning leaves nothing.
        """
        given = tuple(sorted((options or {}).items()))
        key = (problem, devices.tobytes(), algorithm, given, tuning)
        if key not in self._memo:
            if len(self._memo) >= MAX_CHOICES:
                self._memo.popitem(last=False)
            network = self.cost.network
            nodes = network.node_of(devices)
            node_size = node_size_of(nodes)
            if not node_size:
                check_nodes(problem.collective, algorithm, runs_of(nodes))
            placed = replace(problem, node_size=node_size, is_mesh=network.is_mesh)
            found = None
            if tuning is not None and not given:
                found = self._by_nccl(placed, devices, algorithm, tuning)
            self._memo[key] = found or self._choose(placed, devices, algorithm, dict(given))
        return self._memo[key]

    def _by_nccl(
        self, problem: Problem, devices: IntArray, algorithm: str, tuning: Tuning
    ) -> Choice | None:
        """Return NCCL's choice; None if NCCL has no algorithm or cannot run on the ranks."""
        level = self.nccl
        if level is None or not level.admits(problem, devices):
            return None
        if algorithm != AUTO:
            named = algorithm_of(problem.collective, algorithm)
            if named is None or not level.offers(problem, devices, named):
                return None
            tuning = replace(tuning, algorithms=frozenset([named]))
        found = level.choose(problem, devices, tuning)
        names = [algorithm]
        if algorithm == AUTO:
            able = auto_algorithms(problem.collective, problem.world_size, library=True)
            is_one_node = len(np.unique(self.cost.network.node_of(devices))) == 1
            doing = schedules_of(problem.collective, found.algorithm, is_one_node=is_one_node)
            names = [name for name in doing if name in able]
        estimates = (self._estimate(problem, devices, name) for name in names)
        played = min(estimates, key=lambda estimate: estimate.duration_ps)
        schedule = self._build(problem, played.algorithm)
        # NCCL knows nothing of what meets above its switches, and chooses without it.
        slower = uplink_slowdown(schedule, self.cost.network, devices, problem.itemsize)
        flow_ps = round((found.duration_ps - found.latency_ps) * slower)
        return Choice(
            found.algorithm if algorithm == AUTO else algorithm,
            schedule,
            algorithm != AUTO,
            tuple(Estimate(*each) for each in found.compared),
            LEVEL,
            found.protocol,
            Stretch(found.latency_ps + flow_ps, played.duration_ps, found.latency_ps),
        )

    def _choose(
        self, problem: Problem, devices: IntArray, algorithm: str, options: Mapping[str, int]
    ) -> Choice:
        if algorithm != AUTO:
            schedule = self._build(problem, algorithm, options)
            return Choice(algorithm, schedule, True, (), self.cost.level)
        if options:
            raise ValueError(f"options {', '.join(options)} need a named algorithm, not {AUTO!r}")
        names = auto_algorithms(problem.collective, problem.world_size)
        if len(names) == 1:
            return Choice(names[0], self._build(problem, names[0]), False, (), self.cost.level)
        estimates = [self._estimate(problem, devices, name) for name in names]
        # Ties go to the earlier line of the table: sorting is stable.
        estimates.sort(key=lambda estimate: estimate.duration_ps)
        best = estimates[0].algorithm
        return Choice(best, self._build(problem, best), False, tuple(estimates), self.cost.level)

    def _build(
        self, problem: Problem, name: str, options: Mapping[str, int] | None = None
    ) -> Schedule:
        """Return a schedule; groups on other devices that solve the same problem share it."""
        key = (problem, name, tuple(sorted((options or {}).items())))
        schedule = self._schedules.get(key)
        if schedule is None:
            if len(self._schedules) >= MAX_CHOICES:
                self._schedules.popitem(last=False)
            schedule = self._schedules[key] = build(problem, name, options=options)
        return schedule

    def _estimate(self, problem: Problem, devices: IntArray, name: str) -> Estimate:
        schedule = self._build(problem, name)
        together = np.zeros(problem.world_size, dtype=np.int64)
        done = self.cost.completions(schedule, together, devices=devices, itemsize=problem.itemsize)
        return Estimate(name, int(done.max()))


@lru_cache(maxsize=8)
def chooser_of(network: Cluster) -> Chooser:
    """Return the chooser of some hardware, at its cost level.

    Simulations on the same hardware share it: what one has chosen and timed holds for the next.
    """
    return Chooser(cost_level(network), NcclLevel(network) if network.nccl is not None else None)
