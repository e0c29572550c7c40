"""Last arrivals: the ranks for which members of a collective or message waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from simrank.engine import CallSite


class LastArrivals(NamedTuple):
    """The ranks that came last, whose arrival let a member's part begin.

    Attributes:
        ranks: Global ranks; empty if the awaited member left the group instead.
        sites: The lines at which they made their calls, each once; of a rank that does not run,
            its representative's.
    """

    ranks: tuple[int, ...]
    sites: tuple[CallSite, ...]
