"""Values that a user states for those that a run without data does not have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simrank.device.routing import Routing


@dataclass(frozen=True)
class StatedValues:
    """Values that stand for unknown ones.

    Attributes:
        value: What every reading gives that no other statement is for; None: an error.
        at: What readings at a line give, by the line as reports write it: `train.py:12`.
        routing: How tokens choose experts whose scores are unknown; None: that is unknown, too.
    """

    value: float | None = None
    at: Mapping[str, float] = field(default_factory=dict)
    routing: Routing | None = None

    def of_line(self, line: str | None) -> float | None:
        """Return the value that a reading at a line gives, or None."""
        return self.value if line is None else self.at.get(line, self.value)


def as_stated(unknown: float | StatedValues | None) -> StatedValues:
    """Return the values that a Context's argument `unknown` states."""
    return unknown if isinstance(unknown, StatedValues) else StatedValues(unknown)
