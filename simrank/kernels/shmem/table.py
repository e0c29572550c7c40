"""Tables of library functions with their observable effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.kernels.machine import Effects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PUBLISHES = Effects(publishes=True)
WAITS = Effects(publishes=True, waits=True)
READS = Effects(publishes=True, reads=True)
OF_THREADS = Effects(publishes=True, threads=True)
NOTHING = Effects()


class Function(NamedTuple):
    """An emulated library function.

    Attributes:
        run: The replacement.
        effects: Effects that other programs can observe.
    """

    run: Callable[..., Any]
    effects: Effects


Table = dict[str, Function]


def all_with(effects: Effects, functions: Mapping[str, Callable[..., Any]]) -> Table:
    """Return a table of functions with equal effects."""
    return {name: Function(run, effects) for name, run in functions.items()}
