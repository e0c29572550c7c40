"""Options and limits of a pool (rule R3), and the setup of its workers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from simrank.errors import PoolError


# ---- the wall-clock limits of a pool (rule R3) ----

FACTOR = "SIMRANK_TIMEOUT_FACTOR"
# Signs of NVIDIA's compute-sanitizer, and how much slower cuda-python takes it to be.
_SANITIZER_SIGNS = ("CUDA_INJECTION64_PATH", "LD_PRELOAD")
_SANITIZER_FACTOR = 4.0


def timeout_factor() -> float:
    """Return by how much limits are to be longer here.

    `SIMRANK_TIMEOUT_FACTOR` says it; under compute-sanitizer (or `CUDA_PYTHON_UNDER_SANITIZER=1`)
    it is 4, else 1.

    Raises:
        ConfigError: The variable is no positive number.
    """
    given = os.environ.get(FACTOR)
    if given is not None:
        try:
            factor = float(given)
        except ValueError:
            factor = 0.0
        if not 0.0 < factor < float("inf"):
            expected = "a positive number, for example 4"
            raise ConfigError(ConfigProblem("environment", None, FACTOR, expected, repr(given)))
        return factor
    is_sanitized = os.environ.get("CUDA_PYTHON_UNDER_SANITIZER") == "1" or any(
        "sanitizer" in os.environ.get(name, "") for name in _SANITIZER_SIGNS
    )
    return _SANITIZER_FACTOR if is_sanitized else 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of a pool in seconds; all assumed.

    Attributes:
        case_s: For the answers to one request.
        start_s: For workers to be ready.
        settle_s: For other ranks, once one has failed: they may fail for reasons of their own.
        end_s: For workers to leave by themselves, and for keepers to have ended what is left.
        margin_s: Extra time of a waiter beyond a case: a start, and ends.
    """

    case_s: float = 90.0
    start_s: float = 120.0
    settle_s: float = 1.0
    end_s: float = 5.0
    margin_s: float = 30.0

    @property
    def outer_s(self) -> float:
        """Return the time limit of a whole case; workers run side by side."""
        return self.case_s + self.margin_s

    def scaled(self) -> Limits:
        """Return them for a slow machine or a sanitizer: `timeout_factor()` times as long."""
        factor = timeout_factor()
        return Limits(*(factor * getattr(self, name) for name in self.__dataclass_fields__))


# ---- options and results of a pool, and the setup of its workers ----


@dataclass(frozen=True, slots=True)
class Options:
    """Rarely used options.

    Attributes:
        limits: All wall-clock limits but a case's, which is the pool's `timeout`.
        retry: Whether a case that failed for what may be the machine's fault is run once more.
        echo: Where the pool says what it does, and workers' output is copied as it comes; or None.
        preload: Modules that workers import before the first request.
        port: Of the process groups' store; 0: a free one.
        shares_modules: Whether cases share modules as they leave them, like the tests of a session;
            False: a worker without process groups runs each case in a fork of itself, others put
            functions, classes and values back.
    """

    limits: Limits = field(default_factory=Limits)
    retry: bool = True
    echo: TextIO | None = None
    preload: Sequence[str] = ()
    port: int = 0
    shares_modules: bool = False


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
        shares_modules: As in `Options`.
    """

    num_workers: int
    backend: str | None
    environment: Mapping[str, str]
    reset: bytes
    preload: Sequence[str]
    port: int
    echo: TextIO | None
    shares_modules: bool = False
