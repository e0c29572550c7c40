"""The functions of SHMEM libraries by name: NVSHMEM's and rocSHMEM's, as each binding has them.

Source:
    torch 2.13, `torch/distributed/_symmetric_memory/_nvshmem_triton.py` and `_rocshmem_triton.py`;
    Triton-distributed 0.0.1, the modules that it adds to `triton.language.extra`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from simrank.kernels.shmem import api, distributed, teams
from simrank.kernels.shmem.api import NVSHMEM, ROCSHMEM
from simrank.kernels.values import types

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.shmem.api import Codes

Table = dict[str, "Callable[..., Any]"]
_SCOPES = ("", "_block", "_warp")


def _common(codes: Codes) -> Table:
    return {
        "signal_wait_until": api.wait_until(codes, types.uint64),
        "signal_op": api.signal_op(codes),
        "fence": api.fence,
        "quiet": api.fence,
        "my_pe": api.my_pe,
        "n_pes": api.n_pes,
        "barrier_all": teams.barrier_all,
        "sync_all": teams.barrier_all,
    }


def of_torch(codes: Codes) -> Table:
    """Return the functions of torch's binding of a library."""
    return {
        **_common(codes),
        "put": api.put,
        "get": api.get,
        "get_nbi": api.get,
        "putmem_block": partial(api.putmem, scope="block"),
        "getmem_block": partial(api.getmem, scope="block"),
        "putmem_signal_block": api.putmem_signal(codes, "block"),
        "wait_until": api.wait_until(codes, types.int32),
    }


COLLECTIVES: Table = {
    "broadcast": teams.broadcast,
    "alltoall": teams.alltoall,
    "reduce": teams.reduce,
}


def of_triton_distributed(codes: Codes) -> Table:
    """Return the functions of Triton-distributed's binding of a library."""
    found: Table = {
        **_common(codes),
        "int_p": api.p,
        "remote_ptr": api.remote_ptr,
        "remote_mc_ptr": distributed.remote_mc_ptr,
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
            found[f"getmem{middle}{suffix}"] = partial(api.getmem, scope=scope)
            for kind in ("", "_rma"):
                end = f"{kind}{middle}{suffix}"
                found[f"putmem{end}"] = partial(api.putmem, scope=scope)
                found[f"putmem_signal{end}"] = api.putmem_signal(codes, scope)
    return found


_OF_HEADERS = {"nvshmemx_": NVSHMEM, "nvshmem_": NVSHMEM, "rocshmem_": ROCSHMEM}


def by_symbol(symbol: str) -> Callable[..., Any] | None:
    """Return what stands for a function of NVSHMEM or rocSHMEM by its name in C, or None."""
    prefix = next((known for known in _OF_HEADERS if symbol.startswith(known)), None)
    if prefix is None:
        return None
    codes, name = _OF_HEADERS[prefix], symbol.removeprefix(prefix)
    extra: Table = {
        "ptr": api.remote_ptr,
        "mc_ptr": distributed.remote_mc_ptr,
        "int_wait_until": api.wait_until(codes, types.int32),
        "long_wait_until": api.wait_until(codes, types.int64),
        "longlong_wait_until": api.wait_until(codes, types.int64),
        "uint64_wait_until": api.wait_until(codes, types.uint64),
    }
    return {**of_triton_distributed(codes), **extra}.get(name)
