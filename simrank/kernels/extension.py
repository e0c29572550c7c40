"""The extension that runs Triton kernels: patches of triton, and its part in Contexts.

Triton's `JITFunction.run`, benchmark functions and autotuners ask whether a simulated program runs
(K1); while a Context is entered, triton's active driver is a simulated one. Patches are applied as
a program imports triton, and modules of this package are imported with the first launch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from simrank.isolation.ledger import Ledger
from simrank.isolation.libraries import ImportWatcher
from simrank.kernels import other_languages
from simrank.ranks import current_program
from simrank.ranks.current import engines
from simrank.ranks.extensions import Extension

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_driver = Ledger(__name__)  # Triton's active driver, while a Context is entered.


def restore_driver() -> None:
    """Restore triton's own driver after the last Context, and forget the kernels of ranks."""
    _driver.restore()
    _forget_kernels()


def _forget_kernels() -> None:
    """Remove kernels of private modules from triton's registry, which would keep their globals."""
    jit: Any = sys.modules.get("triton.runtime.jit")
    known: dict[str, Any] = getattr(jit, "_triton_jit_function_registry", {})
    for name, kernel in [*known.items()]:
        if kernel.fn.__globals__ is not getattr(sys.modules.get(kernel.module), "__dict__", None):
            del known[name]


def _install_launch(module: ModuleType) -> None:
    """Patch `JITFunction.run`: launches of simulated programs are simulated."""
    owner: Any = module
    original = owner.JITFunction.run
    if getattr(original, "is_simrank", False):
        return

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        from simrank.kernels.launch import run_jit  # noqa: PLC0415 - it needs triton whole

        return run_jit(self, original, *args, **kwargs)

    run.is_simrank = True  # type: ignore[attr-defined]
    owner.JITFunction.run = run


def _install_bench(module: ModuleType) -> None:
    """Patch `do_bench`: calls of simulated programs are timed in simulated time."""
    owner: Any = module
    original = owner.do_bench
    if getattr(original, "is_simrank", False):
        return

    def do_bench(*args: Any, **kwargs: Any) -> Any:
        from simrank.kernels.compiler.driver import do_bench as simulated  # noqa: PLC0415 - it needs triton

        return (original if current_program() is None else simulated)(*args, **kwargs)

    do_bench.is_simrank = True  # type: ignore[attr-defined]
    do_bench.__doc__ = original.__doc__
    owner.do_bench = do_bench
    _install_graph_bench(owner)


def _install_graph_bench(owner: Any) -> None:
    """Patch `do_bench_cudagraph`: capture two calls, not thousands, as simulated times repeat."""
    original = owner.do_bench_cudagraph

    def do_bench_cudagraph(
        fn: Callable[[], Any], rep: float = 20, *args: Any, **kwargs: Any
    ) -> Any:
        if current_program() is None:
            return original(fn, rep, *args, **kwargs)

        def twice() -> None:
            fn()
            fn()

        # Without its own launch, which many calls share, a graph takes what the second call adds.
        one, two = (original(each, 0, *args, **kwargs) for each in (fn, twice))
        if isinstance(one, list):
            return [after - before for before, after in zip(one, two, strict=True)]
        return two - one

    do_bench_cudagraph.__doc__ = original.__doc__
    owner.do_bench_cudagraph = do_bench_cudagraph


def _install_tuners(module: ModuleType) -> None:
    """Patch autotuners: each program keeps its own results."""
    from simrank.kernels import tuning  # noqa: PLC0415 - it needs triton

    owner: Any = module
    tuning.install(owner.Autotuner)


def _install_driver(module: ModuleType) -> None:
    """Make the simulated driver triton's active one, while a Context is entered."""
    if engines and not _driver.entries:
        from simrank.kernels.compiler.driver import SimulatedDriver  # noqa: PLC0415 - it needs triton

        owner: Any = module
        # The attribute: to ask for the driver may look for a GPU, and None has no setter.
        _driver.replace(owner.driver, "_active", SimulatedDriver())


# Patches by module of triton, and of languages that are not emulated.
INSTALLERS: dict[str, Callable[[ModuleType], None]] = {
    **dict.fromkeys(other_languages.ENTRIES, other_languages.refuse),
    "triton.runtime.autotuner": _install_tuners,
    "triton.runtime.jit": _install_launch,
    "triton.runtime.driver": _install_driver,
    "triton.testing": _install_bench,
}


def _install(module: ModuleType, is_late: bool) -> None:
    del is_late
    _patched.add(module.__name__)
    INSTALLERS[module.__name__](module)


_patched: set[str] = set()
_watcher = ImportWatcher(INSTALLERS, _install)


class KernelExtension(Extension):
    """Patches of triton, and the kernels among the algorithms of a Context."""

    def install(self) -> None:
        """Patch triton now or at its import; the patches stay between Contexts."""
        _watcher.watch()

    def remove(self) -> None:
        """Restore triton's own driver, and look at imports no longer."""
        _watcher.stop()
        if _patched:
            restore_driver()

    def take_algorithms(self, algorithms: dict[str, Any]) -> dict[str, Any]:
        """Remove the collectives that are Triton kernels, and return them loaded."""
        if not any(hasattr(how, "keys") for how in algorithms.values()):
            return {}
        kernels: dict[str, Any] = import_module("simrank.kernels.algorithms").kernels_of(algorithms)
        for collective in kernels:
            del algorithms[collective]
        return kernels

    def make_context(self, context: Any) -> None:
        """Register access checks of kernels with a Context's race checker."""
        checker = context.race_checker
        if checker is not None and not checker.is_limited:  # A limited one ends with a launch.
            import_module("simrank.kernels.races.operations").accesses_of(checker)
