"""Functions of libraries that stand for something else in a kernel, by module and name.

torch's NVSHMEM and rocSHMEM bindings, and what Triton-distributed adds to Triton.

Source:
    torch 2.13, `torch/distributed/_symmetric_memory/_nvshmem_triton.py` and `_rocshmem_triton.py`;
    Triton-distributed 0.0.1, `triton_dist/language` and the modules that it adds to
    `triton.language.extra`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from simrank.errors import UnsupportedError
from simrank.kernels import distributed_language, hip_language, shmem, teams, types
from simrank.kernels.shmem import NVSHMEM, ROCSHMEM
from simrank.kernels.waits import Conduct

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.shmem import Codes

Table = dict[str, "Callable[..., Any]"]
_SCOPES = ("", "_block", "_warp")


def _common(codes: Codes) -> Table:
    return {
        "signal_wait_until": shmem.wait_until(codes, types.uint64),
        "signal_op": shmem.signal_op(codes),
        "fence": shmem.fence,
        "quiet": shmem.fence,
        "my_pe": shmem.my_pe,
        "n_pes": shmem.n_pes,
        "barrier_all": teams.barrier_all,
        "sync_all": teams.barrier_all,
    }


def _of_torch(codes: Codes) -> Table:
    return {
        **_common(codes),
        "put": shmem.put,
        "get": shmem.get,
        "get_nbi": shmem.get,
        "putmem_block": partial(shmem.putmem, scope="block"),
        "getmem_block": partial(shmem.getmem, scope="block"),
        "putmem_signal_block": shmem.putmem_signal(codes, "block"),
        "wait_until": shmem.wait_until(codes, types.int32),
    }


_COLLECTIVES: Table = {
    "broadcast": teams.broadcast,
    "alltoall": teams.alltoall,
    "reduce": teams.reduce,
}


def _of_triton_distributed(codes: Codes) -> Table:
    found: Table = {
        **_common(codes),
        "int_p": shmem.p,
        "remote_ptr": shmem.remote_ptr,
        "remote_mc_ptr": distributed_language.remote_mc_ptr,
        "team_my_pe": teams.team_my_pe,
        "team_n_pes": teams.team_n_pes,
        "team_translate_pe": teams.team_translate_pe,
        "sync": teams.barrier,
    }
    for suffix in _SCOPES:
        scope = suffix[1:] or "thread"
        found |= {
            f"barrier{suffix}": teams.barrier,
            f"barrier_all{suffix}": teams.barrier_all,
            f"sync_all{suffix}": teams.barrier_all,
            f"team_sync{suffix}": teams.barrier,
            f"broadcastmem{suffix}": teams.broadcastmem,
            f"broadcast{suffix}": teams.broadcast,
            f"fcollectmem{suffix}": teams.fcollectmem,
            f"fcollect{suffix}": teams.fcollect,
        }
        for middle in ("", "_nbi"):
            found[f"getmem{middle}{suffix}"] = partial(shmem.getmem, scope=scope)
            for kind in ("", "_rma"):
                end = f"{kind}{middle}{suffix}"
                found[f"putmem{end}"] = partial(shmem.putmem, scope=scope)
                found[f"putmem_signal{end}"] = shmem.putmem_signal(codes, scope)
    return found


_EXTRA = "triton.language.extra"
_OF_DIST = "triton_dist.language"
TABLES: dict[str, Table] = {
    "torch.distributed._symmetric_memory._nvshmem_triton": _of_torch(NVSHMEM) | _COLLECTIVES,
    "torch.distributed._symmetric_memory._rocshmem_triton": _of_torch(ROCSHMEM),
    f"{_EXTRA}.cuda.libnvshmem_device": _of_triton_distributed(NVSHMEM),
    f"{_EXTRA}.hip.librocshmem_device": _of_triton_distributed(ROCSHMEM),
    f"{_EXTRA}.libshmem_device": _of_triton_distributed(NVSHMEM),
    f"{_OF_DIST}.extra.libshmem_device": _of_triton_distributed(NVSHMEM),
    f"{_OF_DIST}.extra.cuda.libnvshmem_device": _of_triton_distributed(NVSHMEM),
    f"{_OF_DIST}.distributed_ops": distributed_language.OPS,
    f"{_OF_DIST}.simt_ops": distributed_language.SIMT,
    f"{_OF_DIST}.core": distributed_language.CORE,
}
# Functions of which some stand for something else, and the others run from their own source.
PARTLY: dict[str, Table] = {
    f"{_EXTRA}.cuda.language_extra": distributed_language.LANGUAGE_EXTRA,
    f"{_OF_DIST}.extra.cuda.language_extra": distributed_language.LANGUAGE_EXTRA,
    f"{_EXTRA}.hip.libdevice": hip_language.FUNCTIONS,
}
_OF_HEADERS = {"nvshmemx_": NVSHMEM, "nvshmem_": NVSHMEM, "rocshmem_": ROCSHMEM}


def by_symbol(symbol: str) -> Callable[..., Any] | None:
    """Return what stands for a function of NVSHMEM or rocSHMEM by its name in C, or None."""
    prefix = next((known for known in _OF_HEADERS if symbol.startswith(known)), None)
    if prefix is None:
        return None
    codes, name = _OF_HEADERS[prefix], symbol.removeprefix(prefix)
    extra: Table = {
        "ptr": shmem.remote_ptr,
        "mc_ptr": distributed_language.remote_mc_ptr,
        "int_wait_until": shmem.wait_until(codes, types.int32),
        "long_wait_until": shmem.wait_until(codes, types.int64),
        "longlong_wait_until": shmem.wait_until(codes, types.int64),
        "uint64_wait_until": shmem.wait_until(codes, types.uint64),
    }
    return {**_of_triton_distributed(codes), **extra}.get(name)


_WAITS = ("wait", "barrier", "sync", "broadcast", "collect", "alltoall", "reduce")


def conduct(function: Any) -> Conduct | None:
    """Return how a library's function behaves towards other programs; None where it is none."""
    module, name = _name(function)
    if module not in TABLES and name not in PARTLY.get(module, ()):
        return None
    found = Conduct()
    if name.endswith("syncthreads"):
        return found
    found.reads = name.startswith(("load_", "atom_"))
    found.publishes = True  # Also of those that only ask: who runs is known in tasks only.
    found.waits = any(part in name for part in _WAITS)
    found.threads = name in distributed_language.BY_THREAD
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
