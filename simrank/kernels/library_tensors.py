"""Tensors of another library, such as torch, as arguments of kernels.

A library that computes at once, as torch does eagerly, is given kernels in the same way: numbers
are there as the launch returns, and the stream gets what they cost.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np

    from simrank.device import Operation, Tensor
    from simrank.device.memory import Storage


class Library(Protocol):
    """The part of another library in launches of the running program."""

    @property
    def namespace(self) -> Any:  # noqa: ANN401 - a module
        """Return a namespace with `Event`, `synchronize` and `current_device`, as torch.cuda."""

    def prepare(self) -> None:
        """Issue pending operations, and make the library's device and stream current."""

    def launched(
        self,
        launch: Callable[[tuple[Any, ...], dict[str, Any]], object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Record a launch for the graph that is captured, if any."""

    def tensor(self, value: object) -> Tensor | None:
        """Return a tensor of the library as simrank's over the same bytes, or None."""

    def values(self, value: object) -> np.ndarray[Any, Any] | None:
        """Return a copy of the values of a tensor of the library, or None."""

    def phase(self) -> str:
        """Return the phase of a training step in which the program is, or an empty string."""

    def settle(self, reads: Sequence[Storage], writes: Sequence[Storage]) -> None:
        """Wait for operations in flight that use the memory of a kernel."""

    def in_flight(
        self, operation: Operation, reads: Sequence[Storage], writes: Sequence[Storage]
    ) -> None:
        """Make the library's operations wait for a kernel that did not run at its launch."""

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return the library's function of floats, on numpy arrays; None if it has none."""

    def current_device(self) -> int:
        """Return the library's number of the current device."""

    def current_stream(self, device: int) -> int:
        """Return the library's number of a device's current stream."""

    def device(self) -> Any:  # noqa: ANN401 - the library's own type
        """Return the current device as the library has it."""


class Finder(Protocol):
    """Finder of the library whose devices the running program uses."""

    def running(self) -> Library | None:
        """Return the running program's part of the library, or None."""

    def asked_by_user(self) -> Library | None:
        """Return the part of the library for a query before any tensor, or None."""

    def of_values(self, values: Iterable[object]) -> Library | None:
        """Return the part of the library if one of the values is its tensor on a device."""


class Given(NamedTuple):
    """The arguments of a launch, with the library's tensors as simrank's."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


_finders: list[Finder] = []


def register(finder: Finder) -> None:
    """Register a finder."""
    if finder not in _finders:
        _finders.append(finder)


def running(values: Iterable[object] = ()) -> Library | None:
    """Return the library whose devices the running program uses; None: simrank's own.

    Args:
        values: Arguments; a program may first use its devices by a tensor of an earlier one.
    """
    for finder in _finders:
        library = finder.running() or finder.of_values(values)
        if library is not None:
            return library
    return None


def asked_by_user() -> Library | None:
    """Return the library that the calling module uses, or None."""
    for finder in _finders:
        library = finder.asked_by_user()
        if library is not None:
            return library
    return None


def converted(library: Library, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
    """Return arguments with the library's tensors as simrank's, also in containers."""
    return Given(
        tuple(_converted(library, value) for value in args),
        {name: _converted(library, value) for name, value in kwargs.items()},
    )


def _converted(library: Library, value: Any) -> Any:  # noqa: ANN401 - anything
    found = library.tensor(value)
    if found is not None:
        return found
    if isinstance(value, tuple | list):
        parts = [_converted(library, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    base = getattr(value, "base", None)  # Of descriptors, and `triton.reinterpret`.
    converted = None if base is None else _converted(library, base)
    if converted is base:
        return value
    result = copy.copy(value)
    result.base = converted
    return result
