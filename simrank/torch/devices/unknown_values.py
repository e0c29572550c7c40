"""Unknown values of torch tensors in runs without data, with the lines that lose them.

With `data=False` torch's operations on large tensors take their time and memory and compute
nothing. Which bytes are unknown is known to C++ (`csrc/values.h`); here are the program's lines.
"""

from __future__ import annotations

import faulthandler
import functools
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from simrank.device.memory import INTEGERS_UP_TO_BYTES, VALUES_UP_TO_BYTES
from simrank.engine import user_site
from simrank.engine.callsite import is_simranks
from simrank.errors import UnknownValueError
from simrank.ranks import require_program
from simrank.ranks.current import rank_program
from simrank.torch.cuda.library import native, operators
from simrank.torch.cuda.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device import Device
    from simrank.engine import CallSite
    from simrank.isolation.ledger import Ledger

_STDERR = 2  # Its file: `sys.stderr` may be a program's own.
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
# drawn by trunc_normal_ lies outside of its bounds, to be drawn again; that no gradient is
# infinite.
_READ_BY_TORCH = {
    ("torch.nn.init", "_no_grad_trunc_normal_"): 0.0,
    ("torch.amp.grad_scaler", "<genexpr>"): 0.0,
}


class _Sites:
    """The program's lines by number, for C++."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self.known: list[CallSite] = []

    def number(self) -> int:
        """Return the number of the line that runs; -1: it is not the program's."""
        site = user_site(2)
        if site is None:
            return -1
        key = (id(site.code), site.instruction)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.known)
            self.known.append(site)
        return number

    def forget(self) -> None:
        """Forget all lines, which keep the program's code alive."""
        self._numbers.clear()
        self.known.clear()

    def line(self, number: int) -> str | None:
        """Return a numbered line as `file.py:line`."""
        return str(self.known[number].line()) if 0 <= number < len(self.known) else None


_sites = _Sites()
lacking: list[bool] = []  # Not empty while devices lack values.
number_of_site = _sites.number
_TOLIST = ".tolist()"
KEY = "reads of unknown values"


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
    if not lacking or not address or not size_bytes:
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


# As C++ calls what says whether numbers are finite: a run without values breaks none.
_VERDICTS = {"whether numbers are broken": 0.0, "whether numbers are finite": 1.0}


def read(op: str, tensor: str, lost_by: str, site: int) -> float:
    """Return the value that the user has stated for a tensor without one.

    Whether numbers are NaN or infinite is answered: they are not.

    Raises:
        UnknownValueError: None was stated.
    """
    if lost_by in _VERDICTS:
        return _VERDICTS[lost_by]
    context: Any = require_program("a tensor's values").context
    reader = user_site()
    where = None if reader is None else str(reader.line())
    value = _READ_BY_TORCH.get(_caller(), context.unknown.of_line(where))
    if value is None:
        what = tensor.replace("c10::", "")
        raise UnknownValueError(_READS.get(op, op), what, where, (lost_by, _sites.line(site)))
    context.engine.remarks.pop(_not_read(where), None)
    count(context, f"{value:g} instead of an unknown value: {_READS.get(op, op)} at {where}")
    return float(value)


def _not_read(line: str | None) -> str:
    return f"no unknown value was read at {line}, for which --unknown states one"


def count(context: Any, reading: str, key: str = KEY) -> None:
    """Count a reading, for the summary of the run."""
    counts: Counter[str] = context.program.local.setdefault(key, Counter())
    verb, remarks = "read " if key == KEY else "", context.engine.remarks
    remarks.pop(f"{verb}{reading}, {counts[reading]} times", None)
    counts[reading] += 1
    remarks[f"{verb}{reading}, {counts[reading]} times"] = None


def _caller() -> tuple[str, str]:
    """Return the module and the name of the function that calls torch's operator."""
    frame = sys._getframe(2)  # noqa: SLF001 - the documented way to a frame
    while frame.f_back is not None and is_simranks(frame.f_code.co_filename):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")), frame.f_code.co_name


def assume(tensor: torch.Tensor, value: torch.Tensor | float) -> None:
    """State the values of a tensor in a run without data, such as a router's or a loss.

    With data it does nothing, so that a program can say it once and run both ways.

    Simulated cost: none.

    Args:
        tensor: On a device or on the host; all its elements are known from now on.
        value: A number for all elements, or a tensor that broadcasts to its shape.
    """
    program = rank_program()
    context: Any = None if program is None else program.context
    if context is None or context.has_values:
        return
    operators.assume(tensor.detach(), torch.as_tensor(value))


def guard(patches: Ledger) -> None:
    """Wrap torch's functions that read memory without an operator: they check values first.

    Without it they would end the program: such memory is not mapped. So does native code that is
    none of torch's; then faulthandler shows the line.
    """
    patches.replace(Switch(_set_lacking), "is_on", True)
    if not faulthandler.is_enabled():
        patches.replace(Switch(_show_crashes), "is_on", True)
    tensor: Any = torch.Tensor
    for name in ("numpy", "tolist", "__array__", "__dlpack__"):
        patches.replace(tensor, name, _checked(getattr(tensor, name), f".{name}()"))
    storage: Any = torch.UntypedStorage
    for name in ("__getitem__", "tolist", "_write_file"):
        patches.replace(storage, name, _checked(getattr(storage, name), f"a storage's {name}"))
    patches.replace(Switch(_note_stated), "is_on", True)


def _note_stated(is_on: bool) -> None:
    """Say which lines with a stated value have not read it yet."""
    context: Any = require_program("a run without values").context if is_on else None
    for line in () if context is None else context.unknown.at:
        context.engine.remarks[_not_read(line)] = None


def _set_lacking(is_lacking: bool) -> None:
    lacking[:] = [True] if is_lacking else []
    if not is_lacking:
        _sites.forget()


def _show_crashes(on: bool) -> None:
    if on:
        faulthandler.enable(_STDERR)
    else:
        faulthandler.disable()


def _checked(original: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if what == _TOLIST and self.device.type == "cuda":
            self = self.cpu()
        if self.device.type == "cpu":
            _check(self, what)
        return original(self, *args, **kwargs)

    return call


def _check(read_from: Any, what: str) -> None:
    """Give a tensor or a storage of the host that lacks values the stated one.

    Raises:
        UnknownValueError: None was stated.
    """
    with torch.no_grad():
        if isinstance(read_from, torch.UntypedStorage):
            view = torch.empty(0, dtype=torch.uint8).set_(read_from)
        elif type(read_from) in (torch.Tensor, torch.nn.Parameter) and _has_bytes(read_from):
            view = read_from.detach()
        else:
            return
        if not operators.is_known(view):
            operators.assume(view, torch.tensor(operators.stated_value(view, what)))


def _has_bytes(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def counted(context: Any) -> Counter[str]:
    """Return the number of readings of stated values, by value, operation and line."""
    found: Counter[str] = context.program.local.get(KEY, Counter())
    return found
