"""How an atomic, or a store that others wait for, orders memory."""

from __future__ import annotations

_SEMS = ("acquire", "release", "acq_rel", "relaxed")
_SCOPES = ("gpu", "cta", "sys")


class Order:
    """How an atomic orders memory.

    Attributes:
        acquires: What others published before is seen after it.
        releases: What was written before it is seen by whoever acquires it.
        scope: "cta", "gpu" or "sys".
    """

    __slots__ = ("acquires", "releases", "scope")

    def __init__(self, sem: str | None, scope: str | None, *, default: str = "acq_rel") -> None:
        sem, scope = sem or default, scope or "gpu"
        if sem not in _SEMS:
            raise ValueError(f"Memory semantic {sem} not supported")
        if scope not in _SCOPES:
            raise ValueError(f"Memory semantic {scope} not supported")
        self.acquires = sem in ("acquire", "acq_rel")
        self.releases = sem in ("release", "acq_rel")
        self.scope = scope
