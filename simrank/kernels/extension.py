"""The extension that runs Triton kernels: where kernels take part in Contexts."""

from __future__ import annotations

from typing import Any

from simrank.kernels import hook
from simrank.kernels.algorithms import kernels_of
from simrank.kernels.races.operations import accesses_of
from simrank.ranks.lifecycle import Extension


class KernelExtension(Extension):
    """Lets Triton's launches, benchmarks and autotuners ask for the running simulated program."""

    def install(self) -> None:
        """Change triton now, or as soon as a program imports it."""
        hook.watch()

    def remove(self) -> None:
        """Give triton its own driver back."""
        hook.restore_driver()

    def take_algorithms(self, algorithms: dict[str, Any]) -> dict[str, Any]:
        """Remove the collectives that are Triton kernels, and return them loaded."""
        kernels = kernels_of(algorithms)
        for collective in kernels:
            del algorithms[collective]
        return kernels

    def make_context(self, context: Any) -> None:  # noqa: ANN401 - the Context lives above
        """Let the race checker of a Context compare the accesses of its kernels."""
        if context.race_checker is not None:
            accesses_of(context.race_checker)
