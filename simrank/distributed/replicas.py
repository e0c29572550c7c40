"""Replicas of a model, whose parameters are compared after each step of an optimizer.

Data-parallel ranks that miss one average go on with different models, and every later call matches.
A hash of each parameter per step tells; nothing is sent, and no simulated time passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from simrank.errors import who_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simrank.distributed.group import ProcessGroup
    from simrank.engine import CallSite

_MAX_PENDING = 64  # Assumed: steps of one optimizer that not all members have made.


class OptimizerStep(NamedTuple):
    """A step of an optimizer of a replicated model.

    Attributes:
        model: Number of the model among those of the rank.
        optimizer: Number of the optimizer among those of the model.
        number: Number of the step, from 1.
    """

    model: int
    optimizer: int
    number: int


class Replicas:
    """Compares the replicas of all models of a Context."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, int], str] = {}
        self._pending: WeakKeyDictionary[
            ProcessGroup, dict[OptimizerStep, dict[int, Mapping[str, int]]]
        ]
        self._pending = WeakKeyDictionary()

    @property
    def findings(self) -> list[str]:
        """The first step after which replicas differ, for each group, model and optimizer."""
        return list(self._found.values())

    def note(
        self,
        group: ProcessGroup,
        rank: int,
        step: OptimizerStep,
        hashes: Mapping[str, int],
        site: CallSite | None,
    ) -> None:
        """Note the parameters of a rank after a step; of the last member, compare all.

        Args:
            group: The ranks that have a replica.
            rank: One of them, by its global rank.
            step: The step that it has made.
            hashes: Hash of each parameter that the optimizer has, by name.
            site: Where the program made the step.
        """
        key = (group.name, step.model, step.optimizer)
        if key in self._found:
            return
        pending = self._pending.setdefault(group, {})
        by_rank = pending.setdefault(step, {})
        by_rank[rank] = hashes
        if len(by_rank) < group.size():
            if len(pending) > _MAX_PENDING:
                del pending[next(iter(pending))]
            return
        del pending[step]
        for name in hashes:
            if not all(name in own for own in by_rank.values()):
                continue  # Another rank's optimizer has it.
            ranks_by_hash: dict[int, list[int]] = {}
            for each in sorted(by_rank):
                ranks_by_hash.setdefault(by_rank[each][name], []).append(each)
            if len(ranks_by_hash) > 1:
                self._found[key] = _text(group, step, name, list(ranks_by_hash.values()), site)
                return


def _text(
    group: ProcessGroup,
    step: OptimizerStep,
    name: str,
    sides: list[list[int]],
    site: CallSite | None,
) -> str:
    where = "" if site is None else f" at {site.line()}"
    reported = [who_text(ranks) for ranks in sides[:4]]
    more = f" and {len(sides) - 4} more" if len(sides) > 4 else ""
    return (
        f"replicas on group '{group.name}' differ after optimizer step {step.number}{where}, "
        f"first in {name}: {' / '.join(reported)}{more} have different values"
    )
