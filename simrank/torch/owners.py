"""Whose a process group is: in processes nobody can have another's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.errors import SimrankError
from simrank.isolation.module_globals import cure, holder_of
from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from simrank.torch.identity import IdentifiedGroup


def check_owner(group: IdentifiedGroup) -> None:
    """Raise where a rank uses a group object that another has made.

    It has met it in what all share: the calls would be those of a stranger to the group, which
    torch leaves out with a warning, or be right by luck.

    Raises:
        SimrankError: It does; the text says which module to make private.
    """
    program = rank_program()
    if program is None or program.rank in (group.owner, None):
        return
    holder = holder_of(group)
    where = "something that ranks share" if holder is None else f"{holder}, which ranks share"
    fix = "" if holder is None else f"\n  to fix: {cure(holder)}"
    raise SimrankError(
        f"rank {program.rank} uses a process group of rank {group.owner}, {group!r}: processes "
        f"have their own; it is held by {where}{fix}"
    )


class OfGroups(dict[Any, Any]):
    """What torch notes of a rank's groups; groups that are not there may be another rank's."""

    def __contains__(self, group: object) -> bool:
        """Whether torch knows the group."""
        return super().__contains__(group) or _is_unknown(group)

    def get(self, group: Any, default: Any = None) -> Any:
        """Return what torch knows of the group."""
        return super().get(group, default) if group in self else default

    def __missing__(self, group: object) -> Any:
        """Raise what a dictionary does."""
        _is_unknown(group)
        raise KeyError(group)


def _is_unknown(group: Any) -> bool:
    """Return False, for a group of the rank's own."""
    if hasattr(group, "owner"):
        check_owner(group)
    return False
