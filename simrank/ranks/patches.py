"""`unittest.mock.patch` in ranks: what one rank has patched, no other finds patched.

A patch replaces an attribute of something all ranks share. One that a rank holds while it waits is
taken back when another rank gets its turn, and put in place again when its own comes: processes
have modules of their own. That is an observer of switches, there while a rank holds a patch.

It does not cover `patch.dict`, nor attributes that a program sets by itself.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from simrank.engine.observer import SwitchObserver
from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from simrank.engine import Engine, Task

_NONE = object()
_patched: set[tuple[str, str]] = set()  # Names that a rank has patched: module and attribute.


def is_patched(module: str, name: str) -> bool:
    """Return whether a rank has ever patched a module's attribute."""
    return (module, name) in _patched


class _Held:
    """A patch that a rank holds: where it is, and what is there without it and with it.

    Args:
        owner: What the program made.
        patcher: Its copy for this one block, which has been entered.

    Attributes:
        owner: As given.
        patcher: As given.
        active: Those that `patch.stopall` would stop.
    """

    __slots__ = ("_attribute", "_original", "_target", "_value", "active", "owner", "patcher")

    def __init__(self, owner: Any, patcher: Any) -> None:  # noqa: ANN401 - a _patch
        self.owner, self.patcher = owner, patcher
        self.active: list[Any] = owner._active_patches  # noqa: SLF001 - `start` puts it there
        self._target, self._attribute = patcher.target, patcher.attribute
        self._original = patcher.temp_original if patcher.is_local else _NONE
        self._value = getattr(self._target, self._attribute)
        _patched.add((getattr(self._target, "__name__", ""), self._attribute))

    def take_back(self) -> None:
        """Put what was there before in its place."""
        self._value = getattr(self._target, self._attribute)
        if self._original is _NONE:
            delattr(self._target, self._attribute)
        else:
            setattr(self._target, self._attribute, self._original)

    def put(self) -> None:
        """Put it in place again."""
        setattr(self._target, self._attribute, self._value)


class _Patches(SwitchObserver):
    """Which task holds which patches; an observer of its engine while one does."""

    def __init__(self) -> None:
        self._held: dict[Task, list[_Held]] = {}
        self._shown: Task | None = None

    def enter(self, task: Task, held: _Held) -> None:
        """Note that the running task holds a patch from now on."""
        if not self._held:
            task.engine.observers.append(self)
        self._held.setdefault(task, []).append(held)
        self._shown = task

    def exit(self, task: Task, owner: object) -> Any:  # noqa: ANN401 - a _patch or None
        """Forget the last patch of a task that one patcher made; return what undoes it."""
        mine = self._held.get(task, [])
        for held in reversed(mine):
            if held.owner is owner:
                mine.remove(held)
                self._tidy(task)
                return held.patcher
        return None

    def hide(self) -> None:
        """Take back the patches that are in place: it is the turn of somebody else."""
        task, self._shown = self._shown, None
        if task is None:
            return
        for held in reversed(self._held.get(task, ())):
            held.take_back()
        if task.finished:  # It has never left its blocks.
            for held in self._held.pop(task, ()):
                if held.owner in held.active:
                    held.active.remove(held.owner)

    def _tidy(self, task: Task) -> None:
        if task in self._held and not self._held[task]:
            del self._held[task]
        if not self._held and self in task.engine.observers:
            task.engine.observers.remove(self)

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Put the patches of the task in place that is about to run."""
        del time_ps
        if task is self._shown:
            return
        self.hide()
        if task in self._held:
            for held in self._held[task]:
                held.put()
            self._shown = task


_by_engine: dict[Engine, _Patches] = {}


def hide(engine: Engine) -> None:
    """Take back what a rank has patched: the main program goes on."""
    if engine in _by_engine:
        _by_engine[engine].hide()


def forget(engine: Engine) -> None:
    """Take back what a rank has patched: nobody runs any more."""
    hide(engine)
    patches = _by_engine.pop(engine, None)
    if patches in engine.observers:
        engine.observers.remove(patches)


def of_mock(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return stand-ins for the two ends of a patch's block."""
    kind = module.__dict__["_patch"]
    return [(kind, "__enter__", _enter(kind.__enter__)), (kind, "__exit__", _exit(kind.__exit__))]


def _enter(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def enter(self: Any) -> Any:  # noqa: ANN401 - a _patch
        task = running_task()
        if task is None:
            return original(self)
        patcher = self.copy()  # A decorated function has one patcher for all ranks.
        result = original(patcher)
        patches = _by_engine.setdefault(task.engine, _Patches())
        patches.enter(task, _Held(self, patcher))
        return result

    return enter


def _exit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def exit_(self: Any, *error: object) -> Any:  # noqa: ANN401 - a _patch
        task = running_task()
        patches = None if task is None else _by_engine.get(task.engine)
        patcher = None if task is None or patches is None else patches.exit(task, self)
        return original(self if patcher is None else patcher, *error)

    return exit_
