"""What an observer of the engine may see; without observers nothing of it is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.engine.loop import Engine
    from simrank.engine.task import Task
    from simrank.errors import Parting


# Given the task that raised, or None for a hang; returns where the ranks parted, if it knows.
FailureHook: TypeAlias = "Callable[[Task | None], Parting | None]"


def tell_of_failure(engine: Engine, task: Task | None) -> Parting | None:
    """Tell who asked that a task has raised, or that none can go on, before anything is undone.

    Returns:
        Where the ranks parted, if somebody has followed them.
    """
    told = [hook(task) for hook in engine.on_failure]
    return next((parting for parting in told if parting is not None), None)


class Observer(Protocol):
    """Sees a run and never changes it; all times are simulated picoseconds."""

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """A task is about to be resumed."""

    def on_host(self, task: Task, name: str, start_ps: int, end_ps: int) -> None:
        """A task's host was charged, or waited, from `start_ps` to `end_ps`."""

    def on_operation(self, operation: Any) -> None:  # noqa: ANN401 - operations live a layer above
        """An operation of a stream has ended."""

    def on_transfer(
        self, size_bytes: int, links: tuple[str, ...], start_ps: int, end_ps: int
    ) -> None:
        """Bytes have crossed links, which are given by name."""


def tell_of_switch(observers: Sequence[Observer], task: Task, time_ps: int) -> None:
    """Tell observers that a task is about to be resumed."""
    for observer in observers:
        observer.on_task_switch(task, time_ps)


def tell_of_wait(engine: Engine, task: Task, what: str, start_ps: int) -> None:
    """Tell observers of a wait that is over now."""
    start_ps = max(start_ps, task.host_ps)  # A host waits after what it was charged for.
    for observer in engine.observers:
        observer.on_host(task, f"wait: {what}", start_ps, engine.now_ps)


class SwitchObserver:
    """An observer of switches: whoever sees nothing else takes the rest from here."""

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Note nothing."""

    def on_host(self, task: Task, name: str, start_ps: int, end_ps: int) -> None:
        """Note nothing."""

    def on_operation(self, operation: Any) -> None:  # noqa: ANN401 - as above
        """Note nothing."""

    def on_transfer(
        self, size_bytes: int, links: tuple[str, ...], start_ps: int, end_ps: int
    ) -> None:
        """Note nothing."""
