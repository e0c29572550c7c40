"""Launches as somebody looks on: in which mode they run by default, and what they were.

`simrank kernels check` runs a file's cases so, once per mode, and compares.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.kernels.launch import WATCHERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.device import Tensor
    from simrank.kernels.machine.jit import Jit


class Launched(NamedTuple):
    """One launch.

    Attributes:
        rank: Who launched it; None: nobody's rank.
        jit: The kernel.
        bound: Its arguments by name.
        options: What else the launch said, for the compiler.
        written: The tensors among its arguments that its source stores to, by name.
    """

    rank: int | None
    jit: Jit
    bound: dict[str, Any]
    options: dict[str, Any]
    written: dict[str, Tensor]


class Rehearsal:
    """What was launched within a block.

    Attributes:
        mode: The mode of launches that name none and may run so.
        launches: In their order.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.launches: list[Launched] = []

    def note(self, *launched: Any) -> None:  # noqa: ANN401 - the fields of `Launched`
        """Remember a launch; its arguments stay as long as this does."""
        self.launches.append(Launched(*launched))


@contextmanager
def rehearsed(mode: str = "auto") -> Iterator[Rehearsal]:
    """Look on while kernels are launched, all in one mode unless they name one.

    Args:
        mode: "auto" or "tasks", in which every kernel may run.
    """
    watcher = Rehearsal(mode)
    WATCHERS.append(watcher)
    try:
        yield watcher
    finally:
        WATCHERS.remove(watcher)
