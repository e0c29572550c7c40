"""Who is in a default group: the ranks that were started, or whoever meets in a store.

A program that never changes joins as it was started, and nobody waits. Once a rank has died, a
process has joined, or ranks name other numbers than their own, members tell each other in the store
who has which rank, and wait for all: a group may grow, shrink, and have new processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simrank.distributed.group import membership
from simrank.distributed.membership import come_to, number_of, world_of
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.distributed as dist

    from simrank.distributed.group import World
    from simrank.ranks import Program

_KEY = "meetings of a default group"  # In `World.local`.


class Met(NamedTuple):
    """A member, as it tells of itself in the store.

    Attributes:
        number: Its rank in the spawn; of a process the number that it has taken.
        generation: How often it has joined as it was started, where it does so now, else 0.
        world: Number of the spawn.
    """

    number: int
    generation: int
    world: int


def meet(program: Program, store: dist.Store, rank: int, size: int) -> Sequence[int]:
    """Return the members of the default group that a program joins, and set the epoch of its names.

    Args:
        program: Who joins.
        store: Where the members meet.
        rank: Its rank there.
        size: The number of members.

    Raises:
        UnsupportedError: Some joined as they were started, and others under other numbers.
    """
    state, world = membership(program), world_of(program)
    place = _place(store, rank, size)
    is_as_started = program.process_of is None and (rank, size) == (program.rank, world.size)
    if is_as_started and not world.has_changed:
        state.generation += 1
        state.epoch = state.generation
        _tell(store, place, rank, Met(rank, state.generation, _number(world)))
        return range(size)
    world.has_changed = True
    met = meet_at(place, program, store, rank, size)
    known = {each.generation for each in met} - {0}
    if not known:
        state.epoch = store.get(f"{place}/epoch") if rank else _new_epoch(program, store, place)
        return tuple(each.number for each in met)
    if tuple(each.number for each in met) != tuple(range(world.size)) or len(known) > 1:
        as_started = ", ".join(str(index) for index, each in enumerate(met) if each.generation)
        raise UnsupportedError(
            f"rank {program.rank} joins a group of {size} as rank {rank}, and rank(s) {as_started} "
            "of it joined as they were started, since nothing had changed yet\n"
            "  to fix: give the group another size, or a new number to each member"
        )
    state.epoch = known.pop()
    return range(size)


def meet_at(place: str, program: Program, store: dist.Store, rank: int, size: int) -> list[Met]:
    """Wait for the members of a group at a place in a store, and return who they are, by rank.

    Members of several spawns become members of the oldest one's world, unless some of them joined
    as they were started: they do not wait.
    """
    world = world_of(program)
    _tell(store, place, rank, Met(number_of(program, rank), 0, _number(world)))
    met = [_reported(store, f"{place}/{index}") for index in range(size)]
    oldest = min(each.world for each in met)
    if oldest == max(each.world for each in met) or any(each.generation for each in met):
        return met
    number = come_to(program, world.comm_library.worlds[oldest])
    _tell(store, f"{place}/world", rank, Met(number, 0, oldest))
    return [_reported(store, f"{place}/world/{index}") for index in range(size)]


def _place(store: dist.Store, rank: int, size: int) -> str:
    """Return where the members meet: it is another each time that all of them do."""
    here = f"simrank/members/{size}"
    return f"{here}/{store.add(f'{here}/of rank {rank}', 1)}"


def _tell(store: dist.Store, place: str, rank: int, met: Met) -> None:
    store.set(f"{place}/{rank}", ",".join(map(str, met)))


def _reported(store: dist.Store, key: str) -> Met:
    return Met(*map(int, store.get(key).decode().split(",")))


def _new_epoch(program: Program, store: dist.Store, place: str) -> bytes:
    """Return a name that no other meeting of these ranks has, for who comes as rank 0 to tell."""
    world = world_of(program)
    number = world.local[_KEY] = world.local.get(_KEY, 0) + 1
    name = f"met {number}".encode()
    store.set(f"{place}/epoch", name)
    return name


def _number(world: World) -> int:
    """Return the number of a spawn among those of its Context."""
    return next(n for n, each in world.comm_library.worlds.items() if each is world)
