"""Guards of tests that start child processes: killed at the end, counted, time-limited.

The order at every join is: wait with a limit, kill the rest, assert that there was none, assert
exit codes; with several children, gather all of that first. Semantics as in cuda-python's
`helpers/child_processes.py` (PR 2124).
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from simrank.isolation.ledger import replaced
from simrank.validate.options import timeout_factor

if TYPE_CHECKING:
    from collections.abc import Iterator

CHILD_S, MARGIN_S = 30.0, 30.0  # As there; a test's own limit is their sum.


def child_timeout() -> float:
    """Return the time limit of a child in seconds: 30, longer under a sanitizer."""
    return CHILD_S * timeout_factor()


def outer_timeout() -> float:
    """Return the time limit of a test in seconds; its children run side by side."""
    return child_timeout() + MARGIN_S


def kill_subprocesses(*processes: BaseProcess) -> list[BaseProcess]:
    """Kill the live children, wait for their end, and return them.

    A process that was never started, has ended or was closed is passed over, without an error.
    """
    killed = []
    for process in processes:
        with suppress(ValueError, AssertionError):  # Closed; or not a child of this process.
            if process.is_alive():
                process.kill()
                process.join()
                killed.append(process)
    return killed


@contextmanager
def track_child_processes() -> Iterator[weakref.WeakSet[BaseProcess]]:
    """Track processes of multiprocessing within the block, and kill the rest at its end.

    It is to be the outermost guard: enter it before resources that a child could keep open.
    """
    made: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
    original = BaseProcess.__init__

    def init(self: BaseProcess, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the original's
        original(self, *args, **kwargs)
        made.add(self)

    try:
        with replaced(BaseProcess, "__init__", init):
            yield made
    finally:
        kill_subprocesses(*made)
