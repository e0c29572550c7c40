"""Members that no spawn has numbered: processes that ranks start, and ranks of several spawns.

The ranks of a spawn are numbered from 0. Who joins a group with others takes the next number of
theirs, whatever rank it has there. Its death is that of a member.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from simrank.distributed.group import membership
from simrank.distributed.membership import world_of

if TYPE_CHECKING:
    from simrank.distributed.group import World
    from simrank.ranks import Program

_KEY = "number as a member"  # In `Program.local`.


def number_of(program: Program, group_rank: int) -> int:
    """Return the number of who joins a group; a process gets one as it joins its first.

    Args:
        program: Who joins.
        group_rank: Its rank in the group: it stands for the device of this number of its host.
    """
    if program.process_of is not None and _KEY not in program.local:
        cluster, host = program.context.cluster, program.started_rank or 0
        index = host - host % cluster.devices_per_node + group_rank % cluster.devices_per_node
        _take_number(program, world_of(program), min(index, cluster.num_devices - 1))
    assert program.rank is not None, "a rank joins"
    return program.rank


def come_to(program: Program, world: World) -> int:
    """Let a rank or process be among those of another spawn from now on; return its number."""
    before = world_of(program)
    if before is not world:
        program.local["world"] = world
        _take_number(program, world, int(before.devices[program.rank or 0]))
    assert program.rank is not None, "a rank comes"
    return program.rank


def _take_number(program: Program, world: World, device_index: int) -> None:
    task = program.task
    assert task is not None, "it runs"
    program.rank = task.rank = program.local[_KEY] = world.add(task, device_index)
    membership(program).callers.clear()


def process_ended(program: Program, status: int) -> None:
    """Let those fail who wait in a group for a process that has died."""
    if status and _KEY in program.local:
        engine = program.engine
        engine.call_at(engine.now_ps, partial(lose, program, SystemExit(status)))


def lose(program: Program, error: BaseException) -> None:
    """Let those fail who wait in a group for a member that has died; from the hub."""
    assert program.rank is not None, "a member"
    world_of(program).rank_died(program.rank, error)
