"""Inactive ranks: the active members of a group's collectives, and their changes.

By default all do, and a dead rank is an error. `set_active_ranks` is agreed on by all members,
`deactivate_rank` is one-sided and at once, and a group made with `ElasticOptions` skips those that
die. Read `roster` for what becomes of calls in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.distributed.active_members import ElasticOptions, members_of, roster_of
from simrank.distributed.backends import Backends
from simrank.distributed.group import Maker, ProcessGroup, membership
from simrank.distributed.membership import Group, group_or_default, member_group, world_of
from simrank.engine import NamedWait, user_site
from simrank.errors import UnsupportedError, ranks_text
from simrank.ranks import require_rank

if TYPE_CHECKING:
    from collections.abc import Sequence


def active_ranks(group: Group = None) -> list[int]:
    """Return the global ranks of a group that take part in its collectives now."""
    program = require_rank("active_ranks")
    chosen = group_or_default(_own(group), program)
    roster = chosen.roster
    if roster is None:
        return [int(rank) for rank in chosen.ranks]
    return [int(chosen.ranks[rank]) for rank in roster.active()]


def set_active_ranks(ranks: Sequence[int], group: Group = None) -> None:
    """Activate these members of the group, and deactivate the remaining ones.

    Every member calls it that is active, or will be: it is how a subset begins, how it ends, and
    how a rank comes back. Inactive ranks may call collectives: their calls end at once and move
    nothing. Simulated cost: the host waits for the last one, and a round trip.

    Args:
        ranks: Global ranks; at least one.
        group: The group, or None.

    Raises:
        ValueError: A rank is no member, or there is none.
        CollectiveMismatchError: Another member named other ranks.
        PeerDiedError: One of them has died.
    """
    program = require_rank("set_active_ranks")
    chosen = member_group("set_active_ranks", _own(group), program)
    if chosen is None:
        return
    members = members_of(chosen, ranks)
    roster_of(chosen).agree(chosen.group_rank(program.rank), members, user_site())


def deactivate_rank(rank: int, group: Group = None) -> None:
    """Declare a rank broken: collectives of the group that are in flight go on without it, now.

    So do later ones, until `set_active_ranks` names it again. No other rank need call this. A call
    that needs the rank fails: a broadcast from it, a message.

    Args:
        rank: Its global rank.
        group: The group, or None.

    Raises:
        ValueError: It is no member, or the last one that is active.
    """
    program = require_rank("deactivate_rank")
    chosen = member_group("deactivate_rank", _own(group), program)
    if chosen is None:
        return
    (member,) = members_of(chosen, [rank])
    roster, task = roster_of(chosen), program.task
    if roster.active() == [member]:
        raise ValueError(f"rank {rank} is the last active one of group '{chosen.name}'")
    assert task is not None, "it runs"
    done = NamedWait(f"deactivate_rank({rank})")
    engine = chosen.engine

    def declare() -> None:
        roster.deactivate(member)
        done.finish(engine)

    engine.call_at(max(task.clock_ps, engine.now_ps), declare)
    engine.wait(done)


def shrink_group(
    ranks_to_exclude: list[int],
    group: Group = None,
    shrink_flags: int = 0,
    pg_options: object = None,
) -> ProcessGroup:
    """Return a group of the other members, with numbers of their own; only these call it.

    Args:
        ranks_to_exclude: Group ranks, for example of members that died.
        group: Of `new_group`. It stays as it is: use the one that is returned.
        shrink_flags: 0: what is in flight stays. Aborting it is refused.
        pg_options: As of `new_group`.

    Raises:
        ValueError: No rank to exclude, or no rank would be left, or one is not a member.
        RuntimeError: The caller is excluded.
        UnsupportedError: The default group, which torch would renumber; a flag.
        PeerDiedError: One of those that are left has died.
    """
    program = require_rank("shrink_group")
    chosen = member_group("shrink_group", group, program)
    state, rank = membership(program), program.rank
    if chosen is None or chosen is state.default:
        raise UnsupportedError(
            "shrink_group of the default group is not supported: it would renumber its ranks\n"
            "  to fix: shrink a group of new_group, or deactivate ranks with set_active_ranks"
        )
    if shrink_flags != 0:
        raise UnsupportedError(f"shrink_group with shrink_flags={shrink_flags}: only 0 is")
    excluded = set(ranks_to_exclude)
    is_wrong = not excluded or len(excluded) != len(ranks_to_exclude)
    if is_wrong or not excluded < set(range(chosen.size())):
        raise ValueError(
            f"ranks_to_exclude={ranks_to_exclude}: some of the group ranks 0 to "
            f"{chosen.size() - 1}, each once, and not all"
        )
    if chosen.group_rank(rank) in excluded:
        raise RuntimeError(f"Rank {chosen.group_rank(rank)} is in the exclusion list")
    left = [each for each in range(chosen.size()) if each not in excluded]
    chosen.check_alive(f"shrink_group of group '{chosen.name}'", *left)
    members = tuple(int(chosen.ranks[each]) for each in left)
    assert rank is not None, "it is a rank"
    backends, maker = Backends(chosen.backend, chosen.backends), Maker(rank, user_site())
    key = (state.epoch, ("shrunk", chosen.label, members))
    name = f"{chosen.name}, shrunk to {ranks_text(members)}"
    made = world_of(program).group(key, name, members, backends, maker)
    made.is_eager |= chosen.is_eager
    state.made.append(made)
    if isinstance(pg_options, ElasticOptions):
        pg_options.apply(made)
    return made


def _own(group: Any) -> Group:  # noqa: ANN401 - torch's own too
    """Return simrank's group of a group of torch."""
    simulated: Group = getattr(group, "simulated", group)
    return simulated
