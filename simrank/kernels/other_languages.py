"""Kernel languages that are not emulated: simulated programs that launch them are refused."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.errors import UnsupportedError
from simrank.ranks import current_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class Entry(NamedTuple):
    """Functions through which all kernels of a language are compiled or launched.

    Attributes:
        language: Its name.
        owner: Their class; "" for the module.
        names: Names of the functions.
    """

    language: str
    owner: str
    names: tuple[str, ...]


# By module. Gluon is a part of Triton, whose launch refuses it.
ENTRIES = {
    "cuda.tile": Entry("cuTile", "", ("launch",)),
    "cutlass.base_dsl.dsl": Entry("CuTe DSL", "BaseDSL", ("_func",)),
    "tilelang.jit.kernel": Entry("TileLang", "JITKernel", ("__init__", "__call__")),
}


def not_emulated(language: str, kernel: str = "") -> UnsupportedError:
    """Return the error of a kernel in a language that is not emulated."""
    return UnsupportedError(
        f"{language} kernel{f' {kernel!r}' if kernel else ''}: not supported, only kernels in "
        "Triton's language (@triton.jit) are emulated\n"
        "  to fix: in simulated runs, call a Triton or torch implementation instead"
    )


def refuse(module: ModuleType) -> None:
    """Patch the entries of a language: in simulated programs they raise."""
    entry = ENTRIES[module.__name__]
    owner = getattr(module, entry.owner) if entry.owner else module
    for name in entry.names:
        original = getattr(owner, name)
        if not getattr(original, "is_simrank", False):
            setattr(owner, name, _refusing(original, entry.language))


def _refusing(original: Callable[..., Any], language: str) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        if current_program() is None:
            return original(*args, **kwargs)
        raise not_emulated(language)

    call.is_simrank = True  # type: ignore[attr-defined]
    return call
