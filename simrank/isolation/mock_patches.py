"""Patches of `mock.patch` and pytest's `monkeypatch`, swapped per rank.

A patch replaces an attribute of something all ranks share. One that a rank holds while it waits is
taken back when another rank gets its turn, and put in place again when its own comes: processes
have modules of their own. That is an observer of switches, there while a rank holds a patch.

So are attributes that a rank sets by itself on modules which are of the class `SharedModule`, and
what others note here: globals of packages (`module_globals`), methods of torch's classes.

It does not cover `mock.patch.dict`, nor attributes that a program sets on other modules.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

from simrank.engine.callsite import is_real, module_text
from simrank.engine.task import SwitchObserver
from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.engine import EngineInterface, Task

ABSENT = object()  # In place of an attribute that is not there.
_PATCHERS = ("unittest.mock", "_pytest.monkeypatch")
# Modules of classes whose objects keep their attributes per native thread, which are a rank's own.
PER_THREAD: set[str] = set()
_patched: set[tuple[str, str]] = set()  # Names that a rank has patched: module and attribute.


def is_patched(module: str, name: str) -> bool:
    """Return whether a rank has ever patched a module's attribute."""
    return (module, name) in _patched


class _Held:
    """A patch that a rank holds: where it is, and what is there without it and with it.

    Args:
        owner: What the program made.
        target: Where it is: an object, or a dict.
        name: Of the attribute, or the key.
        original: What was there itself; nothing, where it was inherited.
        is_item: Whether the target is a dict.

    Attributes:
        owner: As given.
        patcher: What undoes a patch of mock's: a copy of the owner for this one block.
        active: Those that `patch.stopall` would stop.
    """

    __slots__ = ("_name", "_original", "_target", "_value", "active", "is_item", "owner", "patcher")

    def __init__(
        self,
        owner: object,
        target: Any,  # noqa: ANN401 - anything
        name: Any,  # noqa: ANN401 - anything
        original: object,
        *,
        is_item: bool = False,
    ) -> None:
        self.owner = owner
        self.patcher: Any = None
        self.active: list[Any] = []
        self.is_item = is_item
        self._target, self._name, self._original = target, name, original
        self._value = self._look()
        if not is_item:
            _patched.add((getattr(target, "__name__", ""), name))

    def _look(self) -> object:
        if self.is_item:
            return self._target.get(self._name, ABSENT)
        # As it lies there: a staticmethod stays one, and a module may make others when asked.
        if isinstance(self._target, (type, ModuleType)):
            return vars(self._target).get(self._name, ABSENT)
        return getattr(self._target, self._name, ABSENT)

    def _set(self, value: object) -> None:
        if type(self._target).__module__ in PER_THREAD:
            return
        if self.is_item and value is ABSENT:
            self._target.pop(self._name, None)
        elif self.is_item:
            self._target[self._name] = value
        elif value is not ABSENT:
            setattr(self._target, self._name, value)
        elif self._look() is not ABSENT:
            delattr(self._target, self._name)

    def is_at(self, target: object, name: str) -> bool:
        """Return whether it is a patch of this attribute."""
        return self._target is target and self._name == name and not self.is_item

    def is_original(self, value: object) -> bool:
        """Return whether a value is what was there before."""
        return value is self._original

    @property
    def is_restored(self) -> bool:
        """Whether what was there before lies there."""
        return self._look() is self._original

    def facts(self) -> tuple[object, ...]:
        """Return the names of its target and attribute, and the value there now."""
        target = self._target
        return getattr(target, "__name__", type(target).__name__), self._name, self._look()

    def take_back(self) -> None:
        """Put what was there before in its place."""
        self._value = self._look()
        self._set(self._original)

    def put(self) -> None:
        """Put it in place again."""
        self._set(self._value)


def _rank_of(task: Task) -> Task:
    """Return the task of the rank that a task is, or is a further thread of: they share patches."""
    program = getattr(task, "program", None)
    return task if program is None else program.task


