"""The cost level *nccl*: NCCL's choice for a call, and its time.

Which of our schedules moves the data, and shows how ranks depend on each other, is said here too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from simrank.collectives.nccl.constants import (
    COLLNET_CHAIN,
    COLLNET_DIRECT,
    NVLS,
    NVLS_TREE,
    P2P,
    PAT,
    RING,
    TREE,
)
from simrank.collectives.nccl.evidence import constants_on
from simrank.collectives.nccl.laws import Communicator, message_bytes_per_s, message_terms, terms
from simrank.collectives.nccl.machine import GroupShape, shape_on, spec_within
from simrank.collectives.nccl.prediction import predict_times
from simrank.collectives.nccl.tuner import candidates
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simrank.collectives.problem import Problem
    from simrank.collectives.schedule import IntArray
    from simrank.config.tuner import TunerRow
    from simrank.hardware import Cluster

LEVEL = "nccl"
_MAX_PAIRS = 65_536  # Assumed: pairs of devices, likewise, with the size: 20 MB.
_MAX_MESSAGES = 1024  # Assumed: sizes of messages that a program sends again and again.

# NCCL's algorithm, and the schedules that do what it does: the fastest of them is played. The first
# is what the algorithm's name means where a user names it.
_SCHEDULES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("all_reduce", RING): ("ring",),
    ("all_reduce", TREE): ("tree",),
    ("all_reduce", NVLS): ("nvls",),
    ("all_reduce", NVLS_TREE): ("nvls_tree",),
    ("all_reduce", COLLNET_DIRECT): ("nvls_tree",),
    ("all_reduce", COLLNET_CHAIN): ("tree",),
    ("all_gather", RING): ("ring",),
    ("reduce_scatter", RING): ("ring",),
    ("all_gather", PAT): ("halving_doubling", "ring"),
    ("reduce_scatter", PAT): ("halving_doubling", "ring"),
    ("broadcast", RING): ("chain", "binomial"),
    ("reduce", RING): ("chain", "binomial"),
    ("all_to_all", P2P): ("direct", "pairwise"),
    ("gather", P2P): ("direct",),
    ("scatter", P2P): ("direct",),
}

_EQUIVALENT = (  # Their schedules have equal results; names do not refer to them.
    PAT,
    COLLNET_DIRECT,
    COLLNET_CHAIN,
)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Restrictions of NCCL's choice by the user or by the reduction.

    Attributes:
        algorithms: Names of NCCL's algorithms; None: any.
        protocols: LL, LL128, Simple; None: any.
        tuner_rows: Rows of a tuner plugin's file.
    """

    algorithms: frozenset[str] | None = None
    protocols: frozenset[str] | None = None
    tuner_rows: tuple[TunerRow, ...] = ()


ANY = Tuning()
NO_SWITCH = Tuning(algorithms=frozenset([RING, TREE]))  # For what a switch cannot reduce.


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """NCCL's choice.

    Attributes:
        algorithm: NCCL's name of it, for example nvls_tree; p2p of messages.
        protocol: LL, LL128 or Simple.
        duration_ps: From the common arrival to the last completion.
        latency_ps: What of it is launch, set-up and steps; the rest is the flow of bytes.
        compared: The alternatives: algorithm and protocol, and what decided, in picoseconds.
    """

    algorithm: str
    protocol: str
    duration_ps: int
    latency_ps: int
    compared: tuple[tuple[str, int], ...]


class MessageTime(NamedTuple):
    """The time of a message.

    Attributes:
        latency_ps: Launch, set-up and steps, in picoseconds.
        flow_ps: How long its bytes flow, alone.
        bytes_per_s: What all messages through its port, or its network card, reach together.
    """

    latency_ps: int
    flow_ps: int
    bytes_per_s: float


