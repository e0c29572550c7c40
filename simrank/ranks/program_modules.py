"""The program's own modules: all except simrank's, installed and standard ones.

With them the defaults of private and shared packages, and a cache per module.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

from simrank.engine.callsite import attributes_of, module_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_STANDARD_LIBRARY = str(Path(contextlib.__file__).parent) + "/"
_PACKAGE = str(Path(__file__).parent.parent) + "/"
_OF_INSTALLED = ("/site-packages/", "/dist-packages/")  # The second in Debian's Python.
_own_files: dict[str, bool] = {}
# By id: a reloaded module of the same name is a different one.
_own: dict[int, weakref.ref[ModuleType]] = {}
_installed: dict[int, weakref.ref[ModuleType]] = {}


def own_modules() -> list[ModuleType]:
    """Return the program's own modules that have been imported.

    To look at every module's file takes 3 ms in a program with torch, and Contexts come and go.
    """
    modules = tuple(sys.modules.values())
    unknown = {*map(id, modules)}.difference(_installed)
    found = [m for m in modules if id(m) in unknown and m is not None]
    for module in found:
        # A script's module may get its `__file__` later.
        if id(module) not in _own and module_text(module, "__file__") is not None:
            _note(module, _own if is_programs_own(module) else _installed)
    return [module for module in found if id(module) in _own or is_programs_own(module)]


def _note(module: ModuleType, noted: dict[int, weakref.ref[ModuleType]]) -> None:
    """Note a module by its id, as long as it lives."""
    number = id(module)
    noted[number] = weakref.ref(module, lambda _: noted.pop(number, None))


def is_installed(module: ModuleType) -> bool:
    """Return whether a module belongs to an installed package."""
    file = module_text(module, "__file__")
    return file is not None and any(folder in file for folder in _OF_INSTALLED)


def is_programs_own(module: ModuleType) -> bool:
    """Return whether a module is neither simrank's nor installed nor the standard library's."""
    file = module_text(module, "__file__")
    if file is None:
        return module_text(module, "__name__") == "__main__"
    return is_programs_own_file(file)


def is_programs_own_file(file: str | None) -> bool:
    """Whether a module's file is neither simrank's nor installed nor the standard library's."""
    if file is None:
        return False
    known = _own_files.get(file)
    if known is not None:
        return known
    is_foreign = file.startswith((_STANDARD_LIBRARY, _PACKAGE))
    own = not is_foreign and not any(folder in file for folder in _OF_INSTALLED)
    _own_files[file] = own
    return own


# ---- Defaults: installed packages that each rank executes, or that all ranks share ----

# Packages that keep state of a process (its rank, device, groups) in names of modules or classes,
# or that hold classes of such a package. Ranks that shared them would all be rank 0, silently.
# Not here: datasets and evaluate, which register types with pyarrow once per process.
STATEFUL = frozenset({
    "accelerate", "colossalai", "deepspeed", "diffusers", "fairscale", "ignite", "lightning",
    "lightning_fabric", "lightning_utilities", "liger_kernel", "megatron", "mmengine", "peft",
    "pytorch_lightning", "sentence_transformers", "torchmetrics", "torchtitan", "transformers",
    "trl", "tyro", "yunchang",
})  # fmt: skip
# Packages that support ranks themselves, or have no state of a rank.
KNOWING = frozenset({"torch", "simrank", "triton", "pytest", "_pytest", "hypothesis"})

# ---- A cache per module ----

Found = TypeVar("Found")
_names_of = vars(ModuleType)["__dict__"].__get__  # Of a module of any class.


class PerModule(Generic[Found]):
    """Cached results of a function of a module; a change of the number of its names voids one.

    A `WeakKeyDictionary` would do, and take three times as long where nothing has changed.

    Args:
        look: The function; what it finds is never None.
    """

    def __init__(self, look: Callable[[ModuleType], Found]) -> None:
        self._look = look
        self._known: dict[int, tuple[ref[ModuleType], int, Found]] = {}

    def known(self, module: ModuleType) -> Found | None:
        """Return the cached result for a module, or None."""
        entry = self._known.get(id(module))
        if entry is None or entry[0]() is not module or entry[1] != len(attributes_of(module)):
            return None
        return entry[2]

    def __call__(self, module: ModuleType) -> Found:
        """Return the result for a module, cached or new."""
        found = self.known(module)
        if found is None:
            size, key = len(attributes_of(module)), id(module)
            found = self._look(module)
            self._known[key] = ref(module, partial(self._forget, key)), size, found
        return found

    def cached(self, modules: Mapping[str, object]) -> dict[str, Found]:
        """Return the cached results for modules by their names; a program with torch has 2,000."""
        found, known = {}, self._known
        for name, module in modules.items():
            entry = known.get(id(module))
            if entry is not None and entry[0]() is module and entry[1] == len(_names_of(module)):
                found[name] = entry[2]
        return found

    def _forget(self, key: int, died: ref[ModuleType]) -> None:
        if key in self._known and self._known[key][0] is died:
            del self._known[key]