class _Patches(SwitchObserver):
    """Patches by task: an observer of the engine while a rank holds patches."""

    def __init__(self) -> None:
        self._held: dict[Task, list[_Held]] = {}
        self._shown: Task | None = None

    def enter(self, task: Task, held: _Held) -> None:
        """Note that the running task holds a patch from now on."""
        task = _rank_of(task)
        if not self._held:
            task.engine.observers.append(self)
        self._held.setdefault(task, []).append(held)
        self._shown = task

    def exit(self, task: Task, owner: object) -> Any:  # noqa: ANN401 - a _patch or None
        """Forget the last patch of a task that one patcher made; return its undo function."""
        task = _rank_of(task)
        mine = self._held.get(task, [])
        for held in reversed(mine):
            if held.owner is owner:
                mine.remove(held)
                self._tidy(task)
                return held.patcher
        return None

    def undone(self, task: Task, owner: object) -> None:
        """Forget all patches of a task that one owner has undone."""
        task = _rank_of(task)
        if task in self._held:
            self._held[task] = [held for held in self._held[task] if held.owner is not owner]
            self._tidy(task)

    def find(self, task: Task, target: object, name: str) -> _Held | None:
        """Return the patch of an attribute that a task holds, the last one."""
        mine = reversed(self._held.get(_rank_of(task), ()))
        return next((held for held in mine if held.is_at(target, name)), None)

    def drop_restored(self, task: Task) -> None:
        """Forget those attributes that a task has set itself where the original lies again."""
        if task in self._held:
            self._held[task] = [
                held for held in self._held[task]
                if type(held.owner) is not object or not held.is_restored
            ]  # fmt: skip
            self._tidy(task)

    def of(self, task: Task) -> list[_Held]:
        """Return the patches that a task holds."""
        return self._held.get(_rank_of(task), [])

    @property
    def are_some(self) -> bool:
        """Whether any rank holds a patch."""
        return bool(self._held)

    def hide(self) -> None:
        """Undo the patches that are in place: another program has the turn."""
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
        task = _rank_of(task)
        if task is self._shown:
            return
        self.hide()
        if task in self._held:
            for held in self._held[task]:
                held.put()
            self._shown = task


_by_engine: dict[EngineInterface, _Patches] = {}


def _patches_of(engine: EngineInterface) -> _Patches:
    """Return the patches of an engine's ranks; the main program takes them back as it goes on."""
    patches = _by_engine.get(engine)
    if patches is None:
        patches = _by_engine[engine] = _Patches()
        engine.on_hub.append(patches.hide)
    return patches


def note(task: Task, target: Any, name: str, original: object) -> None:  # noqa: ANN401 - anything
    """Note that a rank has replaced an attribute of what all share: it is so in its turns alone."""
    patches = _patches_of(task.engine)
    held = patches.find(task, target, name)
    if held is None:
        patches.enter(task, _Held(object(), target, name, original))
    elif held.is_original(vars(target).get(name, ABSENT)):
        patches.undone(task, held.owner)


def drop_restored(task: Task) -> None:
    """Forget what a rank has set and put back since, itself."""
    if task.engine in _by_engine:
        _by_engine[task.engine].drop_restored(task)


def set_by(task: Task) -> list[object]:
    """Return the patches that a running rank holds: where they are, and what is there."""
    patches = _by_engine.get(task.engine)
    return [] if patches is None else [held.facts() for held in patches.of(task)]


def are_held(engine: EngineInterface) -> bool:
    """Return whether a rank of an engine holds a patch."""
    return engine in _by_engine and _by_engine[engine].are_some


