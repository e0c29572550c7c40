"""Options and results of a pool, and the setup of its workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simrank.validate.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from simrank.errors import PoolError


@dataclass(frozen=True, slots=True)
class Options:
    """Rarely used options.

    Attributes:
        limits: All wall-clock limits but a case's, which is the pool's `timeout`.
        retry: Whether a case that failed for what may be the machine's fault is run once more.
        echo: Where the pool says what it does, and workers' output is copied as it comes; or None.
        preload: Modules that workers import before the first request.
        port: Of the process groups' store; 0: a free one.
    """

    limits: Limits = field(default_factory=Limits)
    retry: bool = True
    echo: TextIO | None = None
    preload: Sequence[str] = ()
    port: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one case of `WorkerPool.map`.

    Attributes:
        results: What each active rank returned; empty if the case failed.
        error: What `run` would have raised, or None.
        duration_s: Wall-clock time, retries and respawns included.
    """

    results: list[Any]
    error: PoolError | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup of a pool's workers.

    Attributes:
        num_workers: How many.
        backend: "gloo", "nccl" or None.
        environment: Of every worker.
        reset: The pool's hook, packed.
        preload: Modules that workers import before their first request.
        port: Of the store of the process groups; 0: a free one.
        echo: Where what workers print is copied, or None.
    """

    num_workers: int
    backend: str | None
    environment: Mapping[str, str]
    reset: bytes
    preload: Sequence[str]
    port: int
    echo: TextIO | None
