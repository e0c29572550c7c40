"""The current folder of ranks, each with its own.

The operating system knows one per process, so it is changed whenever another rank gets its turn:
an observer of switches, there only once a rank has called `os.chdir`. The mask of `os.umask`, and
`sys.path`, are shared by all.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from simrank.engine.callsite import is_importing
from simrank.engine.collector import is_looking
from simrank.engine.task import SwitchObserver
from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.engine import EngineInterface, Task

_chdir = os.chdir


class _Folders(SwitchObserver):
    """The folder of each task that has changed its own; an observer of its engine."""

    def __init__(self) -> None:
        self._main = os.getcwd()
        self._own: dict[Task, str] = {}
        self._now = self._main

    def moved(self, task: Task) -> None:
        """Note where the running task has gone."""
        self._own[task] = self._now = os.getcwd()

    def show(self, task: Task | None) -> None:
        """Go where a task is, or the main program."""
        folder = self._main if task is None else self._own.get(task, self._main)
        if folder != self._now:
            _chdir(folder)
            self._now = folder

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Go where the task is that runs next."""
        del time_ps
        self.show(task)


_by_engine: dict[EngineInterface, _Folders] = {}


def show_main(engine: EngineInterface) -> None:
    """Go where the main program is: it goes on."""
    if engine in _by_engine:
        _by_engine[engine].show(None)


def forget(engine: EngineInterface) -> None:
    """Restore the working directory of the main program; no rank runs any more."""
    folders = _by_engine.pop(engine, None)
    if folders is not None:
        folders.show(None)
        if folders in engine.observers:
            engine.observers.remove(folders)


def patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of this module: owner, name and replacement."""
    return [(os, name, _noted(getattr(os, name))) for name in ("chdir", "fchdir")]


def _noted(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def change(path: Any) -> None:  # noqa: ANN401 - a path or a descriptor
        task = running_task()
        folders = None if task is None else _by_engine.get(task.engine)
        if task is not None and folders is None:
            folders = _by_engine[task.engine] = _Folders()
            task.engine.observers.append(folders)
        original(path)
        if task is not None and folders is not None:
            folders.moved(task)

    return change


# ---- Files that a rank removes: last of all that ranks do at that time ----
# What a rank does on its host takes next to no simulated time. Rank 0, which goes on first,
# would remove a checkpoint behind a barrier before the others have opened it, where processes
# have all read it by then.

_REMOVE_PS = 10_000_000  # assumed: to remove a file takes a host some 10 us


def removal_patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of this module: owner, name and replacement."""
    return [(os, name, _last(getattr(os, name))) for name in ("remove", "unlink", "rmdir")]


def _last(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def remove(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the original's
        task = running_task()
        try:
            if not (task is None or task.num_quiet or is_looking() or is_importing()):
                task.engine.sleep(_REMOVE_PS)
        finally:  # A rank that is aborted meanwhile tidies up all the same.
            original(*args, **kwargs)

    return remove
