"""Functions of libraries that stand for something else in a kernel, by module and name.

torch's NVSHMEM and rocSHMEM bindings, and what Triton-distributed adds to Triton.

Source:
    torch 2.13, `torch/distributed/_symmetric_memory`; Triton-distributed 0.0.1,
    `triton_dist/language` and the modules that it adds to `triton.language.extra`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.errors import UnsupportedError
from simrank.kernels.machine import Effects
from simrank.kernels.shmem import distributed, externs, hip
from simrank.kernels.shmem.api import NVSHMEM, ROCSHMEM
from simrank.kernels.shmem.functions import COLLECTIVES, of_torch, of_triton_distributed

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.shmem.functions import Table

_EXTRA = "triton.language.extra"
_OF_DIST = "triton_dist.language"
TABLES: dict[str, Table] = {
    "torch.distributed._symmetric_memory._nvshmem_triton": of_torch(NVSHMEM) | COLLECTIVES,
    "torch.distributed._symmetric_memory._rocshmem_triton": of_torch(ROCSHMEM),
    f"{_EXTRA}.cuda.libnvshmem_device": of_triton_distributed(NVSHMEM),
    f"{_EXTRA}.hip.librocshmem_device": of_triton_distributed(ROCSHMEM),
    f"{_EXTRA}.libshmem_device": of_triton_distributed(NVSHMEM),
    f"{_OF_DIST}.extra.libshmem_device": of_triton_distributed(NVSHMEM),
    f"{_OF_DIST}.extra.cuda.libnvshmem_device": of_triton_distributed(NVSHMEM),
    f"{_OF_DIST}.distributed_ops": distributed.OPS,
    f"{_OF_DIST}.simt_ops": distributed.SIMT,
    f"{_OF_DIST}.core": externs.FUNCTIONS,
}
# Functions of which some stand for something else, and the others run from their own source.
PARTLY: dict[str, Table] = {
    f"{_EXTRA}.cuda.language_extra": distributed.LANGUAGE_EXTRA,
    f"{_OF_DIST}.extra.cuda.language_extra": distributed.LANGUAGE_EXTRA,
    f"{_EXTRA}.hip.libdevice": hip.FUNCTIONS,
}
_WAITS = ("wait", "barrier", "sync", "broadcast", "collect", "alltoall", "reduce")


def effects(function: Any) -> Effects | None:
    """Return how a library's function behaves towards other programs; None where it is none."""
    module, name = _name(function)
    if module not in TABLES and name not in PARTLY.get(module, ()):
        return None
    found = Effects()
    if name.endswith("syncthreads"):
        return found
    found.reads = name.startswith(("load_", "atom_"))
    found.publishes = True  # Also of those that only ask: who runs is known in tasks only.
    found.waits = any(part in name for part in _WAITS)
    found.threads = name in distributed.BY_THREAD
    return found


def _name(function: Any) -> tuple[str, str]:
    return getattr(function, "__module__", None) or "", getattr(function, "__name__", "")


def substitute(function: Any) -> Callable[..., Any] | None:
    """Return what stands for a library's function in a kernel; None where it is none.

    One that is not done here is refused by name when it is called.
    """
    module, name = _name(function)
    if module not in TABLES:
        return PARTLY.get(module, {}).get(name)
    table = TABLES[module]
    if name in table:
        return table[name]

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(
            f"{module}.{name} is not supported; supported are {', '.join(table)}"
        )

    return refuse
