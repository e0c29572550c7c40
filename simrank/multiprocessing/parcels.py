"""Values sent between ranks through queues and pipes; pickled if modules are private."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.isolation.private_modules import private_modules, reference
from simrank.multiprocessing.arguments import (
    is_immutable,
    pickle_by_reference,
    unpickle_references,
)
from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from simrank.multiprocessing.arguments import Refer

# Functions and classes of modules that the sender executed for itself are found by their names.
BY_NAME: Refer = partial(reference, frozenset())


class _Parcel(NamedTuple):
    pickled: bytes
    table: list[Any]


def packed(value: Any) -> Any:  # noqa: ANN401 - anything
    """Return a copy for `received`, as a pipe would make it."""
    return _Parcel(*pickle_by_reference(value, BY_NAME))


def sent(value: Any) -> Any:  # noqa: ANN401 - anything
    """Return a value for a queue: pickled if the sending rank has modules for itself.

    The receiver unpickles it with its own modules, and gets objects of its own classes.
    """
    program = rank_program()
    own = None if program is None else private_modules(program)
    if own is None or not own.has_any or is_immutable(value, BY_NAME):
        return value
    try:
        return packed(value)
    except RecursionError:  # As with arguments.
        return value


def received(item: Any) -> Any:  # noqa: ANN401 - a value, or a parcel
    """Return the value that `sent` was given, as the running program has it."""
    return unpickle_references(*item) if type(item) is _Parcel else item
