"""Pools of threads in ranks: what they share with processes, and what differs from run to run.

`multiprocessing.pool.ThreadPool` gets queues between threads. `ThreadPoolExecutor` has a number
that each rank counts by itself, and joins its threads in the order in which they were made.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

from simrank.ranks.current import running_task
from simrank.ranks.threads import counted

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


def of_executor(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return what makes an executor's names and order those of its rank alone."""
    kind: Any = module.__dict__["ThreadPoolExecutor"]
    original = kind.__init__

    @functools.wraps(original)
    def make(self: Any, *args: object, **kwargs: object) -> None:  # noqa: ANN401 - an executor
        original(self, *args, **kwargs)
        if running_task() is not None:
            self._threads = _Ordered()

    counter = counted(kind._counter, "executors made", 0)  # noqa: SLF001 - its only name
    return [(kind, "__init__", make), (kind, "_counter", counter)]


class _Ordered(dict[Any, None]):
    """A set of threads in the order in which they came: a plain one goes by their addresses."""

    add = dict.setdefault
