"""Following the ranks of a run, and saying where they parted once it has failed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.engine.callsite import user_frame
from simrank.engine.report import PendingMessage
from simrank.errors import CollectiveMismatchError, Parting, Side
from simrank.trace.divergence import monitoring
from simrank.trace.divergence.monitoring import Monitoring
from simrank.trace.divergence.parting import (
    Place,
    Walk,
    elements,
    line_before,
    without_unwinding,
)
from simrank.trace.divergence.statements import text_of
from simrank.trace.divergence.swapped import Swaps
from simrank.trace.divergence.tracing import Tracing
from simrank.trace.divergence.track import (
    CALL,
    COMM,
    EXIT,
    LINE,
    Codes,
    Track,
    kind_of,
    line_of,
    number_of,
)
from simrank.trace.divergence.values import short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from simrank.distributed.group import ProcessGroup, World
    from simrank.distributed.p2p import End
    from simrank.distributed.request import Request
    from simrank.engine import Engine, Task
    from simrank.trace.divergence.statements import Statement

_MAX_PAIRS = 64  # assumed: pairs that are compared before nothing is said
_MAX_VALUES = 4
_MAX_TOLD = 256  # assumed: ranks of which it is said what they did


class _Spot(NamedTuple):
    """The line of a track where ranks parted, and the last position at which they were together."""

    line: int
    together: int


class Divergence:
    """Follows the lines of all ranks, and finds where they parted when the run fails.

    Args:
        engine: What runs them.

    Attributes:
        parting: What was found last, or None.
    """

    def __init__(self, engine: Engine) -> None:
        self.parting: Parting | None = None
        self._swaps = Swaps()
        self._engine = engine
        self._codes = Codes()
        self._tracks: dict[Task, Track] = {}
        self._worlds: dict[Task, World] = {}
        follows = Monitoring if monitoring.is_there() else Tracing
        self._tracing = follows(self._codes, self._track)

    @property
    def findings(self) -> list[str]:
        """What a user should know though nothing failed: equal calls that ranks have swapped."""
        return list(self._swaps.found.values())

    # ---- while they run ----

    def followed(self, task: Task, world: World, body: Callable[[], None]) -> Callable[[], None]:
        """Return the program of a rank, followed; where another tracer runs, it is left alone."""
        for other in [t for t in self._tracks if t.finished and self._worlds[t] is not world]:
            del self._tracks[other], self._worlds[other]

        def run() -> None:
            if not self._tracing.is_free():
                body()
                return
            self._tracks[task] = Track(task.rank or 0, self._codes)
            self._worlds[task] = world
            # Greenlets of one thread have one tracer.
            self._tracing.run(body, is_shared=task.carrier.thread_id is None)

        return run

    def _track(self) -> Track | None:
        task = self._engine.running
        return None if task is None else self._tracks.get(task)

    def collective(self, group: ProcessGroup, rank: int, request: Request) -> None:
        """Note a rank's call of a collective, before it is matched."""
        frame = user_frame()
        if frame is not None:
            self._swaps.note(group, rank, request, frame)
        track = self._running_track()
        if track is not None:
            mark = None
            if group.size() == group.world.size:
                mark = (group, group.num_calls(group.group_rank(rank)))
            track.call((group, request.signature.op), mark)

    def messages(self, group: ProcessGroup, ends: Sequence[End]) -> None:
        """Note the messages that a rank starts."""
        track = self._running_track()
        if track is None:
            return
        for end in ends:
            route = end.route
            src = None if route.src is None else int(group.ranks[route.src])
            track.call((group, src, int(group.ranks[route.dst])))

    def _running_track(self) -> Track | None:
        task = self._engine.running
        if task is None:
            return None
        return self._tracks.get(task) or self._of_rank(task)

    def _of_rank(self, task: Task) -> Track | None:
        """Return the track of the rank that a further task of it (a thread) runs for."""
        found = [t for own, t in self._tracks.items() if t.rank == task.rank and not own.finished]
        return found[-1] if found else None

    # ---- once they have failed ----

    def failed(self, task: Task | None) -> Parting | None:
        """Return where the ranks parted: one has raised, or none can go on."""
        found: Parting | None = self._tracing.without(lambda: self._found(task))
        return found  # It may be a rank itself that asked.

    def _found(self, task: Task | None) -> Parting | None:
        world = None if task is None else self._worlds.get(task)
        if task is not None and world is None:
            return None
        worlds = [world] if world is not None else list(dict.fromkeys(self._worlds.values()))
        for each in worlds:
            tracks = {t.rank: t for own, t in self._tracks.items() if self._worlds[own] is each}
            found = self._parting(tracks, task)
            if found is not None:
                self.parting = found
                return found
        return None

    def _parting(self, tracks: dict[int, Track], task: Task | None) -> Parting | None:
        if task is not None:
            track = tracks[task.rank or 0]
            track.events = without_unwinding(track.events)
            track.failed_in_call = bool(track.events) and kind_of(track.events[-1]) == COMM
        if task is None:
            pairs = _pairs_of_hang(self._engine, tracks)
        elif isinstance(task.error, CollectiveMismatchError):
            pairs = _pairs_of_mismatch(task.error)
        else:
            return self._voted(tracks, task.rank or 0)
        for tried, (ours, theirs) in enumerate(dict.fromkeys(pairs)):
            if tried >= _MAX_PAIRS:
                break
            if ours in tracks and theirs in tracks:
                spot = self._spot(tracks[ours], tracks[theirs])
                told = None if spot is None else self._told(tracks, tracks[ours], spot)
                if told is not None:
                    return told
        return None

    def _voted(self, tracks: dict[int, Track], failed: int) -> Parting | None:
        """Return where a rank that raised parted from most of the others."""
        others = [rank for rank in sorted(tracks) if rank != failed][:_MAX_PAIRS]
        spots = Counter(self._spot(tracks[failed], tracks[other]) for other in others)
        if not spots:
            return None
        ((spot, _),) = spots.most_common(1)
        return None if spot is None else self._told(tracks, tracks[failed], spot)

    def _spot(self, ours: Track, theirs: Track) -> _Spot | None:
        start = _start(ours, theirs)
        if start is None:
            return None
        place = Walk(ours, theirs, self._matters(ours.rank, theirs.rank)).parting(start)
        if place is None:
            return None
        line = line_before(ours.events, place.ours - ours.first)
        if line is None or _failed_at(ours, place.ours) or _failed_at(theirs, place.theirs):
            return None
        return _Spot(line + ours.first, place.ours)

    def _matters(self, *pair: int) -> Callable[[int], bool]:
        """Return whether a call, by its event, is one that both ranks have a part in."""
        keys, known = self._codes.keys, dict[int, bool]()

        def matters(event: int) -> bool:
            found = known.get(event)
            if found is None:
                found = known[event] = _is_between(keys[number_of(event)], pair)
            return found

        return matters

    def _told(self, tracks: dict[int, Track], ours: Track, spot: _Spot) -> Parting | None:
        """Return what each rank did at a line of a track; None where all did the same."""
        event = ours.events[spot.line - ours.first]
        code, line = self._codes.codes[number_of(event)], line_of(event)
        statement = code.statements.get(line)
        sides: dict[str, list[int]] = {}
        values: dict[int, dict[str, str]] = {}
        for rank in sorted(tracks)[:_MAX_TOLD]:
            at = spot.together
            if rank != ours.rank:
                found = self._same_place(ours, tracks[rank], spot.together)
                if found is None:
                    continue
                at = found
            did, values[rank] = _did(tracks[rank], at, statement)
            sides.setdefault(did, []).append(rank)
        if len(sides) < 2:  # They made different calls at the same line.
            return None
        told = [
            Side(tuple(ranks), did, _merged([values[rank] for rank in ranks]))
            for did, ranks in sides.items()
        ]
        if statement is None:
            return Parting(code.file, line, "", tuple(told))
        return Parting(code.file, statement.line, text_of(code.file, statement), tuple(told))

    def _same_place(self, ours: Track, theirs: Track, position: int) -> int | None:
        start = _start(ours, theirs)
        if start is None:
            return None
        return Walk(ours, theirs, lambda _: False).aligned(start, position)


