"""Follows the lines of all ranks, and finds where they diverged when a run fails."""

from __future__ import annotations

import builtins
import importlib.util
import sys
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.engine.callsite import is_installed, user_frame
from simrank.engine.report import PendingMessage
from simrank.errors import CollectiveMismatchError, DivergencePoint, Side
from simrank.trace.divergence.compare import (
    Swaps,
    TrackPosition,
    Walk,
    elements,
    line_before,
    without_unwinding,
)
from simrank.trace.divergence.track import (
    CALL,
    COMM,
    EXIT,
    LINE,
    CodeNumbers,
    Track,
    kind_of,
    line_of,
    number_of,
    short,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import CodeType, FrameType

    from simrank.distributed.group import ProcessGroup, World
    from simrank.distributed.p2p import End
    from simrank.distributed.request import Request
    from simrank.engine import Engine, Task
    from simrank.trace.divergence.track import Code, Statement

_MAX_PAIRS = 64  # assumed: pairs that are compared before nothing is said
_MAX_VALUES = 4
_MAX_TOLD = 256  # assumed: ranks of which it is said what they did


class _Spot(NamedTuple):
    """The line of a track where ranks diverged, and their last common position."""

    line: int
    together: int


class Divergence:
    """Follows the lines of all ranks, and finds where they diverged when the run fails.

    Args:
        engine: What runs them.

    Attributes:
        parting: What was found last, or None.
    """

    def __init__(self, engine: Engine) -> None:
        self.diverged_at: DivergencePoint | None = None
        self._swaps = Swaps()
        self._engine = engine
        self._codes = CodeNumbers()
        self._tracks: dict[Task, Track] = {}
        self._worlds: dict[Task, World] = {}
        follows = Monitoring if is_there() else Tracing
        self._tracing = follows(self._codes, self._track)

    @property
    def findings(self) -> list[str]:
        """Findings of a run without failures: equal calls that are swapped."""
        swapped, things = self._swaps.found, self._swaps.things.found
        known = {group for group, _ in swapped}  # There the order of tensors says it already.
        others = [text for (group, _), text in things.items() if group not in known]
        return [*swapped.values(), *others]

    # ---- while they run ----

    def followed(self, task: Task, world: World, body: Callable[[], None]) -> Callable[[], None]:
        """Wrap a rank's program with the tracer, unless another tracer runs."""
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
        """Record a rank's call of a collective, before it is matched."""
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

    def failed(self, task: Task | None) -> DivergencePoint | None:
        """Return the divergence of the ranks: one has raised, or none can go on."""
        found: DivergencePoint | None = self._tracing.without(lambda: self._found(task))
        return found  # It may be a rank itself that asked.

    def _found(self, task: Task | None) -> DivergencePoint | None:
        world = None if task is None else self._worlds.get(task)
        if task is not None and world is None:
            return None
        worlds = [world] if world is not None else list(dict.fromkeys(self._worlds.values()))
        for each in worlds:
            tracks = {t.rank: t for own, t in self._tracks.items() if self._worlds[own] is each}
            found = self._parting(tracks, task)
            if found is not None:
                self.diverged_at = found
                return found
        return None

    def _parting(self, tracks: dict[int, Track], task: Task | None) -> DivergencePoint | None:
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
                reported = None if spot is None else self._reported(tracks, tracks[ours], spot)
                if reported is not None:
                    return reported
        return None

    def _voted(self, tracks: dict[int, Track], failed: int) -> DivergencePoint | None:
        """Return the line at which a rank that raised diverged from most ranks."""
        others = [rank for rank in sorted(tracks) if rank != failed][:_MAX_PAIRS]
        spots = Counter(self._spot(tracks[failed], tracks[other]) for other in others)
        if not spots:
            return None
        ((spot, _),) = spots.most_common(1)
        return None if spot is None else self._reported(tracks, tracks[failed], spot)

    def _spot(self, ours: Track, theirs: Track) -> _Spot | None:
        start = _start(ours, theirs)
        if start is None:
            return None
        place = Walk(ours, theirs, self._matters(ours.rank, theirs.rank)).diverged_at(start)
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

    def _reported(
        self, tracks: dict[int, Track], ours: Track, spot: _Spot
    ) -> DivergencePoint | None:
        """Return each rank's step at a line of a track; None if all are equal."""
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
        reported = [
            Side(tuple(ranks), did, _merged([values[rank] for rank in ranks]))
            for did, ranks in sides.items()
        ]
        if statement is None:
            return DivergencePoint(code.file, line, "", tuple(reported))
        return DivergencePoint(
            code.file, statement.line, text_of(code.file, statement), tuple(reported)
        )

    def _same_place(self, ours: Track, theirs: Track, position: int) -> int | None:
        start = _start(ours, theirs)
        if start is None:
            return None
        return Walk(ours, theirs, lambda _: False).aligned(start, position)


def _start(ours: Track, theirs: Track) -> TrackPosition | None:
    """Return the first place from which two tracks can be compared."""
    for key, mark in ours.marks.items():
        other = theirs.marks.get(key)
        if other is not None and other.stack == mark.stack:
            return TrackPosition(mark.position, other.position)
    return None


def _failed_at(track: Track, together: int) -> bool:
    """Return whether the line made a rejected call, whose error is more specific."""
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
    """Yield pairs of a waiting and an awaited rank, then each rank with the lowest."""
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
    """Return the values of names on several ranks, equal values once."""
    reported = []
    for name in dict.fromkeys(name for own in values for name in own):
        texts = [own.get(name, "?") for own in values]
        shown = [texts[0]] if len(set(texts)) == 1 else texts
        more = ", ..." * (len(shown) > _MAX_VALUES)
        reported.append((name, ", ".join(shown[:_MAX_VALUES]) + more))
    return tuple(reported)


def _did(track: Track, together: int, statement: Statement | None) -> tuple[str, dict[str, str]]:
    """Return a rank's next step after a position, and its names' values."""
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

# ---- Python 3.12's monitoring, in place of a tracer ----
# Coverage and debuggers go on beside it. It sees all threads, so that each event finds the running
# rank.
#
# Source: the reference of `sys.monitoring`, PEP 669.

_monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.11 has none.
_TOOLS = (3, 4)  # Ids that Python reserves for no tool.
_frame: Any = sys._getframe  # noqa: SLF001 - the documented way to a frame


def is_there() -> bool:
    """Return whether this Python has it."""
    return _monitoring is not None


class Monitoring:
    """Follows the frames of ranks, on all threads; as `Tracing`.

    Args:
        codes: What is followed.
        track: Returns the track of the rank that runs, or None.
    """

    def __init__(self, codes: CodeNumbers, track: Callable[[], Track | None]) -> None:
        self._codes = codes
        self._track = track
        self._tool = -1
        self._num_running = 0

    def is_free(self) -> bool:
        """Return whether a tool is left for it."""
        return self._tool >= 0 or any(_monitoring.get_tool(tool) is None for tool in _TOOLS)

    def run(self, body: Callable[[], None], *, is_shared: bool) -> None:  # noqa: ARG002 - for all
        """Call a function, with monitoring on."""
        if not self._num_running:
            self._start()
        self._num_running += 1
        try:
            body()
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._stop()

    def without(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it returns
        """Call a function: with sys.monitoring, library code is not traced."""
        return call()

    def _start(self) -> None:
        self._tool = next(tool for tool in _TOOLS if _monitoring.get_tool(tool) is None)
        _monitoring.use_tool_id(self._tool, "simrank")
        for event, call in self._calls().items():
            _monitoring.register_callback(self._tool, event, call)
        events = _monitoring.events
        everywhere = (events.PY_START, events.PY_RESUME, events.PY_THROW, events.PY_UNWIND)
        _monitoring.set_events(self._tool, sum(everywhere) | events.RAISE)
        _monitoring.restart_events()  # Those that another run has disabled.

    def _stop(self) -> None:
        _monitoring.set_events(self._tool, 0)
        for code in self._codes.known():
            _monitoring.set_local_events(self._tool, code, 0)
        for event in self._calls():
            _monitoring.register_callback(self._tool, event, None)
        _monitoring.free_tool_id(self._tool)
        self._tool = -1

    def _calls(self) -> dict[int, Callable[..., Any]]:
        events = _monitoring.events
        return {
            events.PY_START: self._begun, events.PY_RESUME: self._begun,
            events.PY_THROW: self._thrown_into, events.LINE: self._line,
            events.PY_RETURN: self._returned, events.PY_YIELD: self._returned,
            events.PY_UNWIND: self._unwound, events.RAISE: self._raised,
        }  # fmt: skip

    def _begun(self, code: CodeType, _: int) -> Any:  # noqa: ANN401 - Python's object
        own = self._codes.code(code)
        if own is None:
            return _monitoring.DISABLE
        events = _monitoring.events
        local = events.LINE | events.PY_RETURN | events.PY_YIELD
        if _monitoring.get_local_events(self._tool, code) != local:
            _monitoring.set_local_events(self._tool, code, local)
        self._begin(own)
        return None

    def _thrown_into(self, code: CodeType, _: int, __: BaseException) -> None:
        own = self._codes.code(code)
        if own is not None:
            self._begin(own)

    def _begin(self, own: Code) -> None:
        track = self._track()
        if track is not None:
            track.begin(own)

    def _within(self, code: CodeType) -> Track | None:
        """Return the running rank's track, if it has recorded the frame's begin."""
        own = self._codes.code(code)
        track = None if own is None else self._track()
        return track if own is not None and track is not None and track.is_in(own) else None

    def _line(self, code: CodeType, line: int) -> None:
        track = self._within(code)
        if track is not None:
            track.line(_frame(1), line)

    def _raised(self, code: CodeType, _: int, error: BaseException) -> None:
        track = self._within(code)
        if track is not None:
            track.raises(_frame(1), type(error))

    def _returned(self, code: CodeType, _: int, __: object) -> None:
        track = self._within(code)
        if track is not None:
            track.end(_frame(1), raised=False)

    def _unwound(self, code: CodeType, _: int, __: BaseException) -> None:
        track = self._within(code)
        if track is not None:
            track.end(_frame(1), raised=True)


# ---- Python's tracer on the threads of ranks ----
# While a thread has a tracer Python 3.11 runs all of its code slowly, also code that is not
# followed. Importing a library is hundreds of thousands of lines of that kind.


class Tracing:
    """Follows the frames that begin on the threads of ranks.

    Args:
        codes: What is followed.
        track: Returns the track of the rank that runs, or None.
    """

    def __init__(self, codes: CodeNumbers, track: Callable[[], Track | None]) -> None:
        self._codes = codes
        self._track = track
        self._enter = self._entered  # One object: each access to a method makes another.
        self._num_running = 0
        self._num_shared = 0
        self._import: Callable[..., Any] = builtins.__import__

    @property
    def _is_on(self) -> bool:
        """Whether the running thread is followed."""
        return sys.gettrace() is self._enter

    def is_free(self) -> bool:
        """Return whether no other tracer (coverage, debugger) uses this thread."""
        return self._is_on or sys.gettrace() is None

    def run(self, body: Callable[[], None], *, is_shared: bool) -> None:
        """Call a function, with the tracer on.

        Args:
            body: The function.
            is_shared: Whether others like it run on this thread: the last one turns it off.
        """
        if not self._num_running:
            self._import = builtins.__import__
            builtins.__import__ = self._imported
        self._num_running += 1
        self._num_shared += is_shared
        sys.settrace(self._enter)
        try:
            body()
        finally:
            self._num_running -= 1
            self._num_shared -= is_shared
            if not (is_shared and self._num_shared):
                sys.settrace(None)
            if not self._num_running:
                builtins.__import__ = self._import

    def _entered(self, frame: FrameType, _: str, __: object) -> Callable[..., Any] | None:
        """Record the begin or resumption of a frame; return its line tracer."""
        code = self._codes.code(frame.f_code)
        track = None if code is None else self._track()
        if code is None or track is None:
            return None
        track.begin(code)
        return _following(track, code)

    def without(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it returns
        """Call a function with the tracer off; return its result."""
        if not self._is_on:
            return call()
        sys.settrace(None)
        try:
            return call()
        finally:
            sys.settrace(self._enter)

    def _imported(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - Python's names
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:  # noqa: ANN401 - as Python's
        """Import a module, with the tracer off for libraries."""
        original = self._import
        if not self._is_on or not _is_library(_top_of(name, globals, level)):
            return original(name, globals, locals, fromlist, level)
        return self.without(lambda: original(name, globals, locals, fromlist, level))


def _top_of(name: str, names: Mapping[str, object] | None, level: int) -> str:
    if level and names is not None:
        name = str(names.get("__package__") or names.get("__name__") or "")
    return name.partition(".")[0]


@lru_cache(maxsize=1024)
def _is_library(top: str) -> bool:
    """Return whether a package is a library: installed, or Python's own."""
    if top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())]
    return any(map(is_installed, places))


def _following(track: Track, code: Code) -> Callable[..., Any]:
    """Return the line tracer of a frame.

    A generator may be closed in code that is not followed, or by another rank: the track ignores
    it.
    """

    def follow(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:  # noqa: ANN401 - Python's
        if not track.is_in(code):
            return follow
        if event == "line":
            track.line(frame, frame.f_lineno)
        elif event == "return":
            track.end(frame, raised=arg is None and track.is_raising)
        elif event == "exception":
            track.raises(frame, arg[0])
        return follow

    return follow
