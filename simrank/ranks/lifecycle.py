"""Contexts that are entered: the first installs the extensions, the last removes them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from simrank.engine import collector, interrupts
from simrank.ranks.current import engines, running_task
from simrank.ranks.extensions import extensions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.engine import EngineInterface, Task

_entered_by: list[tuple[EngineInterface, Task | None]] = []  # In a rank, or in the main program.


def enter(engine: EngineInterface) -> None:
    """Note that a Context has been entered; the first installs the extensions."""
    entry = engine, running_task()
    if engines:
        _entered_by.append(entry)
        engines.append(engine)
        return
    try:
        _entered_by.append(entry)
        engines.append(engine)
        interrupts.install()  # From here on a signal waits until simrank's own code is done.
        collector.begin()
        for extension in extensions():
            extension.install()
    except BaseException:
        _entered_by.clear()
        engines.clear()
        _remove()
        raise


def leave(engine: EngineInterface) -> None:
    """Note that a Context has exited; the last removes the extensions."""
    _entered_by.reverse()
    _entered_by.remove(next(entry for entry in _entered_by if entry[0] is engine))
    _entered_by.reverse()
    # A rank that was killed has left none of its blocks.
    _entered_by[:] = [entry for entry in _entered_by if entry[1] is None or not entry[1].finished]
    engines[:] = [engine for engine, _ in _entered_by]
    if engine not in engines:
        for extension in extensions():
            extension.forget_engine(engine)
    if not engines:
        _remove()


@contextlib.contextmanager
def entered(engine: EngineInterface) -> Iterator[None]:
    """Count as entered within the block."""
    if running_task() is not None:  # Its Context is entered already, for longer than a rank lives.
        yield
        return
    enter(engine)
    try:
        yield
    finally:
        leave(engine)


def _remove() -> None:
    """Remove the extensions, the last first, even if one of them fails."""
    with contextlib.ExitStack() as stack:
        stack.callback(interrupts.restore)
        stack.callback(collector.end)
        for extension in extensions():
            stack.callback(extension.remove)
