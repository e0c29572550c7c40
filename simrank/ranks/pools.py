"""`multiprocessing.pool.ThreadPool` in ranks: its queues are between threads."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def of_pool(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return what gives a `ThreadPool` of a rank queues of its threads, not of processes."""
    original = module.__dict__["get_context"]

    @functools.wraps(original)
    def get_context(method: str | None = None) -> Any:  # noqa: ANN401 - a context
        context = original(method)
        task = running_task()
        on_thread = task is not None and task.carrier.thread_id is not None
        return _ContextOfThreads(context) if on_thread else context

    return [(module, "get_context", get_context), (module, "wait", _wait(module.__dict__["wait"]))]


def _wait(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let a pool wait for a change of its threads as it does for one of its processes."""

    @functools.wraps(original)
    def wait(objects: list[Any], timeout: float | None = None) -> list[Any]:
        notifiers = [each for each in objects if isinstance(each, _Notifier)]
        if not notifiers:
            return cast("list[Any]", original(objects, timeout))
        return notifiers if notifiers[0].wait(timeout) else []

    return wait


class _Notifier:
    """A queue of multiprocessing between threads; it stands for its own reading end."""

    def __init__(self) -> None:
        import queue  # noqa: PLC0415 - whatever stands in for it now

        made: Any = queue.SimpleQueue()
        self._queue, self._reader = made, self
        self.put, self.get, self.empty = made.put, made.get, made.empty

    def wait(self, timeout: float | None) -> bool:
        """Return whether there is something to get, within the time."""
        import queue  # noqa: PLC0415 - as above

        try:
            self.put(self._queue.get(timeout=timeout))
        except queue.Empty:
            return False
        return True


class _ContextOfThreads:
    """A context of multiprocessing whose queues are between threads.

    Args:
        context: What has the rest.
    """

    def __init__(self, context: object) -> None:
        self._context = context

    def SimpleQueue(self) -> _Notifier:  # noqa: N802 - as there
        """Return a queue."""
        return _Notifier()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever is there
        """Return what the context has."""
        return getattr(self._context, name)