def _start(ours: Track, theirs: Track) -> Place | None:
    """Return the first place from which two tracks can be compared."""
    for key, mark in ours.marks.items():
        other = theirs.marks.get(key)
        if other is not None and other.stack == mark.stack:
            return Place(mark.position, other.position)
    return None


def _failed_at(track: Track, together: int) -> bool:
    """Whether the line is that of a call which the group refused: its error tells more."""
    last, line = (
        line_before(track.events, i) for i in (len(track.events) - 1, together - track.first)
    )
    return track.failed_in_call and last == line


def _is_between(key: tuple[Any, ...], pair: tuple[int, ...]) -> bool:
    group, *ends = key
    if len(ends) == 1:  # A collective: of this operation.
        return all(group.group_rank(rank) >= 0 for rank in pair)
    return {end for end in ends if end is not None} <= set(pair)


def _pairs_of_hang(engine: Engine, tracks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield ranks that wait with those that they wait for, then all with the lowest."""
    for operation in engine.pending:
        waiting = [rank for rank, _, _ in operation.pending_ranks() if rank is not None]
        absent = [rank for rank, _ in operation.absent_ranks()]
        if isinstance(operation, PendingMessage):
            absent += [int(rank) for rank in operation.awaited_ranks()]
        yield from ((rank, other) for rank in waiting[:1] for other in absent)
    first, *others = sorted(tracks) or [0]
    yield from ((first, other) for other in others)


def _pairs_of_mismatch(error: CollectiveMismatchError) -> Iterator[tuple[int, int]]:
    first, *others = error.variants
    for variant in others:
        yield first.ranks[0], variant.ranks[0]


def _merged(values: Sequence[dict[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return what names stood for on several ranks: in their order, equal values once."""
    told = []
    for name in dict.fromkeys(name for own in values for name in own):
        texts = [own.get(name, "?") for own in values]
        shown = [texts[0]] if len(set(texts)) == 1 else texts
        more = ", ..." * (len(shown) > _MAX_VALUES)
        told.append((name, ", ".join(shown[:_MAX_VALUES]) + more))
    return tuple(told)


def _did(track: Track, together: int, statement: Statement | None) -> tuple[str, dict[str, str]]:
    """Return what a rank did after a place, and what its names stood for."""
    index = together - track.first
    line = line_before(track.events, index)
    assert line is not None, "it is where another one is"
    values = {name: short(value) for name, value in track.values.get(line + track.first, ())}
    raised = track.raised.get(line + track.first)
    return _verb(track, index, statement, raised), values


def _verb(track: Track, index: int, statement: Statement | None, raised: str | None) -> str:
    upcoming = next(elements(track.events, index + 1), None)
    until = len(track.events) if upcoming is None else upcoming.at
    has_called = any(kind_of(track.events[at]) == COMM for at in range(index + 1, until))
    if upcoming is None:
        return "waits there" if has_called or index + 1 == len(track.events) else "stayed there"
    line = line_of(upcoming.event)
    is_here = kind_of(upcoming.event) == LINE and upcoming.level == 0
    is_body = is_here and statement is not None and statement.has_in_body(line)
    if raised is not None and not is_body:
        return f"raised {raised}"
    is_over = kind_of(upcoming.event) == EXIT
    if (is_here or is_over) and statement is not None and statement.kind in _VERBS:
        return _VERBS[statement.kind][is_body]
    if is_over:
        return "returned"
    if kind_of(upcoming.event) == CALL:
        return "made a call"
    return f"went on to line {line}" + " after a call" * has_called


_VERBS = {"if": ("did not", "took it"), "loop": ("left it", "went round")}
