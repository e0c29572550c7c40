"""Settings of torch per process, swapped at each rank's turns.

A rank's values are put in place as its turn begins and taken back as it ends. Turns cost nothing
until a rank changes a setting, and once it has restored the common value.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from contextlib import contextmanager
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from simrank.isolation.torch_settings import Setting, globals_of, settings
from simrank.ranks.current import rank_program
from simrank.torch import optimizer_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from simrank.ranks import Program

    Patches = list[tuple[Any, str, Any]]

_KEY = "torch's settings"


def of_globals(module: ModuleType) -> Patches:
    """Return patches that give each rank the globals that functions of a module set."""
    found = globals_of(module, re.compile(""))
    # A function may wait between its call and the change.
    return _noting_all(setting._replace(is_same=lambda *_: False) for setting in found)


class RankSettings:
    """The settings of one rank, and the common values that they replace."""

    def __init__(self) -> None:
        self._own: dict[Hashable, tuple[Setting, Any]] = {}
        self._others: dict[Hashable, Any] = {}

    def touch(self, key: Hashable, setting: Setting) -> None:
        """Record that the rank is about to change a setting."""
        if key not in self._own:
            self._others[key] = setting.get()
            self._own[key] = setting, None
            if setting.fresh is not None:
                setting.put(setting.fresh())

    def values(self) -> Iterator[object]:
        """Yield the rank's settings, in its turn, with their names."""
        for setting, _ in self._own.values():
            yield setting.names, setting.get()

    def enter(self) -> None:
        """Put the rank's settings in place."""
        for key, (setting, value) in self._own.items():
            self._others[key] = setting.get()
            setting.put(value)

    def leave(self) -> None:
        """Restore the common settings."""
        for key, (setting, _) in [*self._own.items()]:
            value, common = setting.get(), self._others[key]
            if setting.fresh is None and setting.is_same(value, common):
                del self._own[key]
            else:
                self._own[key] = setting, value
                setting.put(common)


def settings_of(program: Program) -> RankSettings:
    """Return the settings of a rank, made at first use."""
    own: RankSettings | None = program.local.get(_KEY)
    if own is None:
        own = program.local[_KEY] = RankSettings()
    return own


def patches() -> Patches:
    """Return patches of the functions that change settings."""
    wrapped = {id(getattr(owner, name)): new for owner, name, new in _noting_all(settings())}
    wrapped |= _interop_threads() | _debug_level_from_env()
    return [
        (owner, name, wrapped[id(value)])
        for owner, name, value in _bound()
        if type(value) in (FunctionType, BuiltinFunctionType) and id(value) in wrapped
    ]


def _noting_all(found: Iterable[Setting]) -> Patches:
    """Return the patches of functions that change settings, each of which may change several."""
    patched: dict[tuple[Any, str], Any] = {}
    for setting in found:
        for name in setting.names:
            place = setting.owner, name
            function = patched.get(place) or getattr(*place)
            patched[place] = noting(function, setting.key or setting.names, setting)
    return [(*place, function) for place, function in patched.items()]


def _interop_threads() -> dict[int, Any]:
    """Return patches of the number that a process may set once: a rank may, too, once."""
    get, put, key = torch.get_num_interop_threads, torch.set_num_interop_threads, "interop threads"

    @functools.wraps(get)
    def get_own() -> int:
        program = rank_program()
        number: int = get() if program is None else program.local.get(key, get())
        return number

    @functools.wraps(put)
    def put_own(number: int) -> None:
        program = rank_program()
        if program is None:
            put(number)
        elif key in program.local:
            raise RuntimeError(
                "Error: cannot set number of interop threads after parallel work has started or "
                "set_num_interop_threads called"
            )
        else:
            program.local[key] = number

    return {id(get): get_own, id(put): put_own}


def _debug_level_from_env() -> dict[int, Any]:
    """Return a patch that reads the rank's environment, where C++ reads the process's."""
    original, name = torch.distributed.set_debug_level_from_env, "TORCH_DISTRIBUTED_DEBUG"

    @functools.wraps(original)
    def from_env() -> None:
        level = getattr(torch.distributed.DebugLevel, os.environ.get(name, "OFF").upper(), None)
        if rank_program() is None:
            original()
        elif level is None:
            raise ValueError(f"The value of {name} must be OFF, INFO, or DETAIL.")
        else:
            torch.distributed.set_debug_level(level)

    return {id(original): from_env}


def _bound() -> Iterator[tuple[Any, str, Any]]:
    """Yield the functions of torch's modules, and those that properties of modules keep."""
    for module_name, module in sys.modules.copy().items():
        if module_name.partition(".")[0] != "torch" or not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            yield module, name, value
        for attribute in list(vars(type(module)).values()):
            if hasattr(attribute, "setter"):  # Of modules of `torch.backends`.
                yield attribute, "setter", attribute.setter


def noting(original: Any, key: Hashable, setting: Setting) -> Any:
    """Wrap a function or context manager: record that the rank changes a setting."""
    if isinstance(original, type):  # A context manager: its construction says so.

        class Noting(original):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                _note(key, setting)
                super().__init__(*args, **kwargs)

        functools.update_wrapper(Noting, original, updated=())
        return Noting

    if inspect.isgeneratorfunction(inspect.unwrap(original)):

        @contextmanager
        @functools.wraps(original)
        def block(*args: Any, **kwargs: Any) -> Iterator[Any]:
            _note(key, setting)
            with original(*args, **kwargs) as value:
                yield value

        return block

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        _note(key, setting)
        return original(*args, **kwargs)

    return call


def _note(key: Hashable, setting: Setting) -> None:
    program = rank_program()
    if program is not None:
        settings_of(program).touch(key, setting)


# ---- hooks of all modules and optimizers ----

_HOOKS = -1  # A number that no entry of `settings` has.


class _NotingDict(dict[Any, Any]):
    """A dict of hooks that records the adding rank."""

    def __init__(self, hooks: dict[Any, Any], note: Callable[[], None]) -> None:
        super().__init__(hooks)
        self._note = note

    def __setitem__(self, key: Any, hook: Any) -> None:
        self._note()
        super().__setitem__(key, hook)


def hook_patches() -> Patches:
    """Return patches that limit hooks of all modules to the rank that registers them."""
    modules: Any = import_module("torch.nn.modules.module")
    optimizers: Any = import_module("torch.optim.optimizer")
    found = [
        (owner, name)
        for owner in (modules, optimizers)
        for name, value in vars(owner).items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]

    def get() -> tuple[Any, ...]:
        hooks = [dict(getattr(owner, name)) for owner, name in found]
        return modules._global_is_full_backward_hook, *hooks

    def put(state: tuple[Any, ...]) -> None:
        modules._global_is_full_backward_hook, *hooks = state
        for (owner, name), content in zip(found, hooks, strict=True):
            getattr(owner, name).clear()
            getattr(owner, name).update(content)

    note = functools.partial(_note, _HOOKS, Setting(modules, (), get, put))
    replaced: Patches = []
    for owner, name in found:
        hooks = dict(getattr(owner, name))
        if name == "_global_optimizer_pre_hooks":
            hooks[optimizer_steps.HOOK] = optimizer_steps.before_step
        if name == "_global_optimizer_post_hooks":
            hooks[optimizer_steps.HOOK] = optimizer_steps.after_step
        replaced.append((owner, name, _NotingDict(hooks, note)))
    return replaced
