"""A trace replayed on a cluster: when each rank was done; start with `replay`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simrank.context import Context
from simrank.errors import SimrankError
from simrank.replay.player import Player
from simrank.replay.trace import SEND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.engine import Observer
    from simrank.hardware import Cluster
    from simrank.replay.trace import Trace


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The times of one rank in a replay.

    Attributes:
        rank: Its number.
        num_nodes: Nodes that it did.
        time_ps: When its last one was over.
        calc_ps: How long its calcs take together.
        sent_bytes: What it sent.
    """

    rank: int
    num_nodes: int
    time_ps: int
    calc_ps: int
    sent_bytes: int


def replay(
    trace: Trace, cluster: Cluster, *, observers: Sequence[Observer] = (), seed: int = 0
) -> list[RankTimes]:
    """Replay a trace; rank r is on device r.

    Args:
        trace: What each rank does.
        cluster: The hardware.
        observers: Who sees the run.
        seed: Decides what happens first of what happens at one time.

    Raises:
        SimrankError: The cluster has fewer devices than the trace has ranks.
        DeadlockError: The trace hangs; the report names the nodes that each rank waits for.
    """
    num_ranks = len(trace.ranks)
    if num_ranks > cluster.num_devices:
        raise SimrankError(
            f"{trace.file} has {num_ranks} ranks, {cluster.name} {cluster.num_devices} devices\n"
            "  to fix: give it more --nodes, or another cluster"
        )
    context = Context(cluster, data=False, seed=seed)
    for observer in observers:
        context.observe(observer)
    players = [Player(rank, nodes, trace.groups, context) for rank, nodes in enumerate(trace.ranks)]
    with context:
        context.multiprocessing.spawn(
            lambda rank: players[rank].play(), nprocs=num_ranks, share_args=True
        )
    return [_times(rank, player, trace) for rank, player in enumerate(players)]


def _times(rank: int, player: Player, trace: Trace) -> RankTimes:
    nodes = trace.ranks[rank]
    return RankTimes(
        rank,
        len(nodes),
        player.end_ps,
        player.calc_ps,
        sum(node.size_bytes for node in nodes if node.kind == SEND),
    )
