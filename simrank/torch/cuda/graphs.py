"""`torch.cuda.CUDAGraph`: torch's own class over the base that CPU torch lacks.

A capture computes its operations as it goes, and a replay computes them again on the same memory.
"""

from __future__ import annotations

import weakref
from itertools import count

import torch

from simrank.torch.cuda.native import native

_pools = count(1)


def graph_pool_handle() -> tuple[int, int]:
    """Return the name of a new memory pool, which graphs may share."""
    return (0, next(_pools))


class GraphBase:
    """Stands for `torch._C._CUDAGraph`."""

    def __new__(cls, keep_graph: bool = False) -> GraphBase:
        """Make an empty graph."""
        made = super().__new__(cls)
        made._handle = native().simrank_graph_new()
        # Drops what was captured, with its memory; torch's class has a __del__ that calls no other.
        weakref.finalize(made, native().simrank_graph_free, made._handle).atexit = False
        made._pool = graph_pool_handle()
        made._keeps = keep_graph
        return made

    _handle: int
    _pool: tuple[int, int]
    _keeps: bool

    def capture_begin(
        self,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "global",  # noqa: ARG002 - torch's signature.
    ) -> None:
        """Capture what this rank launches from now on."""
        self._pool = pool or self._pool
        if native().simrank_graph_begin(self._handle):
            raise RuntimeError("CUDA error: a graph is being captured already")

    def capture_end(self) -> None:
        """End the capture."""
        if not native().simrank_is_capturing():
            raise RuntimeError("capture_end without capture_begin")
        native().simrank_graph_end()

    def instantiate(self) -> None:
        """Do nothing: a graph can be replayed as soon as it is captured."""

    def replay(self) -> None:
        """Compute everything again, on the current stream."""
        torch.ops.simrank_cuda.replay(self._handle)

    def reset(self) -> None:
        """Forget what was captured."""
        native().simrank_graph_reset(self._handle)

    def pool(self) -> tuple[int, int]:
        """Return the name of the graph's memory pool."""
        return self._pool

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Accept it: every replay draws anew from its generators, whether registered or not."""

    def enable_debug_mode(self) -> None:
        """Do nothing: there is no driver that would have something to say."""

    def debug_dump(self, debug_path: str) -> None:
        """Write how many operations the graph has."""
        with open(debug_path, "w") as file:
            file.write(
                f"digraph {{ // {native().simrank_graph_size(self._handle)} operations\n}}\n"
            )


def is_capturing() -> bool:
    """Return whether this rank captures a graph."""
    return bool(native().simrank_is_capturing())
