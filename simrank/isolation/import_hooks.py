"""Import hooks: patches of modules that are applied when a program imports them."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class ImportWatcher(MetaPathFinder):
    """Calls `install` for modules that are imported while it is on `sys.meta_path`.

    Args:
        names: Which ones.
        install: Called with each, as soon as it is there, and with whether that was late.
        check: Called with a name before anything of the module is executed; it may raise.
    """

    def __init__(
        self,
        names: Mapping[str, object],
        install: Callable[[ModuleType, bool], None],
        check: Callable[[str], None] | None = None,
    ) -> None:
        self._names, self._install, self._check = names, install, check
        self._awaited: set[str] = set()
        self._is_asking = False

    def watch(self, more: Sequence[str] = ()) -> None:
        """Install what is there, and wait for the rest and for `more`."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._awaited = {*self._names, *more}
        for name in (*self._names, *more):
            if name in sys.modules:
                self._install(sys.modules[name], False)

    def stop(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with the installation after its execution."""
        del path, target
        if fullname not in self._awaited or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return spec
        if self._check is not None:
            self._check(fullname)
        spec.loader = _Then(spec.loader, self._installed)
        return spec

    def _installed(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            self._install(module, True)


class _Then(Loader):
    """Loads a module as its own loader does, which others may share, and then calls `then`."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:  # noqa: ANN401 - a loader
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Execute it, and leave its own loader in its place."""
        assert module.__spec__ is not None, "it has been found"
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value
        """Return an attribute of the module's own loader."""
        return getattr(self._loader, name)
