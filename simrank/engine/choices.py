"""What timing can decide, as a search decides it: the seam of `simrank run --every-timing`.

An engine with choices lets simulated time decide nothing. A rank that does what others can see, or
asks for what depends on the time, is parked; once nothing else can go on, the choices pick what
goes on, and a search makes the other picks in further runs (ADR 0094). Without choices none of this
is called.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from simrank.engine.task import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from simrank.engine.task import Handle, Task

LONG_PS = 60 * 10**12  # Assumed: a limit of a minute or more does not expire.


class Act(Enum):
    """What a call does with an object that ranks share.

    AWAIT is a read that goes on once the object is there. UPDATE is a change whose result tells
    what was there before. Locks are taken (ACQUIRE) and released.
    """

    READ = "reads"
    AWAIT = "waits for"
    WRITE = "writes"
    UPDATE = "changes"
    ACQUIRE = "takes"
    RELEASE = "releases"


class Choices(Observer, Protocol):
    """Picks what goes on; see `simrank.timings.run`."""

    def at_rest(self) -> bool:
        """Let something parked go on, since nothing else can; return whether there was anything."""

    def reach(  # noqa: PLR0913 - what the search is told
        self,
        task: Task,
        kind: str,
        key: Hashable,
        act: Act,
        *,
        is_ready: Callable[[], bool] | None = None,
        state: Callable[[], Hashable] | None = None,
        given: Hashable = None,
    ) -> None:
        """Come to a shared object: return when it is this call's turn.

        Args:
            task: The caller.
            kind: Of the object, in the plural, for reports.
            key: Tells the object from others of its kind while it lives.
            act: What the call does.
            is_ready: Whether the call can go on; None: it always can.
            state: Returns what a look at the object shows, and its name, the same in all runs.
            given: Of a change, the object's name and all that the caller gives; None: unknown.
        """

    def ask(
        self,
        task: Task,
        what: str,
        is_true: Callable[[], bool] | None,
        is_known: Callable[[], bool],
    ) -> bool:
        """Answer a poll: what has happened may be seen yet, or not.

        Args:
            task: The caller.
            what: In the user's words.
            is_true: Whether it has happened; None: it never does.
            is_known: Whether the caller is behind it: then it is seen.
        """

    def called(self, operation: Any) -> None:  # noqa: ANN401 - operations live in other layers
        """Note a rank's call on others: a collective, or one end of a message."""

    def printed(self, task: Task, text: str) -> None:
        """Note what a rank prints."""

    def failed(self, task: Task | None) -> None:
        """Note a rank that raises."""

    def limit(self, task: Task, handle: Handle, timeout_ps: int) -> bool:
        """Wait for a handle, or until a time limit; return whether it completed in time."""

    def sleep(self, task: Task, delay_ps: int) -> None:
        """Let other threads of a rank go on, that sleeps."""

    def clock_ps(self, task: Task) -> int:
        """Return the next reading of a rank's clocks, in picoseconds."""

    def clock(self, task: Task, name: str, value: float) -> float:
        """Return a reading of a clock whose comparisons are choices."""

    def compare(self, task: Task) -> bool:
        """Return the outcome of a comparison of readings of clocks: either is possible."""

    def undeclared(self, task: Task, what: str) -> None:
        """Note a poll that no choice stands for: nothing is proved."""

    def receive(
        self,
        call: Any,  # noqa: ANN401 - as above
        sources: Callable[[], Sequence[int]],
        take: Callable[[int], None],
    ) -> None:
        """Pick the source of a receive from any, once nothing else can go on.

        Args:
            call: The receiving operation.
            sources: Returns those whose message is there.
            take: Called with the source.
        """