class NcclLevel:
    """NCCL's choices and times on one cluster.

    Args:
        cluster: A cluster that says what NCCL finds on it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._messages: dict[tuple[bool, bool, int, int], MessageTime] = {}
        self._pairs: dict[tuple[tuple[int, int], int, int], MessageTime | Literal[False]] = {}

    def admits(self, problem: Problem, devices: IntArray) -> bool:
        """Return whether NCCL could run it: two ranks or more, none of which share a device.

        A cluster of several nodes that states no network cards is left to the schedule level.
        """
        if problem.world_size < 2 or len(np.unique(devices)) < problem.world_size:
            return False
        return self._has_way(self._cluster.node_of(devices))

    def offers(self, problem: Problem, devices: IntArray, algorithm: str) -> bool:
        """Return whether NCCL has an algorithm for a problem on these devices."""
        size = max(size_bytes(problem), 1)
        comm = self._communicator(problem.collective, devices)
        found = candidates(problem.collective, [size], comm)
        return any(each.algorithm == algorithm for each in found)

    def _communicator(
        self, collective: str, devices: IntArray, num_members: int | None = None
    ) -> Communicator:
        """Return ranks with their constants; of a message, as one of so many members."""
        nodes = self._cluster.node_of(devices)
        shape = shape_on(nodes)
        spec = spec_within(self._cluster, shape)
        pods = self._cluster.topology.pods
        if pods is not None and self._cluster.spans_pods(nodes):  # One uplink up, one down.
            spec = replace(spec, nic_latency_ps=spec.nic_latency_ps + 2 * pods.latency_ps)
        comm = Communicator(shape, spec)
        of = comm
        if num_members is not None and shape.num_nodes == 1:
            of = replace(comm, shape=GroupShape.packed(num_members, num_members))
        known = constants_on(self._cluster, collective, of)
        return replace(comm, calibration=known.calibration)

    def choose(self, problem: Problem, devices: IntArray, tuning: Tuning) -> NcclChoice:
        """Return NCCL's choice for a problem that it admits.

        Raises:
            ValueError: The tuning leaves nothing that NCCL has for the collective here.
        """
        comm = self._communicator(problem.collective, devices)
        size = max(size_bytes(problem), 1)
        found = predict_times(
            problem.collective,
            [size],
            comm,
            algorithms=tuning.algorithms,
            protocols=tuning.protocols,
            tuner_rows=tuning.tuner_rows,
        )
        algorithm, protocol = found.choices[int(found.chosen[0])]
        parts = terms(problem.collective, algorithm, protocol, [size], comm)
        compared = sorted(
            zip(found.compared_us[:, 0].tolist(), found.choices, strict=True), key=lambda it: it[0]
        )
        return NcclChoice(
            algorithm,
            protocol,
            math.ceil(found.times_us[0] * PS_PER_US),
            round((parts.launch + parts.base + parts.latency) * PS_PER_US),
            tuple((" ".join(names), math.ceil(us * PS_PER_US)) for us, names in compared),
        )

    def message(self, devices: tuple[int, int], size: int, num_members: int) -> MessageTime | None:
        """Return NCCL's time of a message; None without a path between the devices.

        Args:
            devices: Of the sender and of the receiver.
            size: In bytes.
            num_members: Ranks of the communicator.
        """
        known = self._pairs.get((devices, size, num_members))
        if known is None:
            known = self._message(devices, size, num_members)
            if len(self._pairs) >= _MAX_PAIRS:
                self._pairs.clear()
            self._pairs[devices, size, num_members] = known
        return known or None

    def _message(
        self, devices: tuple[int, int], size: int, num_members: int
    ) -> MessageTime | Literal[False]:
        """Return NCCL's time of a message; False without a path. Equal pairs share one."""
        pair = np.array(devices)
        nodes = self._cluster.node_of(pair)
        if devices[0] == devices[1] or not self._has_way(nodes):
            return False
        key = (int(nodes[0]) == int(nodes[1]), self._cluster.spans_pods(nodes), size, num_members)
        found = self._messages.get(key)
        if found is None:
            if len(self._messages) >= _MAX_MESSAGES:
                self._messages.clear()
            comm = self._communicator("sendrecv", pair, num_members)
            parts = message_terms([size], comm, num_members)
            latency_us = parts.launch + parts.base + parts.latency
            found = self._messages[key] = MessageTime(
                round(latency_us * PS_PER_US),
                math.ceil((parts.transfer[0] + parts.ramp[0]) * PS_PER_US),
                message_bytes_per_s(comm),
            )
        return found

    def _has_way(self, nodes: IntArray) -> bool:
        spec = self._cluster.nccl
        assert spec is not None, "else there is no such level"
        has_network = spec.nics > 0 and spec.nic_bytes_per_s > 0
        return has_network or int(nodes.min()) == int(nodes.max())


def schedules_of(collective: str, algorithm: str, *, is_one_node: bool = True) -> tuple[str, ...]:
    """Return the schedules that represent an algorithm of NCCL."""
    if algorithm == NVLS and not is_one_node:  # The network's switches stand where trees would.
        algorithm = NVLS_TREE
    return _SCHEDULES[collective, algorithm]


def algorithm_of(collective: str, schedule: str) -> str | None:
    """Return the algorithm of NCCL that a schedule is; None: NCCL has no such one."""
    for (each, algorithm), schedules in _SCHEDULES.items():
        if each == collective and schedules[0] == schedule and algorithm not in _EQUIVALENT:
            return algorithm
    return None


def size_bytes(problem: Problem) -> int:
    """Return the size S of nccl-tests: of uneven messages, that of the busiest rank."""
    if problem.splits is None:
        is_gathered = problem.collective not in ("all_reduce", "broadcast", "reduce")
        return problem.count * (problem.world_size if is_gathered else 1) * problem.itemsize
    if problem.collective == "all_to_all":
        matrix = np.array(problem.splits, dtype=np.int64).reshape(problem.world_size, -1)
        busiest = max(int(matrix.sum(axis=0).max()), int(matrix.sum(axis=1).max()))
        return busiest * problem.itemsize
    return sum(problem.splits) * problem.itemsize
