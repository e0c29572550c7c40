"""The end of a command's process, without the part that takes over a second beside torch.

Python ends in this order: it waits for threads, calls functions that were registered with `atexit`,
flushes the streams, and then clears thousands of modules, classes and functions one by one. The
last part only frees memory, as the kernel does at once, unless a finalizer waits in it: a
`__del__`, a file that is still open, a generator that was stopped in the middle. `end` looks for
those.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
from contextlib import suppress
from types import GeneratorType
from typing import Any

from simrank.ranks.program_modules import is_programs_own_file

_NOT_FLUSHED = 120  # Python's own status.


def end(status: int) -> None:
    """End this process with a status, or return where Python's own end has something to do.

    Args:
        status: Of the process: 0 to 255.
    """
    if _is_watched():
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if _has_finalizers():
        return
    if not _flush():
        status = _NOT_FLUSHED
    ctypes.CDLL(None).fflush(None)
    os._exit(status & 0xFF)


def _is_watched() -> bool:
    """Return whether a profiler, a debugger or a search for leaks sees the process to its end."""
    monitoring: Any = getattr(sys, "monitoring", None)
    tools = () if monitoring is None else map(monitoring.get_tool, range(6))
    return bool(
        sys.getprofile()
        or sys.gettrace()
        or any(tools)
        or gc.get_debug()
        or sys.flags.inspect
        or sys.flags.interactive
        or sys.flags.dev_mode
        or os.environ.get("PYTHONINSPECT")
    )


def _has_finalizers() -> bool:
    """Return whether an object that lives on has something to do at its end."""
    gc.unfreeze()
    objects = gc.get_objects()
    with_finalizer = {kind for kind in set(map(type, objects)) if hasattr(kind, "__del__")}
    wanted = with_finalizer | {GeneratorType}
    standard = {id(each) for each in _standard_streams()}
    return any(
        _is_pending(each) for each in objects if type(each) in wanted and id(each) not in standard
    )


def _standard_streams() -> list[Any]:
    """Return the standard streams and what they stand on, which are flushed and stay open."""
    found: list[Any] = []
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    for stream in streams:
        each: Any = stream
        while each is not None and all(each is not known for known in found):
            found.append(each)
            each = getattr(each, "buffer", None) or getattr(each, "raw", None)
    return found


def _is_pending(value: Any) -> bool:  # noqa: ANN401 - any object
    if isinstance(value, GeneratorType):
        return value.gi_frame is not None and is_programs_own_file(value.gi_code.co_filename)
    of = type(value).__module__
    if of == "_io":
        return not value.closed and value.writable()
    return not of.startswith("simrank.")  # Our streams stand on the standard ones.


def _flush() -> bool:
    """Flush the standard streams; return whether all could be."""
    is_done = True
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except (OSError, ValueError):  # A pipe without a reader, a full disk.
            is_done = False
            with suppress(OSError, ValueError):
                stream.close()
    return is_done
