"""The C functions of the library, with their types and errors."""

from __future__ import annotations

import ctypes
from _thread import allocate_lock, get_ident
from functools import cache
from typing import TYPE_CHECKING

import torch

from simrank.engine.interrupts import start_thread
from simrank.torch.cuda.library import load

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_COMPILED = "Torch not compiled with CUDA enabled"  # What a CPU build of torch says.
_ERROR_ROOM = 4096

_INT, _INT64, _UINT64 = ctypes.c_int, ctypes.c_int64, ctypes.c_uint64
_POINTER, _TEXT, _WORDS = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64)
_COUNT = ctypes.POINTER(ctypes.c_int64)
_ADDRESS = ctypes.POINTER(ctypes.c_uint64)
# By name without its prefix: the result, and the arguments.
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "register": (_INT, (_TEXT, _INT64)),
    "register_c10d": (None, ()),
    "enable": (_INT, (_INT, _INT, _UINT64, _UINT64, _UINT64, _INT, _TEXT, _INT64)),
    "disable": (None, ()),
    "processors": (None, (_INT, _INT)),
    "callbacks": (None, (_POINTER,)),
    "rank_new": (_POINTER, (_INT64, _INT, _INT, _INT64)),
    "rank_free": (None, (_POINTER,)),
    "bind": (None, (_POINTER,)),
    "bind_other_threads": (None, (_POINTER,)),
    "num_devices": (_INT, ()),
    "is_initialized": (_INT, ()),
    "set_initialized": (None, (_INT,)),
    "rank_tag": (_INT64, ()),
    "first_device": (_INT, ()),
    "current_device": (_INT, ()),
    "current_stream": (_INT64, (_INT,)),
    "set_stream": (None, (_INT, _INT64)),
    "memory_stats": (_WORDS, (_INT,)),
    "memory_snapshot": (_WORDS, (_INT, _COUNT)),
    "memory_trace": (_WORDS, (_INT, _COUNT)),
    "trace_memory": (None, (_INT,)),
    "set_memory_limit": (None, (_INT, _UINT64)),
    "find_block": (_INT, (_UINT64, _ADDRESS, _ADDRESS)),
    "find_pinned": (_INT, (_UINT64, _ADDRESS, _ADDRESS)),
    "device_of": (_INT, (_UINT64,)),
    "values": (None, (_INT, _UINT64, _UINT64)),
    "are_known": (_INT, (_UINT64, _UINT64)),
    "unknown_flags": (None, (_UINT64, _UINT64, _UINT64, _POINTER)),
    "lose": (None, (_UINT64, _UINT64, _TEXT, _INT64)),
    "regain": (None, (_UINT64, _UINT64)),
    "free_base": (_UINT64, (_UINT64, _UINT64)),
    "num_live_blocks": (_INT64, ()),
    "pending_add": (None, (_UINT64, _UINT64, _INT, _INT64)),
    "pending_remove": (None, (_INT64,)),
    "pending_clear": (None, ()),
    "touch": (_INT, (_UINT64, _UINT64, _INT)),
    "record": (None, (_INT,)),
    "recorded": (_WORDS, (_COUNT,)),
    "forget_recorded": (None, ()),
    "launched": (_WORDS, (_COUNT,)),
    "phase": (_INT, ()),
    "step": (None, (_INT,)),
    "forget_launched": (None, ()),
    "form": (_WORDS, (_INT64, _COUNT)),
    "op_name": (_TEXT, (ctypes.c_int32,)),
    "graph_new": (_POINTER, ()),
    "graph_free": (None, (_POINTER,)),
    "graph_begin": (_INT, (_POINTER, _INT64)),
    "graph_end": (None, ()),
    "graph_restore": (None, (_POINTER,)),
    "graph_reset": (None, (_POINTER,)),
    "graph_size": (_INT64, (_POINTER,)),
    "is_capturing": (_INT, ()),
    "signal_pad": (_UINT64, (_UINT64,)),
    "multicast": (None, (_INT,)),
    "hold": (None, (_ADDRESS, _INT)),
    "forget_held": (None, ()),
    "watch_scopes": (None, (_INT,)),
}


