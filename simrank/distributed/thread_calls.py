"""Collectives that several threads of a rank call on one group, where nothing orders them.

Members match their calls by number, so the order of two threads decides which call meets which,
and on another day the ranks differ. The engine counts such calls once a rank has a thread, and each
task knows how many of them it is behind: locks, joins, queues, polls and sleeps move it on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from simrank.device import Operation
    from simrank.distributed.group import ProcessGroup
    from simrank.engine import CallSite, Task
    from simrank.ranks import Program


_CALLS = "calls of threads"  # In `Program.local`, by group.


class _Last(NamedTuple):
    """The last call of a task on a group.

    Attributes:
        number: Its number among the calls of all tasks that have threads beside them.
        name: The operation's.
        site: Where the program called, or started the thread that did.
    """

    number: int
    name: str
    site: CallSite | None

    @property
    def text(self) -> str:
        """Return `barrier at train.py:12`."""
        name = self.name.partition(" #")[0]
        return name if self.site is None else f"{name} at {self.site.line()}"


def note_call(group: ProcessGroup, program: Program, task: Task, operation: Operation) -> None:
    """Note a call, and the first of a rank that no earlier one of another thread orders.

    Args:
        group: Whose call it is.
        program: The rank's.
        task: The rank itself, or one of its threads.
        operation: Its part of the call.
    """
    engine = task.engine
    engine.num_thread_calls += 1
    calls = program.local.setdefault(_CALLS, WeakKeyDictionary()).setdefault(group, {})
    if task not in calls:
        for other in [each for each in calls if each.finished]:
            del calls[other]
    others = [last for each, last in calls.items() if each is not task]
    calls[task] = call = _Last(engine.num_thread_calls, operation.name, _place_of(task, operation))
    unordered = next((last for last in others if last.number > task.num_calls_seen), None)
    if unordered is not None:
        leaks = group.world.comm_library.leaks
        leaks.unordered_threads(group.name, program.rank or 0, (unordered.text, call.text))


def _place_of(task: Task, operation: Operation) -> CallSite | None:
    """Return the line of a call; where a library's thread calls, that which started the thread."""
    return task.started_at if operation.issued_at is None else operation.issued_at
