"""Tables of SHMEM functions by name, for each binding of NVSHMEM and rocSHMEM.

Source:
    torch 2.13, `torch/distributed/_symmetric_memory/_nvshmem_triton.py` and `_rocshmem_triton.py`;
    Triton-distributed 0.0.1, the modules that it adds to `triton.language.extra`.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from simrank.kernels.shmem import api, distributed, teams
from simrank.kernels.shmem.api import NVSHMEM, ROCSHMEM
from simrank.kernels.shmem.table import NOTHING, PUBLISHES, WAITS, all_with
from simrank.kernels.values import types

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.shmem.api import Codes
    from simrank.kernels.shmem.table import Function, Table

Functions = dict[str, "Callable[..., Any]"]
_SCOPES = ("", "_block", "_warp")
_OF_HEADERS = {"nvshmemx_": NVSHMEM, "nvshmem_": NVSHMEM, "rocshmem_": ROCSHMEM}


def _common(codes: Codes) -> Table:
    asks: Functions = {"my_pe": api.my_pe, "n_pes": api.n_pes}
    publishes: Functions = {
        "signal_op": api.signal_op(codes),
        "fence": api.fence,
        "quiet": api.fence,
    }
    waits: Functions = {
        "signal_wait_until": api.wait_until(codes, types.uint64),
        "barrier_all": teams.barrier_all,
        "sync_all": teams.barrier_all,
    }
    return all_with(NOTHING, asks) | all_with(PUBLISHES, publishes) | all_with(WAITS, waits)


def of_torch(codes: Codes) -> Table:
    """Return the functions of torch's binding of a library."""
    puts: Functions = {
        "put": api.put,
        "get": api.get,
        "get_nbi": api.get,
        "putmem_block": partial(api.putmem, scope="block"),
        "getmem_block": partial(api.getmem, scope="block"),
        "putmem_signal_block": api.putmem_signal(codes, "block"),
    }
    waits = {"wait_until": api.wait_until(codes, types.int32)}
    return _common(codes) | all_with(PUBLISHES, puts) | all_with(WAITS, waits)


COLLECTIVES: Table = all_with(
    WAITS, {"broadcast": teams.broadcast, "alltoall": teams.alltoall, "reduce": teams.reduce}
)


def of_triton_distributed(codes: Codes) -> Table:
    """Return the functions of Triton-distributed's binding of a library."""
    reaches: Functions = {
        "int_p": api.p,
        "remote_ptr": api.remote_ptr,
        "remote_mc_ptr": distributed.remote_mc_ptr,
    }
    asks: Functions = {
        "team_my_pe": teams.team_my_pe,
        "team_n_pes": teams.team_n_pes,
        "team_translate_pe": teams.team_translate_pe,
    }
    functions = _common(codes) | all_with(PUBLISHES, reaches) | all_with(NOTHING, asks)
    functions |= all_with(WAITS, {"sync": teams.barrier})
    for suffix in _SCOPES:
        functions |= _of_teams(suffix) | _of_bytes(codes, suffix)
    return functions


def _of_teams(suffix: str) -> Table:
    """Return the barriers and collectives with the name suffix of one scope."""
    together: Functions = {
        "barrier": teams.barrier,
        "barrier_all": teams.barrier_all,
        "sync_all": teams.barrier_all,
        "team_sync": teams.barrier,
        "broadcastmem": teams.broadcastmem,
        "broadcast": teams.broadcast,
        "fcollectmem": teams.fcollectmem,
        "fcollect": teams.fcollect,
    }
    return all_with(WAITS, {f"{name}{suffix}": run for name, run in together.items()})


def _of_bytes(codes: Codes, suffix: str) -> Table:
    """Return the puts and gets of bytes with the name suffix of one scope."""
    functions: Functions = {}
    scope = suffix[1:] or "thread"
    for middle in ("", "_nbi"):
        functions[f"getmem{middle}{suffix}"] = partial(api.getmem, scope=scope)
        for kind in ("", "_rma"):
            end = f"{kind}{middle}{suffix}"
            functions[f"putmem{end}"] = partial(api.putmem, scope=scope)
            functions[f"putmem_signal{end}"] = api.putmem_signal(codes, scope)
    return all_with(PUBLISHES, functions)


@cache
def _by_name_in_c(codes: Codes) -> Table:
    asks = {"ptr": api.remote_ptr, "mc_ptr": distributed.remote_mc_ptr}
    waits: Functions = {
        f"{kind}_wait_until": api.wait_until(codes, element)
        for kind, element in (
            ("int", types.int32), ("long", types.int64), ("longlong", types.int64),
            ("uint64", types.uint64),
        )
    }  # fmt: skip
    return of_triton_distributed(codes) | all_with(PUBLISHES, asks) | all_with(WAITS, waits)


def by_symbol(symbol: str) -> Function | None:
    """Return a function of NVSHMEM or rocSHMEM by its C name, or None."""
    prefix = next((known for known in _OF_HEADERS if symbol.startswith(known)), None)
    if prefix is None:
        return None
    return _by_name_in_c(_OF_HEADERS[prefix]).get(symbol.removeprefix(prefix))
