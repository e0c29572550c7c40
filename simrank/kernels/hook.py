"""The one place where triton is changed: a launch asks whether a simulated program runs (K1).

`watch` is called when a Context is entered. It costs nothing where triton is never imported.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_TARGET = "triton.runtime.jit"


def watch() -> None:
    """Install the launch of simulated kernels, now or when triton is imported."""
    if _TARGET in sys.modules:
        install(sys.modules[_TARGET])
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


def install(jit_module: ModuleType) -> None:
    """Let `JITFunction.run` ask whether a simulated program runs; once."""
    owner: Any = jit_module.JITFunction
    original = owner.run
    if getattr(original, "is_simrank", False):
        return

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        from simrank.kernels.launch import run_jit  # noqa: PLC0415 - it needs triton whole

        return run_jit(self, original, *args, **kwargs)

    run.is_simrank = True  # type: ignore[attr-defined]
    owner.run = run


class _Watcher(MetaPathFinder):
    """Waits for the import of triton's launch code, and steps aside."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return triton's own spec, with the installation after its execution."""
        del path, target
        if fullname != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            install(module)

        loader.exec_module = exec_module
        return spec
