"""The engine as its tasks and its parts see it; `loop.Engine` implements it.

`loop` imports every other module of this package. A module that needs the engine's type takes it
from here, so that imports run in one direction only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from contextlib import AbstractContextManager

    from greenlet import greenlet

    from simrank.engine.choices import Act
    from simrank.engine.delays import Delays
    from simrank.engine.queue import Firing, Wakeup
    from simrank.engine.task import FailureHook, Handle, Observer, Task
    from simrank.errors import DivergencePoint


class Livelock(Protocol):
    """Counts of polls; see `limits.LivelockDetector`."""

    num_limits: int
    reads_clock: bool

    def poll_on_hub(self, what: str) -> None:
        """Make the next step for a poll of the main program."""


class EngineInterface(Protocol):
    """Runs tasks in simulated time; see `loop.Engine` for every attribute and method."""

    now_ps: int
    seed: int
    progress: int
    observers: list[Observer]
    pending: dict[Any, None]
    tasks: dict[Task, None]
    notes: dict[str, None]
    remarks: dict[str, None]
    reported: set[Any]
    on_failure: list[FailureHook]
    on_hub: list[Callable[[], None]]
    has_threads: bool
    shares_variables: bool
    num_thread_calls: int
    explain_hang: Any
    turns: Any

    @property
    def hub(self) -> greenlet:
        """The greenlet that drives; parent of every task."""

    @property
    def delays(self) -> Delays | None:
        """Injected delays."""

    @property
    def choices(self) -> Choices | None:
        """The picks that replace simulated time, in a search over every timing."""

    @property
    def sees_shared(self) -> bool:
        """Whether calls on what ranks share are delayed, or choices."""

    @property
    def livelock(self) -> Livelock:
        """Counts of polls that change nothing."""

    @property
    def idle(self) -> bool:
        """Whether nothing strong is queued."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is queued."""

    @property
    def unfinished(self) -> bool:
        """Whether a task, an operation that waits for ranks, or work in flight has not ended."""

    @property
    def is_driving(self) -> bool:
        """Whether the hub is in this engine's loop."""

    @property
    def running(self) -> Task | None:
        """The task that the hub entered last; None while the hub itself runs."""

    def is_hub(self) -> bool:
        """Return whether the caller is the hub."""

    def current_task(self) -> Task | None:
        """Return the task that runs now; None on the hub."""

    def task_on(self, stack: greenlet) -> Task | None:
        """Return the task that a greenlet carries, or None."""

    def note_running(self, task: Task) -> None:
        """Note that a task has got the turn without the hub."""

    # ---- time ----

    def step(self) -> None:
        """Move the clock to the earliest wakeup and run it."""

    def run(self, until: Handle | None = None) -> None:
        """Drive until a handle completes, or until nothing is queued."""

    def call_at(
        self, time_ps: int, fire: Callable[[], None], *, weak: bool = False, lapses: bool = False
    ) -> Wakeup:
        """Queue a call at a simulated time."""

    def fire_at(self, time_ps: int, entry: Firing) -> None:
        """Queue a call that is never cancelled."""

    def cancel(self, wakeup: Wakeup) -> None:
        """Make a queued wakeup void."""

    def look_soon(self) -> None:
        """Look for a pending signal before the next wakeup."""

    def charge(self, cost_ps: int, name: str) -> int:
        """Add a cost to the current task's host clock; return the clock after it."""

    # ---- waits ----

    def wait(self, handle: Handle, timeout_ps: int | None = None) -> None:
        """Return when a handle is complete."""

    def wait_at_most(self, handle: Handle, timeout_ps: int) -> bool:
        """Wait until a handle completes or a time has passed; return whether it has."""

    def park_on(self, handle: Handle, task: Task) -> None:
        """Leave the current task for the hub until a handle completes."""

    def sleep(self, delay_ps: int) -> None:
        """Advance the task's host clock by a delay."""

    def timer(self, delay_ps: int) -> Handle:
        """Return a handle that completes after a delay."""

    def wake(self, tasks: Sequence[Task]) -> None:
        """Queue tasks at this time, or at their own host clock where that is ahead."""

    def one_wakeup(self) -> AbstractContextManager[None]:
        """Queue everything that is woken within the block as one entry."""

    def resume(self, task: Task) -> None:
        """Enter a task now; only from the hub."""

    def act_for(self, task: Task | None, action: Callable[[], Any]) -> None:
        """Call an action from the hub as if a task ran."""

    # ---- tasks ----

    def start_task(self, body: Callable[[], Any], name: str, rank: int | None = None) -> Task:
        """Start a task at this time."""

    def enrol(self, task: Task) -> None:
        """Count a task among the unfinished."""

    def retire(self, task: Task) -> None:
        """Forget a task that ended, and tell its group."""

    def park(self, task: Task) -> None:
        """Set aside for good a task that refuses to end."""

    def forget_finished(self) -> None:
        """Drop queue entries of tasks that have ended."""

    def unqueue(self, task: Task) -> None:
        """Drop a task's own entries of the queue."""

    def report_failure(self, task: Task | None) -> DivergencePoint | None:
        """Call the failure hooks for a task that raised, or for a hang; return a divergence."""

    def report_wait(self, task: Task, what: str, start_ps: int) -> None:
        """Show the observers a wait that is over now."""


