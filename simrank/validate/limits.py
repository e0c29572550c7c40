"""The wall-clock limits of a pool, in one place (rule R3)."""

from __future__ import annotations

import os
from dataclasses import dataclass

FACTOR = "SIMRANK_TIMEOUT_FACTOR"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a pool waits, in seconds; each is assumed, none was measured to be needed.

    Attributes:
        case_s: For the answers to one request.
        start_s: For workers to be ready.
        settle_s: For other ranks, once one has failed: they may fail for reasons of their own.
        end_s: For workers to leave by themselves, and for keepers to have ended what is left.
        margin_s: What whoever waits for the pool allows beyond a case: a start, and ends.
    """

    case_s: float = 90.0
    start_s: float = 120.0
    settle_s: float = 0.3
    end_s: float = 5.0
    margin_s: float = 30.0

    @property
    def outer_s(self) -> float:
        """Return the limit of whoever waits for a whole case: workers run side by side."""
        return self.case_s + self.margin_s

    def scaled(self) -> Limits:
        """Return them for a slow machine or a sanitizer: `SIMRANK_TIMEOUT_FACTOR` times as long."""
        factor = float(os.environ.get(FACTOR, "1"))
        return Limits(*(factor * getattr(self, name) for name in self.__dataclass_fields__))
