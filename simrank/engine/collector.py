"""Python's garbage collector while a simulation runs."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_GC_THRESHOLD = 100_000  # objects; assumed: some 10 MB of garbage in cycles does not hurt
_OLD_THRESHOLD = 1_000  # looks at the middle-aged before one at all; assumed, likewise
_OBJECTS_PER_TASK = 200  # assumed: what a rank holds by the time it has made a few tensors


@contextmanager
def calm_collector(num_tasks: int = 0, *, is_calm: bool = True) -> Iterator[None]:
    """Let Python look for garbage in cycles less often within the block.

    With thousands of live ranks its default pace costs more than the simulation (measured: 1.6 s
    against 0.7 s for 10,000 ranks that deadlock), and at any fixed pace it looks at objects that
    live as long as their ranks (measured: a quarter of 10,000 ranks' ten all_reduces).

    Args:
        num_tasks: Tasks that live now.
        is_calm: False where tasks are programs on threads, of which there are few: what is young
            dies there as early as in a process. A logger on one rank that holds its callers' frames
            in a cycle, say, holds what all others have lost; a program that asks whether its groups
            are alive goes on otherwise on that rank. Looks at what is old stay rare (0.1 s each).
    """
    threshold, *older = gc.get_threshold()
    calm = max(threshold, _GC_THRESHOLD, num_tasks * _OBJECTS_PER_TASK)
    if not is_calm:
        gc.set_threshold(threshold, older[0], max(older[1], _OLD_THRESHOLD))
    else:
        gc.set_threshold(calm if threshold else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(threshold, *older)
