"""Debuggers inside a rank: the simulation stands still at the prompt, which says who and when.

`breakpoint()`, `pdb.set_trace()` and everything else that is built on `pdb.Pdb` prompt in the rank
that runs; nobody else does meanwhile, and simulated time does not pass.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable


def stand_ins() -> list[tuple[Any, str, Any]]:
    """Return what to replace while a Context is entered: owner, name and stand-in."""
    from pdb import Pdb  # noqa: PLC0415 - 2 ms; a program may import it as late as in a rank

    return [(Pdb, "interaction", _announced(Pdb.interaction))]


def _announced(original: Callable[..., None]) -> Callable[..., None]:
    """Return what says which rank stopped, and when, before a debugger prompts for it."""

    @functools.wraps(original)
    def interact(self: Any, *args: object, **kwargs: object) -> None:  # noqa: ANN401 - a Pdb; its own
        task = running_task()
        if task is not None:
            self.message(f"simrank: {task.name} at t={task.clock_ps / 1e6:.3f} us")
        original(self, *args, **kwargs)

    return interact
