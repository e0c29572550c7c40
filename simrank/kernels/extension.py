"""The extension that runs Triton kernels: where kernels take part in Contexts.

Modules of this package are imported as a Context needs them: most programs launch no kernel.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from simrank.isolation.import_hooks import ImportWatcher
from simrank.ranks.extensions import Extension

# Modules of triton that are changed as soon as a program imports them, see `hook.INSTALLERS`.
_CHANGED = dict.fromkeys(
    ("triton.runtime.autotuner", "triton.runtime.jit", "triton.runtime.driver", "triton.testing")
)


class KernelExtension(Extension):
    """Lets Triton's launches, benchmarks and autotuners ask for the running simulated program."""

    def install(self) -> None:
        """Change triton now, or as soon as a program imports it; it stays between Contexts."""
        _late.watch()

    def remove(self) -> None:
        """Give triton its own driver back."""
        if _is_changed:
            _hook().restore_driver()

    def take_algorithms(self, algorithms: dict[str, Any]) -> dict[str, Any]:
        """Remove the collectives that are Triton kernels, and return them loaded."""
        if not any(hasattr(how, "keys") for how in algorithms.values()):
            return {}
        kernels: dict[str, Any] = import_module("simrank.kernels.algorithms").kernels_of(algorithms)
        for collective in kernels:
            del algorithms[collective]
        return kernels

    def make_context(self, context: Any) -> None:  # noqa: ANN401 - the Context lives above
        """Let the race checker of a Context compare the accesses of its kernels."""
        if context.race_checker is not None:
            import_module("simrank.kernels.races.operations").accesses_of(context.race_checker)


_is_changed: set[str] = set()


def _hook() -> Any:  # noqa: ANN401 - a module
    return import_module("simrank.kernels.hook")


def _change(module: Any, is_late: bool) -> None:  # noqa: ANN401 - of triton
    del is_late
    _is_changed.add(module.__name__)
    _hook().INSTALLERS[module.__name__](module)


_late = ImportWatcher(_CHANGED, _change)