class Choices(Protocol):
    """The picks of one run of a search over every timing; see `simrank.timings.run`.

    It is an `Observer`, too.
    """

    def at_rest(self) -> bool:
        """Resume a parked task, since nothing else can go on; return whether there was one."""

    def reach(  # noqa: PLR0913 - the facts that a search needs
        self,
        task: Task,
        kind: str,
        key: Hashable,
        act: Act,
        *,
        is_ready: Callable[[], bool] | None = None,
        is_vain: Callable[[], bool] | None = None,
        state: Callable[[], Hashable] | None = None,
        given: Hashable = None,
        asked: Hashable = None,
        owner: object = None,
    ) -> None:
        """Come to a shared object: return when it is this call's turn.

        Args:
            task: The caller.
            kind: Of the object, in the plural, for reports.
            key: Tells the object from others of its kind while it lives.
            act: What the call does.
            is_ready: Whether the call can go on; None: it always can.
            is_vain: Of a try to change it, whether that fails now: it is then a look.
            state: Returns what a look at the object shows, and its name, the same in all runs.
            owner: The object, which lives on as long as the run: its key stays its own.
            given: Of a change, the object's name and all that the caller gives; None: unknown. Of
                a read, what of the object is read.
            asked: What the call has found so far, if it comes to more than one object.
        """

    def ask(
        self,
        task: Task,
        what: str,
        is_true: Callable[[], bool] | None,
        is_known: Callable[[], bool],
        about: object = None,
    ) -> bool:
        """Answer a poll: what has happened may be seen yet, or not.

        Args:
            task: The caller.
            what: In the user's words.
            is_true: Whether it has happened; None: it never does.
            is_known: Whether the caller is behind it: then it is seen.
            about: The object that is polled.
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
        """Sleep: other threads of the rank may go on."""

    def clock_ps(self, task: Task) -> int:
        """Return the next reading of a rank's clocks, in picoseconds."""

    def clock(self, task: Task, name: str, value: float) -> float:
        """Return a reading of a clock whose comparisons are choices."""

    def note_text(self, text: str) -> None:
        """Note the text of a reading of a clock: lines are compared without it."""

    def compare(self, task: Task, *, outcome: bool) -> bool:
        """Return the outcome of a comparison of readings of clocks: either is possible.

        Args:
            task: The caller.
            outcome: The one of the readings as they are.
        """

    def undeclared(self, task: Task, what: str) -> None:
        """Note a poll that no choice stands for: nothing is proved."""

    def note_long_limit(self) -> None:
        """Note a wait whose long limit is taken not to expire."""

    def pass_over(self, what: str) -> None:
        """Note what the search does not follow, at the program's line: nothing is proved."""

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
