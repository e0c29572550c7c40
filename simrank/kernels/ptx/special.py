"""Special registers: who a lane is, and what time it is.

A snippet that reads a thread's index has a lane for each thread. Any other has one lane for the
whole thread block, or, where the elements of a block are its lanes, lanes that all are thread 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from simrank.device.memory import Storage
from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.running import threads
from simrank.units import PS_PER_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine import Programs, Statistics
    from simrank.kernels.machine.arrays import Array

_OF_THREADS: dict[str, Callable[[Array], Array]] = {
    "tid.x": lambda rows: rows,
    "laneid": lambda rows: rows % threads.warp_size(),
    "warpid": lambda rows: rows // threads.warp_size(),
}
_AXES = ("x", "y", "z")


def read(name: str, rows: Array) -> Array:
    """Return the bits of a special register, for lanes of some of the programs that run now.

    Raises:
        UnsupportedError: There is no such register here.
    """
    programs = machine.now()
    register, _, axis = name.partition(".")
    number = _AXES.index(axis) if axis in _AXES else 0
    if programs.options.num_threads:
        result = _OF_THREADS.get(name)
        if result is not None:
            return result(rows).astype(np.uint64)
        rows = np.zeros(len(rows), np.int64)
    if register == "ctaid":
        ids = np.broadcast_to(programs.axis_ids(number), (len(programs),))
        return ids.astype(np.uint64)[rows]
    if register == "smid":  # Programs are dealt to the SMs in turn.
        return (programs.ids % programs.device.spec.num_sms).astype(np.uint64)[rows]
    return np.full(len(rows), _shared(register, number), np.uint64)


def _shared(register: str, axis: int) -> int:
    programs = machine.now()
    num_warps = programs.options.num_warps
    fixed = {
        "tid": 0, "laneid": 0, "warpid": 0, "cluster_ctarank": 0, "clock_hi": 0,
        "ntid": 1 if axis else threads.num_of_program(), "nwarpid": num_warps,
        "nctaid": programs.grid[axis], "nsmid": programs.device.spec.num_sms,
    }  # fmt: skip
    if register in fixed:
        return fixed[register]
    now_ps = machine.clock_ps()
    if register in ("globaltimer", "clock64"):  # Assumed: a clock of 1 GHz.
        return int(now_ps // PS_PER_NS)
    if register in ("globaltimer_lo", "clock"):
        return int(now_ps // PS_PER_NS) & 0xFFFFFFFF
    if register == "realtime":  # AMD's: 100 MHz, see the CDNA 3 ISA, S_MEMREALTIME.
        return int(now_ps // (10 * PS_PER_NS))
    if register in _HALVES:
        return _workspace(programs).address >> _HALVES[register] & 0xFFFFFFFF
    raise UnsupportedError(f"inline assembly with %{register} is not supported")


# The driver hands the address of a grid's workspace to cooperative groups in these.
_HALVES = {"envreg1": 32, "envreg2": 0}
_WORKSPACE_BYTES = 64
_workspaces: WeakKeyDictionary[Statistics, Storage] = WeakKeyDictionary()


def _workspace(programs: Programs) -> Storage:
    """Return the workspace of a launch, zero at its start.

    Raises:
        UnsupportedError: The launch is not cooperative, so it has none.
    """
    if not programs.options.is_cooperative:
        raise UnsupportedError(
            f"kernel '{programs.kernel}' asks for the workspace of a cooperative launch\n"
            "  to fix: launch it with launch_cooperative_grid=True"
        )
    result = _workspaces.get(programs.statistics)
    if result is None:
        result = _workspaces[programs.statistics] = Storage(programs.device, _WORKSPACE_BYTES)
        result.array(np.dtype(np.uint8))[:] = 0
    return result