class SharedModule(ModuleType):
    """A module that all ranks share, whose attributes a rank sets for itself alone."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute; if a rank does, for its turns."""
        task = running_task()
        is_own = hasattr(type(self), name)  # A property, which finds the running rank.
        if task is None or task.rank is None or is_own or _is_ours(self, name, value):
            super().__setattr__(name, value)
            return
        original = vars(self).get(name, ABSENT)
        super().__setattr__(name, value)
        if value is not original:
            note(task, self, name, original)


def _is_ours(module: ModuleType, name: str, value: object) -> bool:
    """Whether simrank sets an attribute, or an import, or a patcher that is noted elsewhere.

    A library's own settings of its private modules are caches and counters, mostly.
    """
    if is_real(value, ModuleType) and module_text(value, "__name__") == f"{module.__name__}.{name}":
        return True
    setter = str(sys._getframe(2).f_globals.get("__name__"))  # noqa: SLF001 - the way to a caller
    if "._" in module.__name__ and setter.partition(".")[0] == module.__name__.partition(".")[0]:
        return True
    return setter.startswith("simrank.") or setter in _PATCHERS


def own_global(module: ModuleType, function: str, name: str) -> tuple[Any, str, Any]:
    """Return the replacement of a function that sets a global of its module."""
    original = vars(module)[function]

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        before = vars(module).get(name, ABSENT)
        result = original(*args, **kwargs)
        task = running_task()
        if task is not None and task.rank is not None and vars(module).get(name) is not before:
            note(task, module, name, before)
        return result

    return module, function, call


def forget(engine: EngineInterface) -> None:
    """Undo the patches of ranks; no rank runs any more."""
    patches = _by_engine.pop(engine, None)
    if patches is None:
        return
    patches.hide()
    engine.on_hub.remove(patches.hide)
    if patches in engine.observers:
        engine.observers.remove(patches)


def of_mock(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return patches for the two ends of a patch's block."""
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
        original_value = patcher.temp_original if patcher.is_local else ABSENT
        held = _Held(self, patcher.target, patcher.attribute, original_value)
        held.patcher, held.active = patcher, self._active_patches  # `start` puts it there.
        _patches_of(task.engine).enter(task, held)
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


# ---- pytest's ----

# Each rank has these for itself already.
_STREAMS = ("stdin", "stdout", "stderr", "excepthook", "argv")


def of_monkeypatch(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return patches for what changes attributes and dicts, and for what undoes it."""
    kind = module.__dict__["MonkeyPatch"]
    changes = ("setattr", "delattr", "setitem", "delitem")
    replaced: list[tuple[Any, str, Any]] = [
        (
            kind,
            name,
            _change(
                vars(kind)[name],
                module.__dict__["notset" if "notset" in module.__dict__ else "NOTSET"],
            ),
        )
        for name in changes
    ]
    return [*replaced, (kind, "undo", _undo(kind.undo))]


def _change(original: Callable[..., Any], nothing: object) -> Callable[..., Any]:
    @functools.wraps(original)
    def change(self: Any, *args: object, **kwargs: object) -> None:  # noqa: ANN401 - a MonkeyPatch
        __tracebackhide__ = True
        task = running_task()
        num_before = len(self._setattr), len(self._setitem)
        original(self, *args, **kwargs)
        if task is None:
            return
        for is_item, entries in enumerate((self._setattr, self._setitem)):
            for target, name, value in entries[num_before[is_item] :]:
                if not _is_each_ranks_own(target, name):
                    before = ABSENT if value is nothing else value
                    held = _Held(self, target, name, before, is_item=bool(is_item))
                    _patches_of(task.engine).enter(task, held)

    return change


def _is_each_ranks_own(target: object, name: object) -> bool:
    return (target is sys and name in _STREAMS) or target is os.environ or target is warnings


def _undo(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def undo(self: Any) -> None:  # noqa: ANN401 - a MonkeyPatch
        original(self)
        task = running_task()
        patches = None if task is None else _by_engine.get(task.engine)
        if task is not None and patches is not None:
            patches.undone(task, self)

    return undo
