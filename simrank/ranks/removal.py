"""Files that a rank removes: last of all that ranks do at that time.

What a rank does on its host takes next to no simulated time. Rank 0, which goes on first, would
remove a checkpoint behind a barrier before the others have opened it, where processes have all read
it by then.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from simrank.engine.callsite import is_importing
from simrank.engine.collector import is_looking
from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable

_REMOVE_PS = 10_000_000  # assumed: to remove a file takes a host some 10 us


def stand_ins() -> list[tuple[Any, str, Any]]:
    """Return what to replace while a Context is entered: owner, name and stand-in."""
    return [(os, name, _last(getattr(os, name))) for name in ("remove", "unlink", "rmdir")]


def _last(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def remove(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the original's
        task = running_task()
        try:
            if task is not None and not is_looking() and not is_importing():
                task.engine.sleep(_REMOVE_PS)
        finally:  # A rank that is aborted meanwhile tidies up all the same.
            original(*args, **kwargs)

    return remove