@cache
def native() -> ctypes.PyDLL:
    """Return the library; load it and register it with torch at the first call."""
    _start_autograd_without_devices()
    library = load()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"simrank_{name}")
        function.restype, function.argtypes = result, arguments
    _KERNELS.impl("raise_kept", _raise_kept, "CPU")  # type: ignore[no-untyped-call]
    error = ctypes.create_string_buffer(_ERROR_ROOM)
    if library.simrank_register(error, _ERROR_ROOM):
        raise RuntimeError(error.value.decode())
    if torch.distributed.is_available():
        library.simrank_register_c10d()
    return library


def require_device() -> None:
    """Raise the error of CPU builds if this thread sees no device."""
    if not native().simrank_num_devices():
        raise AssertionError(NOT_COMPILED)


def use_device() -> None:
    """Initialise CUDA for this thread's rank.

    Raises:
        AssertionError: No device is visible to this thread.
    """
    require_device()
    native().simrank_set_initialized(1)


class Initialized:
    """The flag `torch.cuda._initialized`, of the rank that reads it."""

    def __bool__(self) -> bool:
        """Return whether this thread's rank has used a device."""
        return bool(native().simrank_is_initialized())


def call_before_use(call: Callable[[], object]) -> None:
    """Call a function that torch defers until CUDA is initialised, without initialising it.

    A seed may be set early: nothing draws before the first use.
    """
    library = native()
    before = library.simrank_is_initialized()
    try:
        call()
    finally:
        library.simrank_set_initialized(before)


def enable_devices(
    layout: tuple[int, int, int, int, int],
    *,
    fill_fresh: bool,
    value_limits: tuple[int, int] | None,
) -> None:
    """Open devices (number, number of spans, first address, span and memory of each in bytes).

    Args:
        layout: Those.
        fill_fresh: Fill fresh memory with 0xFF.
        value_limits: Bytes up to which memory has values, of any type and of integers; None: all.
    """
    native().simrank_values(value_limits is None, *(value_limits or (0, 0)))
    error = ctypes.create_string_buffer(_ERROR_ROOM)
    if native().simrank_enable(*layout, int(fill_fresh), error, _ERROR_ROOM):
        raise RuntimeError(error.value.decode().splitlines()[0])


def _start_autograd_without_devices() -> None:
    """Start autograd before devices exist: it makes a thread per device at its first backward.

    On a thread for which torch keeps nothing: the rank may be in the midst of a backward of its
    own, in inference or under a mode, or in `torch.tensor`, for which autograd is switched off.
    """
    is_running = allocate_lock()

    def run_backward() -> None:
        try:
            torch.ones((), requires_grad=True).mul(1).backward()  # type: ignore[no-untyped-call]
        finally:
            is_running.release()

    is_running.acquire()
    start_thread(run_backward, ())
    is_running.acquire()


_KERNELS = torch.library.Library("simrank_cuda", "FRAGMENT")  # type: ignore[no-untyped-call]
_kept: dict[int, BaseException] = {}


def keep(error: BaseException) -> int:
    """Keep a callback's exception for this thread; the result makes C++ return early."""
    _kept[get_ident()] = error
    return -1


def raise_kept() -> None:
    """Raise the exception that a callback raised within a call from Python."""
    raise _kept.pop(get_ident())


_when_missing: list[Callable[[], bool]] = []


def when_missing(provide: Callable[[], bool]) -> None:
    """Set the function that binds a rank to a thread that uses a device without one.

    torch itself asks for devices once in a process, at their first use.
    """
    _when_missing[:] = [provide]


def _raise_kept(reason: int) -> None:
    """Raise inside torch's C++: the exception passes through its frames."""
    if not reason and any(provide() for provide in _when_missing):
        return
    error = _kept.pop(get_ident(), None) if reason else None
    raise error or AssertionError(NOT_COMPILED)
