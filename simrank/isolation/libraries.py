"""Libraries with state per process or native thread, and their adapters for ranks.

The layer that knows a library registers it here under its import name. Nothing is imported before
the program has imported the library itself.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from simrank.errors import UnsupportedError
from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from simrank.engine.task import Turn
    from simrank.ranks.current import Program


class RankState(Protocol):
    """State of a library for one rank.

    Attributes:
        turn: What follows the rank's turns: process-wide state that is swapped with them.
    """

    @property
    def turn(self) -> Turn:
        """See above."""

    def begin(self) -> None:
        """Prepare a native thread of the rank; called on it, before its program."""

    def end(self) -> None:
        """Give back what the thread holds; called on it, after its program."""


class Library(NamedTuple):
    """A library that needs a stack of its own for each rank: an OS thread.

    Attributes:
        patches: Returns what to replace in it while a Context is entered: owner, name, patch.
        state_of: Makes the state of a rank.
    """

    patches: Callable[[ModuleType], list[tuple[Any, str, Any]]]
    state_of: Callable[[Program], RankState]


_libraries: dict[str, Callable[[], Library]] = {}
_parts: dict[str, Callable[[ModuleType], list[tuple[Any, str, Any]]]] = {}


def register(name: str, load: Callable[[], Library]) -> None:
    """Register the adapter of a library, which loads once a program imports the library."""
    _libraries[name] = load


def register_part(name: str, patches: Callable[[ModuleType], list[tuple[Any, str, Any]]]) -> None:
    """Register the patches of a module that a program may import: of a library, say."""
    _parts[name] = patches


def names() -> list[str]:
    """Return the import names of the registered libraries."""
    return [*_libraries]


def patched_modules() -> list[str]:
    """Return the registered libraries, and the modules that `register_part` has named."""
    return [*_libraries, *_parts]


def patches(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return the patches of an imported library, or of a part of one."""
    if module.__name__ in _parts:
        return _parts[module.__name__](module)
    _check_package(module.__name__)
    return _libraries[module.__name__]().patches(module)


def _check_package(name: str) -> None:
    """Raise where a file of the program hides a library: `torch.py` beside a script, say.

    Raises:
        UnsupportedError: It does.
    """
    module = sys.modules[name]
    if not hasattr(module, "__path__"):
        file = getattr(module, "__file__", None) or f"a module named {name}"
        raise UnsupportedError(
            f"`import {name}` finds {file}, which hides the installed package {name}\n"
            f"  to fix: rename {file}"
        )


def check_import(name: str) -> None:
    """Reject the first import of a library in a rank that a greenlet carries.

    Raises:
        UnsupportedError: Such a rank imports a registered library.
    """
    if name in _libraries:
        _check_carrier(f"imports {name}", name)


def check_use(name: str) -> None:
    """Reject the use of a library in a rank that a greenlet carries.

    Raises:
        UnsupportedError: Such a rank uses the library.
    """
    _check_carrier(f"uses {name}", name)


def _check_carrier(act: str, name: str) -> None:
    task = running_task()
    if task is not None and task.carrier.thread_id is None:
        raise UnsupportedError(
            f"{task.name} {act}, and its carrier is a greenlet: {name} keeps state per "
            f"native thread\n  to fix: import {name} in the module of the ranks' function, or let "
            'the carrier be a thread: Context(carrier="thread"), `simrank run --carrier thread`'
        )


def in_use() -> list[Library]:
    """Return the libraries that the program has imported."""
    found = [name for name in _libraries if name in sys.modules]
    for name in found:
        _check_package(name)
    return [_libraries[name]() for name in found]


_STATES = "states of libraries"  # In `Program.local`.


def begin_thread(program: Program) -> list[Callable[[], None]]:
    """Make what the running thread of a rank needs; return what is to be called at its end."""
    states: Sequence[RankState] = program.local.get(_STATES, ())
    for state in states:
        state.begin()
    return [state.end for state in reversed(states)]


class Turns:
    """Several that follow the turns of one rank; the last to enter leaves first."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self._reversed = list(reversed(turns))

    def enter(self) -> None:
        """The rank goes on."""
        for turn in self._turns:
            turn.enter()

    def leave(self) -> None:
        """Others may run."""
        for turn in self._reversed:
            turn.leave()


def keep_states_of_process(
    program: Program, state: RankState | None, other: RankState | None
) -> Turn | None:
    """Give a process of a rank its own states, with one of them replaced."""
    assert program.process_of is not None, "a process"
    of_rank: Sequence[RankState] = program.process_of.local.get(_STATES, ())
    new = [library.state_of(program) for library in in_use()]
    states = [*new, *of_rank[len(new) :]]
    if state is not None and other is not None:
        states = [other if each is state else each for each in states]
    return keep_states(program, states)


def keep_states(program: Program, states: Sequence[RankState]) -> Turn | None:
    """Attach states to a rank; return the hooks of its turns."""
    program.local[_STATES] = states
    if len(states) < 2:
        return states[0].turn if states else None
    return Turns([state.turn for state in states])
