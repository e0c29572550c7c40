"""Library functions that are replaced in kernels: by module and name, by symbol.

torch's NVSHMEM and rocSHMEM bindings, and Triton-distributed's additions to Triton.

Source:
    torch 2.13, `torch/distributed/_symmetric_memory`; Triton-distributed 0.0.1,
    `triton_dist/language` and the modules that it adds to `triton.language.extra`.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.machine import Order
from simrank.kernels.memory.atomics import modify, replaced, unchanged
from simrank.kernels.running import threads
from simrank.kernels.shmem import api, distributed, teams
from simrank.kernels.shmem.api import (
    NOTHING,
    NVSHMEM,
    OF_THREADS,
    PUBLISHES,
    READS,
    ROCSHMEM,
    WAITS,
    Function,
    all_with,
)
from simrank.kernels.values import types
from simrank.kernels.values.block import Block, addresses, as_block
from simrank.kernels.values.types import int1

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.kernels.machine import Effects
    from simrank.kernels.shmem.api import Codes, Table
    from simrank.kernels.values.block import Operand


# ---- tables of SHMEM functions by name, for each binding of NVSHMEM and rocSHMEM ----
# Source:     torch 2.13, `torch/distributed/_symmetric_memory/_nvshmem_triton.py` and
# `_rocshmem_triton.py`;     Triton-distributed 0.0.1, the modules that it adds to
# `triton.language.extra`.

Functions = dict[str, "Callable[..., Any]"]
_OF_SCOPES = ("", "_block", "_warp")
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
    for suffix in _OF_SCOPES:
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


# ---- external functions that kernels call by symbol; unknown symbols raise ----

_READS = "llvm.nvvm.read.ptx.sreg."


def _number_of_threads(axis: int) -> int:
    return 1 if axis else threads.num_of_program()


SYMBOLS: dict[str, Callable[..., Any]] = {
    **{f"{_READS}tid.{axis}": threads.index_along(number) for number, axis in enumerate("xyz")},
    f"{_READS}laneid": threads.lane,
    f"{_READS}ntid.x": lambda: _number_of_threads(0),
    f"{_READS}ntid.y": lambda: _number_of_threads(1),
    f"{_READS}ntid.z": lambda: _number_of_threads(2),
}


def extern_elementwise(
    lib_name: str,
    lib_path: str,
    args: Sequence[Any],
    arg_type_symbol_dict: dict[Any, Any],
    is_pure: bool = False,
    **_: Any,
) -> Any:
    """Call an external function; see `tl.core.extern_elementwise`.

    Raises:
        UnsupportedError: The function is not emulated.
        ValueError: No overload has these argument types; the text is Triton's.
    """
    del lib_path, is_pure
    symbols = _symbols(args, arg_type_symbol_dict)
    known = next(filter(None, map(_emulation, symbols)), None)
    if known is None:
        raise UnsupportedError(
            f"the external function {' or '.join(symbols)} of library '{lib_name}' is not supported"
        )
    return known(*args)


def _emulation(symbol: str) -> Callable[..., Any] | None:
    of_library = by_symbol(symbol)
    return SYMBOLS.get(symbol) if of_library is None else of_library.run


def _symbols(args: Sequence[Any], by_types: dict[Any, Any]) -> list[str]:
    """Return the symbols of a function; with several overloads, those for the argument types."""
    symbols = list(dict.fromkeys(result[0] for result in by_types.values()))
    if len(symbols) == 1:
        return symbols
    given = tuple(as_block(arg).dtype for arg in args)
    of_these = [result[0] for types, result in by_types.items() if tuple(types) == given]
    if not of_these:
        raise ValueError(
            f"input arg type does not match. Expect one of {list(by_types)}, got {given}"
        )
    return of_these


# ---- replacements by module and name ----
# torch's NVSHMEM and rocSHMEM bindings, and Triton-distributed's additions to Triton.
#
# Source:
#     torch 2.13, `torch/distributed/_symmetric_memory`; Triton-distributed 0.0.1,
#     `triton_dist/language` and the modules that it adds to `triton.language.extra`.

_SCOPES = {"workgroup": "cta", "agent": "gpu", "system": "sys"}
_SEMS = {"acquire": "acquire", "relaxed": "relaxed", "release": "release", "acqrel": "acq_rel"}


def thread_idx(axis: Operand) -> Block:
    """Return the index of each thread along an axis."""
    return threads.index_along(int(axis))()


def _access(compute: Callable[..., Any], order: Order, *, each: bool) -> Callable[..., Block]:
    """Return a memory function that each thread calls separately.

    Args:
        compute: Returns the new value, given the old one and the operands.
        order: Memory order.
        each: Whether calls of threads with equal arguments all take effect.
    """

    def call(pointer: Block, *values: Operand) -> Block:
        total = threads.num_threads()
        operands = [as_block(value) for value in values]
        differs = any(threads.varies(block) for block in (pointer, *operands))
        if not total or not (each or differs):
            return modify(pointer, operands, None, order, compute)
        rows = np.broadcast_to(np.atleast_1d(np.asarray(addresses(pointer))), total)
        active = machine.now().active
        mask = None if active is None else Block(active, int1)
        result = modify(Block(rows, pointer.element), operands, mask, order, compute)
        return Block(threads.as_one(result.values), result.element)

    return call


def _accesses() -> Table:
    functions: Table = {}
    for name, sem in _SEMS.items():
        for level, scope in _SCOPES.items():
            order, end = Order(sem, scope), f"{name}_{level}"
            load, store = (_access(c, order, each=False) for c in (unchanged, replaced))
            add = _access(np.add, order, each=True)
            functions |= all_with(READS, {f"load_{end}": load, f"atom_add_{end}": add})
            functions |= all_with(PUBLISHES, {f"store_{end}": store, f"red_add_{end}": add})
    return functions


FUNCTIONS: Table = {
    "thread_idx": Function(thread_idx, OF_THREADS),
    "__syncthreads": Function(threads.sync_threads, NOTHING),
    "syncthreads": Function(threads.sync_threads, NOTHING),
    **_accesses(),
}

# ---- Tables ----

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
    f"{_OF_DIST}.core": all_with(
        PUBLISHES, {"extern_call": extern_elementwise, "extern_elementwise": extern_elementwise}
    ),
}
# Modules of which only these functions are replaced; the others run from source.
PARTLY: dict[str, Table] = {
    f"{_EXTRA}.cuda.language_extra": distributed.LANGUAGE_EXTRA,
    f"{_OF_DIST}.extra.cuda.language_extra": distributed.LANGUAGE_EXTRA,
    f"{_EXTRA}.hip.libdevice": FUNCTIONS,
}


def _find(function: object) -> Function | None:
    """Return the replacement of a library's function, or None."""
    module, name = _name(function)
    return TABLES.get(module, PARTLY.get(module, {})).get(name)


def _name(function: object) -> tuple[str, str]:
    return getattr(function, "__module__", None) or "", getattr(function, "__name__", "")


def effects(function: object) -> Effects | None:
    """Return the observable effects of a library's function; None for other functions."""
    known = _find(function)
    if known is None:  # An unsupported function raises when a program calls it.
        return PUBLISHES if _name(function)[0] in TABLES else None
    return known.effects


def substitute(function: object) -> Callable[..., Any] | None:
    """Return the replacement of a library's function; None for other functions.

    An unsupported function of a library raises when it is called.
    """
    known, (module, name) = _find(function), _name(function)
    if known is not None:
        return known.run
    if module not in TABLES:
        return None

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(
            f"{module}.{name} is not supported; supported are {', '.join(TABLES[module])}"
        )

    return refuse
