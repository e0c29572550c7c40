"""What stands for `_semantic`, which the compiler passes to the functions of libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.running import threads

if TYPE_CHECKING:
    from simrank.kernels.machine import Options


class _Builder:
    """What a library may ask the compiler's builder for."""

    create_barrier = staticmethod(threads.sync_threads)

    @property
    def options(self) -> Options:
        """Return how the launch runs."""
        return machine.now().options

    def __getattr__(self, name: str) -> object:
        """Refuse everything else by name."""
        raise UnsupportedError(
            f"a library's function that builds with the compiler's {name} is not supported"
        )


class Semantic:
    """What a library may ask of the compiler: how the launch runs, and a barrier of threads."""

    builder = _Builder()


SEMANTIC = Semantic()
