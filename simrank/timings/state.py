"""The state of a run of a search: tasks, shared objects, and what waits for its turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.engine.choices import Act
from simrank.timings.independence import ObjectUses, object_name
from simrank.timings.places import digest_of, place_of
from simrank.timings.readings import READINGS, Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from simrank.engine import Task


@dataclass
class Known:
    """Facts that the runs of a search share.

    Attributes:
        shared: Lines at which a rank comes to objects whose order of calls can be seen.
        visible: Lines of own choices that other ranks may see the outcome of.
        states: Those that have been met, with what had been printed by then.
        contexts: Own choices that have been met, by what the rank has observed, and others show,
            with what it had printed by then.
        acts: What a rank does where others see it, by what it has observed, own choices apart.
        touches: The objects that each rank comes to.
        may_wait: Whether calls wait while others' commute with them: not once a rank has raised,
            which ends the others wherever they are.
        relies_on_uses: Whether a call has waited, or an object was left out of a state, since no
            rank was known to come to it.
    """

    shared: set[str] = field(default_factory=set)
    visible: set[str] = field(default_factory=set)
    states: dict[bytes, set[bytes]] = field(default_factory=dict)
    contexts: dict[bytes, set[bytes]] = field(default_factory=dict)
    acts: dict[tuple[object, ...], bytes] = field(default_factory=dict)
    touches: ObjectUses = field(default_factory=ObjectUses)
    may_wait: bool = True
    relies_on_uses: bool = False

    def afresh(self) -> Known:
        """Return the lines alone, for another search."""
        return Known(
            set(self.shared), set(self.visible), touches=self.touches, may_wait=self.may_wait
        )

    @property
    def num_found(self) -> int:
        """The number of facts by which runs differ in what they are."""
        return len(self.shared) + len(self.visible) + self.touches.num_found


class ChoicePoint(NamedTuple):
    """A line at which timing decides.

    Attributes:
        line: The program's line.
        what: What is decided, for reports.
    """

    line: str
    what: str


@dataclass(eq=False)
class Visit:
    """The last time that a rank was at a place since it did anything.

    Attributes:
        history: What the rank had observed.
        num_changes: Changes of the run by then.
        tried: What has happened there since.
    """

    history: tuple[bytes, bytes]
    num_changes: int = -1
    tried: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Actor:
    """The state of a task for the search.

    Attributes:
        name: Equal in all runs: number of the spawn, rank, number of the thread.
        run_number: Of its run.
        history: A hash of all that it has observed.
        done: Of all that it has done where others see it.
        printed: Of all that it has printed.
        is_script: Whether it is a process of its own: what it leaves behind, no other one sees.
        uses_device: Whether it has made work for a device, whose memory is not looked into.
        asked: What the call that it is in was given, and has found so far.
        in_flight: Its calls that have not ended, with the bytes that it gives, and the buffers that
            it gets.
        drawn: Of the state of its random numbers, and of its environment.
        shown: Like the history, without own choices that no other rank sees.
        hidden: The lines of these.
        visits: Places since it did anything.
        rounds: How often it was at a line, for the same thing, since it did anything.
        awaited_at: Lines at which it has gone on with what is there, since it did anything.
        num_acts: Acts so far.
        stage: Collectives and ends of messages so far, and acts since the last one.
        slept_ps: How long it has slept at least, if nothing else took any time.
        num_sleeps: Waits so far for what the search does not see.
        num_calls: Calls of the search.
        slept_at: Places where it slept since it did anything else.
        clock_ps: The last reading of its clock, of those that all count as equal.
        read_ps: That reading, as it was given.
    """

    name: tuple[int, int, int]
    task: Task
    run_number: int
    is_script: bool
    history: bytes = b""
    done: bytes = b""
    printed: bytes = b""
    uses_device: bool = False
    asked: Hashable = None
    in_flight: dict[Any, tuple[bytes, list[Any]]] = field(default_factory=dict)
    drawn: bytes = b""
    shown: bytes = b""
    hidden: set[str] = field(default_factory=set)
    visits: dict[Hashable, Visit] = field(default_factory=dict)
    rounds: dict[Hashable, int] = field(default_factory=dict)
    awaited_at: set[str] = field(default_factory=set)
    num_acts: int = 0
    stage: tuple[int, int] = (0, 0)
    num_sleeps: int = 0
    num_calls: int = 0
    slept_at: set[bytes] = field(default_factory=set)
    slept_ps: int = 0
    clock_ps: int = 0
    read_ps: int = 0

    def observe(self, *what: object, hidden_at: str | None = None) -> None:
        """Add an observation; `hidden_at` is the line of one that no other rank sees."""
        self.history = digest_of(self.history, *what)
        if hidden_at is None:
            self.shown = digest_of(self.shown, *what)
        else:
            self.hidden.add(hidden_at)

    def known_by(self) -> tuple[object, ...]:
        """Return the key of its state: its place, or else all its observations."""
        task, waits_for = self.task, getattr(self.task.waiting, "call", self.task.waiting)
        if task.finished and self.is_script:
            return "ended", type(task.error).__name__, str(task.error)
        is_hidden = task.finished or task.engine.shares_variables or self.uses_device
        # Which of its buffers a call will write to is not seen.
        is_hidden |= any(
            operation is not task.waiting and getattr(operation, "call", None) is not waits_for
            for operation in self.in_flight
        )
        place = None if is_hidden else place_of(task.carrier.frame, READINGS, self._reading)
        if place is None or not place.is_sure or not place.is_whole:
            return self.history, self.done
        given = sorted(given for given, _ in self.in_flight.values())
        return "at", place.digest, self.drawn, self.stage[0], given, self.asked

    def _reading(self, value: Any) -> object:  # noqa: ANN401 - a reading
        """Return the facts by which a reading is compared with later ones."""
        of = value.of
        if not isinstance(of, Moment):
            return tuple(of)
        slept = self.slept_ps / (10**3 if isinstance(value, int) else 10**12)
        return str(of.clock), self.clock_ps - of.number, round(slept - of.slept, 6), of.later

    def start_over(self) -> None:
        """Forget places: it has done something."""
        self.num_acts += 1
        self.stage = self.stage[0], self.stage[1] + 1
        self.visits.clear()
        self.rounds.clear()
        self.awaited_at.clear()

    def awaits_again(self, line: str) -> bool:
        """Note that it goes on at a line with what is there; return whether it did before."""
        is_again = line in self.awaited_at
        self.awaited_at.add(line)
        return is_again


class SharedObject:
    """A shared object, with the acts of each task.

    Attributes:
        kind: In the plural.
        name: As of `object_name`.
        actors: The tasks that did each act.
        num_writes: Writes and updates.
        lines: Where.
        changes: Of it, in their order, by task and number, with a hash of what was given.
        state: Returns its value for a look; None, or returns None: its changes stand for it.
        owner: The object itself, so that no other one gets its key.
    """

    def __init__(self, kind: str, key: Hashable, owner: object) -> None:
        self.kind = kind
        self.name = object_name(kind, key, owner)
        self.actors: dict[Act, set[tuple[int, int, int]]] = {act: set() for act in Act}
        self.num_writes = 0
        self.lines: set[str] = set()
        self.changes: list[tuple[tuple[int, int, int], int, bytes]] = []
        self.state: Callable[[], Hashable] | None = None
        self.owner: object = None

    def note(self, act: Act, actor: Actor, line: str) -> None:
        """Note that a task does something with it."""
        self.actors[act].add(actor.name)
        self.num_writes += act in (Act.WRITE, Act.UPDATE)
        self.lines.add(line)

    def shown(self) -> Hashable:
        """Return the value that a look shows, or all changes of it in order."""
        found = None if self.state is None else self.state()
        return tuple(self.changes) if found is None else found

    def is_ordered(self, related: Sequence[SharedObject]) -> bool:
        """Return whether no order of calls on it, and on what it is part of, can be seen."""
        all_ = (self, *related)
        by_act = {act: set().union(*(each.actors[act] for each in all_)) for act in Act}
        writing = by_act[Act.WRITE] | by_act[Act.UPDATE]
        looking = by_act[Act.READ] | by_act[Act.UPDATE]
        taking = by_act[Act.ACQUIRE]
        if len(writing) > 1 or len(taking) > 1:
            return False
        if writing and looking - writing:
            return False
        if taking and by_act[Act.RELEASE] - taking:  # It fails before the other has taken it.
            return False
        if sum(each.num_writes for each in all_) > 1 and by_act[Act.AWAIT] - writing:
            return False
        # A look at a lock, or a try to take it, beside those that hold it.
        holding = taking | by_act[Act.RELEASE]
        return not holding or not looking or len(holding | looking) == 1


@dataclass(eq=False)
class Waiting:
    """A task that waits for its turn, or a receive from any source.

    Attributes:
        actor: The task's.
        point: Where.
        options: Returns what may happen next with it.
        is_own: Whether it is a poll, or the like: what it sees depends on no other parked call once
            the awaited thing has happened.
        is_last: Whether it goes on only where nothing else can: what it waits for is not seen.
        shared: The object that it comes to, or None.
        act: What it does with it.
        visit: The time before, if it is in a loop.
        take: Called with what happens.
    """

    actor: Actor
    point: ChoicePoint
    options: Callable[[], list[Any]]
    take: Callable[[Any], None] = lambda _: None
    is_own: bool = False
    is_last: bool = False
    shared: SharedObject | None = None
    act: Act = Act.UPDATE
    visit: Visit | None = None

    def order(self) -> tuple[object, ...]:
        """Return the key by which parked calls are sorted: the same in all runs."""
        return (*self.actor.name, self.point)

    def possible(self, num_changes: int) -> list[Any]:
        """Return the options, without those that a loop has gone through with nothing changed."""
        options, visit = self.options(), self.visit
        if visit is None or visit.num_changes != num_changes:
            return options
        return [each for each in options if each not in visit.tried]
