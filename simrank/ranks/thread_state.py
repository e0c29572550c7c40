"""State that Hypothesis keeps per thread: per rank, so that `@given` runs in several at once.

Ranks share a thread. With its own idea of what runs on that thread, Hypothesis takes a property of
one rank for nested in another's. A rank starts with none of its caller's, as a process would.
"""

from __future__ import annotations

import functools
import threading  # noqa: TID251 - asked which thread this is
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    StandIns = list[tuple[Any, str, Any]]


def of_variables(module: ModuleType) -> StandIns:
    """Return what stands for the storage of its dynamically scoped variables."""
    kind = module.__dict__["DynamicVariable"]

    def data(self: Any) -> Any:  # noqa: ANN401 - a variable and its storage
        program = rank_program()
        if program is None:
            return vars(self)["data"]
        return program.local.setdefault(f"hypothesis {id(self)}", SimpleNamespace())

    return [(kind, "data", property(data, lambda self, value: vars(self).update(data=value)))]


def of_thread_locals(module: ModuleType) -> StandIns:
    """Return what stands for the attributes of its thread-local objects."""
    kind = module.__dict__["ThreadLocal"]
    original_get: Callable[..., Any] = kind.__getattr__
    original_set: Callable[..., None] = kind.__setattr__

    @functools.wraps(original_get)
    def get(self: Any, name: str) -> Any:  # noqa: ANN401 - any attribute
        program = rank_program()
        makers = vars(self).get("_ThreadLocal__kwargs", {})
        if program is None or name not in makers:
            return original_get(self, name)
        return program.local.setdefault(f"hypothesis {id(self)} {name}", makers[name]())

    @functools.wraps(original_set)
    def put(self: Any, name: str, value: object) -> None:  # noqa: ANN401 - any attribute
        program = rank_program()
        if program is None or name not in vars(self).get("_ThreadLocal__kwargs", {}):
            original_set(self, name, value)
        else:
            program.local[f"hypothesis {id(self)} {name}"] = value

    return [(kind, "__getattr__", get), (kind, "__setattr__", put)]


class _Threading:
    """The module `threading` for whom each rank is a thread."""

    @staticmethod
    def get_ident() -> int:
        """Return a number that no other thread or rank has."""
        program = rank_program()
        return threading.get_ident() if program is None else id(program)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever is there
        """Return what the module has."""
        return getattr(threading, name)


def of_core(module: ModuleType) -> StandIns:
    """Return what stands for the module `threading` where it tells calls at the same time apart."""
    return [(module, "threading", _Threading())] if "threading" in vars(module) else []
