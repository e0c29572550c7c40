"""Errors of illegal accesses, with the kernel's line, programs, tensor and bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrank.engine import user_site
from simrank.errors import SimrankError
from simrank.kernels.machine.number_text import MAX_SHOWN, programs_text

if TYPE_CHECKING:
    from simrank.device.memory import Storage
    from simrank.kernels.machine import Programs
    from simrank.kernels.machine.arrays import Value
    from simrank.kernels.values.types import ElementType


class IllegalAccessError(SimrankError):
    """A kernel accessed memory outside of its allocations, as CUDA's illegal memory access.

    Attributes:
        address: The first illegal simulated address.
        program_ids: The programs of the access, at most eight.
    """

    def __init__(self, message: str, address: int, program_ids: tuple[int, ...]) -> None:
        super().__init__(message)
        self.address = address
        self.program_ids = program_ids


class Request:
    """An attempted access, for error messages.

    Attributes:
        index: Indices of all lanes in the storage.
        active: Lanes that are not masked off; None for all.
        verb: "load", "store" or another verb.
    """

    __slots__ = ("active", "index", "verb")

    def __init__(self, index: Value | np.generic, active: Value | None, verb: str) -> None:
        self.index = index
        self.active = active
        self.verb = verb


def outside(
    programs: Programs, storage: Storage, request: Request, element: ElementType
) -> IllegalAccessError:
    """Return the error of an access outside of a storage."""
    num_elements = storage.size_bytes // element.itemsize
    flat = np.atleast_1d(np.asarray(request.index))
    is_wrong = (flat < 0) | (flat >= num_elements)
    if request.active is not None:
        is_wrong = is_wrong & np.asarray(request.active)
    first = int(np.broadcast_to(flat, is_wrong.shape)[is_wrong][0])
    ids = programs.ids
    if is_wrong.shape[0] == len(ids):
        ids = ids[is_wrong.reshape(len(ids), -1).any(axis=1)]
    text = (
        f"{_head('illegal memory access', programs)}: {request.verb} of element {first} of "
        f"{_tensor(programs, storage, element)} with {num_elements} elements, 0 to "
        f"{num_elements - 1}{_made(storage)}; {programs_text(ids.tolist())}"
    )
    return _error(text, storage.address + first * element.itemsize, ids)


def nowhere(programs: Programs, address: int) -> IllegalAccessError:
    """Return the error of an access to an address outside of all allocations."""
    text = f"{_head('illegal memory access', programs)}: address {address:#x} is of no allocation"
    return _error(f"{text}; {programs_text(programs.ids.tolist())}", address, programs.ids)


def past_end_text(programs: Programs, storage: Storage) -> str:
    """Return the hint of a load of the padding behind a tensor."""
    name = programs.options.arguments.get(storage.address, ("",))[0]
    return (
        f"{_head('load past the end', programs)}: of {repr(name) if name else 'an allocation'}"
        f"{_made(storage)}; a GPU reads what lies there, here it is NaN or the largest integer"
    )


def check_vectors(programs: Programs, addresses: Value, element: ElementType, width: int) -> None:
    """Raise unless every address of a vector is a multiple of the vector's size.

    Raises:
        IllegalAccessError: An address is misaligned.
    """
    size_bytes = width * element.itemsize
    is_wrong = addresses % size_bytes != 0
    if is_wrong.any():
        address = int(addresses[is_wrong][0])
        text = (
            f"{_head('misaligned address', programs)}: {address:#x} is no multiple of "
            f"{size_bytes}, the size of {width} {element}; {programs_text(programs.ids.tolist())}"
        )
        raise _error(text, address, programs.ids)


def misaligned(programs: Programs, address: int, element: ElementType) -> IllegalAccessError:
    """Return the error of an address that is not aligned to its element type."""
    text = (
        f"{_head('misaligned address', programs)}: {address:#x} is no multiple of "
        f"{element.itemsize}, the size of {element}; {programs_text(programs.ids.tolist())}"
    )
    return _error(text, address, programs.ids)


def _error(text: str, address: int, ids: Value) -> IllegalAccessError:
    return IllegalAccessError(text, address, tuple(ids[:MAX_SHOWN].tolist()))


def _head(what: str, programs: Programs) -> str:
    site = user_site()
    line = "" if site is None else f" at {site.line()}"
    return f"{what} in kernel '{programs.kernel}'{line}"


def _tensor(programs: Programs, storage: Storage, element: ElementType) -> str:
    result = programs.options.arguments.get(storage.address)
    if result is None:
        return f"an allocation of {element}"
    name, shape = result
    return f"'{name}', {element}{list(shape)},"


def _made(storage: Storage) -> str:
    site = storage.site()
    return "" if site is None else f", allocated at {site.line()}"
