"""Tasks of a run that can wait, since their calls and those of others commute.

Where several tasks are parked, not all orders of their calls differ. A set of them is enough if no
task outside of it comes to the objects that its members are about to come to, before one of them
has: a stubborn set (Valmari 1990; Godefroid 1996, chapter 4). What tasks come to later is known
from other runs: a run that shows more starts the search again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from simrank.engine.choices import LOOKS, Act

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from simrank.timings.state import Actor, Waiting

    ActorName = tuple[int, int, int]
    Stage = tuple[float, float]  # Calls of a task on others, and what it has done since.

ObjectName = tuple[str, "Hashable | None"]  # The kind, and the part; None: any.


def object_name(kind: str, key: Hashable, owner: object) -> ObjectName:
    """Return a name of a shared object that is the same in all runs; others may share it.

    Of a key `(owner, part)` the part is the same in all runs; any other key may not be. Locks and
    shared values have a name of their own.
    """
    part = key[1] if isinstance(key, tuple) else own_name(owner) or None
    return kind, part if isinstance(part, str | int) else None


def own_name(owner: object) -> str | None:
    """Return the name that an object was given for a search, the same in all runs.

    Returns:
        None: it got none; "": those of its class have none.
    """
    try:
        found = object.__getattribute__(owner, "made_as")  # A look at some is a call on them.
    except AttributeError:
        return ""
    return None if found is None else str(found)


def _may_be_one(one: ObjectName, other: ObjectName) -> bool:
    return one[0] == other[0] and (one[1] == other[1] or one[1] is None or other[1] is None)


class ObjectUses:
    """The objects that each task comes to, and until which of its stages."""

    def __init__(self) -> None:
        self._last: dict[ActorName, dict[tuple[ObjectName, bool], Stage]] = {}
        self._seen_by: dict[tuple[ActorName, ObjectName, bool], int] = {}
        self.num_found = 0

    def note(self, actor: Actor, name: ObjectName, act: Act) -> bool:
        """Add that a task comes to an object; return whether that was not known.

        What it comes to later than in an earlier run it may come to at any time.
        """
        last, key = self._last.setdefault(actor.name, {}), (name, act in LOOKS)
        known: Stage | None = last.get(key)
        stage: Stage = actor.stage
        if known is not None and known >= stage:
            return False
        seen_by = (actor.name, *key)
        if known is not None and self._seen_by[seen_by] != actor.run_number:
            stage = (stage[0] if stage[0] == known[0] else math.inf), math.inf
        last[key], self._seen_by[seen_by] = stage, actor.run_number
        self.num_found += 1
        return True

    def may_be_used(self, name: ObjectName, actors: Mapping[ActorName, Actor]) -> bool:
        """Return whether a task that has not ended may yet come to an object of a name."""
        return any(
            _may_be_one(other, name) and self._is_left(actors.get(task), last)
            for task, found in self._last.items()
            for (other, _), last in found.items()
        )

    @staticmethod
    def _is_left(actor: Actor | None, last: Stage) -> bool:
        return actor is None or (not actor.task.finished and last >= actor.stage)

    def stubborn(
        self,
        start: Waiting,
        parked: Sequence[Waiting],
        actors: Mapping[ActorName, Actor],
        awaited: Mapping[ActorName, Sequence[ActorName]],
    ) -> list[Waiting] | None:
        """Return the calls that must be gone through with one, if the others can wait.

        Args:
            start: A call on a shared object.
            parked: All that waits.
            actors: All tasks, by name.
            awaited: The tasks without which one cannot go on: those that a collective lacks.

        Returns:
            None: all.
        """
        found = [start]
        for each in found:  # It grows.
            for name in self._last:
                if any(name == other.actor.name for other in found):
                    continue
                actor = actors.get(name)
                if not self._comes_to(each, name, actor):
                    continue
                needed = _needed(name, found, parked, awaited, frozenset())
                if needed is None:
                    return None
                found += needed
        return found

    def _comes_to(self, call: Waiting, name: ActorName, actor: Actor | None) -> bool:
        """Return whether a task may yet come to the object of a call, in a way that shows."""
        shared = call.shared
        assert shared is not None, "it is a call on a shared object"
        return any(
            _may_be_one(other, shared.name) and self._is_left(actor, last)
            for (other, is_look), last in self._last[name].items()
            if not (is_look and call.act in LOOKS)
        )


def _needed(
    name: ActorName,
    found: Sequence[Waiting],
    parked: Sequence[Waiting],
    awaited: Mapping[ActorName, Sequence[ActorName]],
    above: frozenset[ActorName],
) -> list[Waiting] | None:
    """Return calls one of which must come before a task can go on; None: they are not known.

    Of a parked task that is its own. One that waits in a collective needs each that has not come.
    """
    own = [each for each in parked if each.actor.name == name]
    if own:
        return own if len(own) == 1 and own[0].shared is not None else None
    others = [other for other in awaited.get(name, ()) if other not in above]
    if any(each.actor.name in others for each in found):
        return []
    for other in others:
        needed = _needed(other, found, parked, awaited, above | {name})
        if needed is not None:
            return [each for each in needed if each not in found]
    return None
