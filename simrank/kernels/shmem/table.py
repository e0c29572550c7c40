"""Decorators that declare the effects of library functions."""

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
    """A function of a library in the emulation.

    Attributes:
        run: What stands for it.
        effects: What it does that other programs can see.
    """

    run: Callable[..., Any]
    effects: Effects


Table = dict[str, Function]


def all_with(effects: Effects, functions: Mapping[str, Callable[..., Any]]) -> Table:
    """Return functions by name, all with the same effects."""
    return {name: Function(run, effects) for name, run in functions.items()}
