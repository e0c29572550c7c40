"""Modules in place of packages, which are imported once a program asks for more."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class DeferredModule(ModuleType):
    """Name of a package, with some of its attributes; any other imports the package.

    Args:
        name: Of a package that is not imported; the one that it lies in is.
        answers: Attributes that are there without it. What a program keeps of them has to work
            once the package is imported.
        parts: Modules of it that can be imported alone: those.
    """

    def __init__(
        self, name: str, answers: Mapping[str, Any], parts: Mapping[str, Callable[[], Any]]
    ) -> None:
        super().__init__(name)
        spec = find_spec(name)
        assert spec is not None, "the caller knows that it is installed"
        known = {"__spec__": spec, "__loader__": spec.loader, "__file__": spec.origin}
        vars(self).update(known, __package__=name, _parts=parts, **answers)
        self.__dict__["_answers"] = tuple(answers)

    @property
    def is_deferred(self) -> bool:
        """Whether nothing has imported the package yet."""
        return sys.modules.get(self.__name__) is self

    def put(self) -> None:
        """Put this in the package's place, until it is imported or `remove` is called."""
        parent, _, name = self.__name__.rpartition(".")
        sys.modules[self.__name__] = self
        setattr(sys.modules[parent], name, self)

    def remove(self) -> None:
        """Leave the place, if this is there still."""
        if self.is_deferred:
            parent, _, name = self.__name__.rpartition(".")
            del sys.modules[self.__name__]
            vars(sys.modules[parent]).pop(name, None)

    def package(self) -> ModuleType:
        """Import the package, and return it."""
        self.remove()
        for name in vars(self).pop("_answers", ()):
            vars(self).pop(name, None)
        return import_module(self.__name__)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value
        """Return an attribute of the package; those that any module may lack are lacking."""
        parts = vars(self).get("_parts", {})
        if self.is_deferred and name in parts:
            return parts[name]()
        if name == "__path__" and self.is_deferred and not _is_for_module():
            return self.__spec__.submodule_search_locations  # type: ignore[union-attr]
        if name.startswith("__") and name not in ("__path__", "__all__") and self.is_deferred:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.package(), name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute of the package."""
        if name == "__class__":
            super().__setattr__(name, value)
        else:
            setattr(self.package(), name, value)

    def __dir__(self) -> list[str]:
        """Return the package's names."""
        return dir(self.package())


def _is_for_module() -> bool:
    """Return whether Python asks for the path since it imports a module of the package.

    It also asks whether there is one, at `from package import name`.
    """
    code = sys._getframe(2).f_code  # noqa: SLF001 - without the cost of a stack
    return (
        code.co_filename == "<frozen importlib._bootstrap>" and code.co_name != "_handle_fromlist"
    )
