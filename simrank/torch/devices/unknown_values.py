"""Values that a run without data does not have: whose they were, who lost them, who reads them.

With `data=False` torch's operations on large tensors take their time and memory and compute
nothing. Which bytes are unknown is known to C++ (`csrc/values.h`); here are the program's lines.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.memory import VALUES_UP_TO_BYTES
from simrank.engine import user_site
from simrank.engine.callsite import is_simranks
from simrank.errors import UnknownValueError
from simrank.ranks import require_program
from simrank.torch.cuda.native import native

if TYPE_CHECKING:
    from simrank.device import Device
    from simrank.engine import CallSite

INTEGERS_UP_TO_BYTES = 8 << 20  # Token ids, positions and routes steer what a program does.
_LOST_BY_OTHERS = b"a collective or a kernel"
_KINDS_OF_INTEGERS = "iub"
# How a program calls what torch's operators are named.
_READS = {
    "_local_scalar_dense": ".item()",
    "copy_": "a copy to the host",
    "index.Tensor": "an index by a mask",
    "_index_put_impl_": "an assignment by a mask",
    "_unique2": "unique",
    "repeat_interleave.Tensor": "repeat_interleave",
}


# What torch's own functions read to decide how to go on, and what they are answered: that no number
# which `trunc_normal_` has drawn lies outside of its bounds, to be drawn again.
_READ_BY_TORCH = {("torch.nn.init", "_no_grad_trunc_normal_"): 0.0}


class _Sites:
    """The program's lines by number, for C++."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self.known: list[CallSite] = []

    def number(self) -> int:
        """Return the number of the line that runs; -1: it is none of the program's."""
        site = user_site(2)
        if site is None:
            return -1
        key = (id(site.code), site.instruction)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.known)
            self.known.append(site)
        return number

    def line(self, number: int) -> str | None:
        """Return a numbered line as `file.py:line`."""
        return str(self.known[number].line()) if 0 <= number < len(self.known) else None


_sites = _Sites()
number_of_site = _sites.number
_KEY = "reads of unknown values"


def limits() -> tuple[int, int]:
    """Return the bytes up to which tensors have values, and up to which those of integers."""
    return VALUES_UP_TO_BYTES, max(INTEGERS_UP_TO_BYTES, VALUES_UP_TO_BYTES)


def fit(device: Device | None, size_bytes: int, dtype: np.dtype[Any] | None) -> bool:
    """Return whether a storage of this size can hold values of a dtype; None: of any."""
    if device is None or device.has_values:
        return True
    any_bytes, integer_bytes = limits()
    is_integer = dtype is not None and dtype.kind in _KINDS_OF_INTEGERS
    return size_bytes <= (integer_bytes if is_integer else any_bytes)


def are_known(address: int, size_bytes: int) -> bool:
    """Return whether bytes of a device hold what the program would have there."""
    if not address or not size_bytes:
        return True
    return bool(native().simrank_are_known(address, size_bytes))


def lose(address: int, size_bytes: int) -> None:
    """Mark bytes of a device as unknown: a collective or a kernel has written them."""
    if address and size_bytes:
        native().simrank_lose(address, size_bytes, _LOST_BY_OTHERS, -1)


def flags(address: int, view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for each element of a contiguous array of a device whether it is unknown."""
    found = np.zeros(view.size, np.uint8)
    pointer = found.ctypes.data
    native().simrank_unknown_flags(address, view.itemsize, view.size, pointer)
    return found


def regain(address: int, size_bytes: int) -> bool:
    """Mark bytes of a device as known: all of them are about to be written."""
    if address and size_bytes:
        native().simrank_regain(address, size_bytes)
    return True


def read(op: str, tensor: str, lost_by: str, site: int) -> float:
    """Return the value that the user has stated for a tensor without one.

    Raises:
        UnknownValueError: None was stated.
    """
    context: Any = require_program("a tensor's values").context
    reader = user_site()
    where = None if reader is None else str(reader.line())
    value = _READ_BY_TORCH.get(_caller(), context.unknown)
    if value is None:
        raise UnknownValueError(_READS.get(op, op), tensor, where, (lost_by, _sites.line(site)))
    counts: Counter[str] = context.program.local.setdefault(_KEY, Counter())
    counts[f"{_READS.get(op, op)} at {where}"] += 1
    return float(value)


def _caller() -> tuple[str, str]:
    """Return the module and the name of the function that calls torch's operator."""
    frame = sys._getframe(2)  # noqa: SLF001 - the documented way to a frame
    while frame.f_back is not None and is_simranks(frame.f_code.co_filename):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")), frame.f_code.co_name


def counted(context: Any) -> Counter[str]:
    """Return how often the stated value was read, by operation and line."""
    found: Counter[str] = context.program.local.get(_KEY, Counter())
    return found
