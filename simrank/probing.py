"""Finds ranks of a program that do the same, so that some of them can represent the others.

A probe runs some ranks alone until the end of their second training step: the other members of
their groups come to each collective at once. The groups that rank 0 calls on give the axes of the
layout. Probes of ranks that differ along one axis are compared: their operations, one by one, the
most memory that they held, and when they ended. Numbers of ranks record how the program compares
them (`simrank.ranks.comparisons`): of each class of ranks that it tells apart one is in a probe.
After the run, classes that it has told apart are compared once more, to the end of the program.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf, prod
from time import process_time
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from simrank.errors import (
    ConfigError,
    ConfigProblem,
    FoldingError,
    SimrankError,
    SpawnException,
    ranks_text,
    who_text,
)
from simrank.ranks import require_rank
from simrank.ranks.comparisons import Comparisons
from simrank.ranks.folding import Alone, FoldedAxis, Folding, LayoutAxis, layout_of
from simrank.units import PS_PER_US, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from simrank.context import Context
    from simrank.device import Operation
    from simrank.distributed.group import ProcessGroup, World
    from simrank.distributed.request import Request
    from simrank.engine import CallSite, Task
    from simrank.ranks.comparisons import Class

_AT_ZERO: Mapping[int, int] = {}
AUTO, NONE, ALL = "auto", "none", "all"
MIN_RANKS = 16  # Assumed: fewer run as fast as they can be compared.
_OUT_OF_MEMORY = "OutOfMemoryError"  # Of simrank, and of torch.
_NUM_STEPS = 2  # Of training, that a probe runs: what comes back is warm in the second.
_NUM_DRAWN = 3  # Assumed: ranks to compare besides the first, the second, the last of an axis.
_MOST_CLASSES = 8  # Assumed: of ranks that comparisons tell apart, one of each is compared.
_MOST_ALONE = 4  # Assumed: ranks that run for themselves beside a representative.
_SAME_MEMORY = 0.01  # Assumed: of the peak; the last shard of an uneven tensor is smaller.
_SAME_TIME = 0.02  # Assumed: of the time of a probe; links to other nodes differ by less.
_MANY_ROOTED = 3  # Assumed: fewer are of a program's start.
_MIN_FOLDED = 4  # Assumed: of shorter axes all coordinates would be compared.
_NUMBERS = re.compile(r"\branks? \d[\d, -]*\b")
_DESCRIPTIONS = re.compile(r"^mesh_|_(parallel|model_parallel)?_?group$|^default_pg$")


@dataclass(frozen=True)
class _Ran:
    """An operation of a stream that has ended; what must agree, and its line.

    Attributes:
        name: In the user's words, without the group's name.
        facts: What it costs, or what a collective's signature is.
        site: Its line, which may differ.
    """

    name: str
    facts: object
    site: CallSite | None = field(compare=False)

    def __str__(self) -> str:
        """Return `mm at train.py:12`."""
        return self.name if self.site is None else f"{self.name} at {self.site.line()}"


class Probe:
    """The operations of some ranks that represent all: an observer, and a follower of calls.

    Args:
        folding: Which ranks run.
        comparisons: Where comparisons with their numbers are recorded; None: in the Context's own.
        is_to_end: Whether they run to the end of the program, and not for two training steps.

    Attributes:
        folding: As given.
        is_whole: Whether they ran to the end of the program.
        groups: Name by global ranks of each group that they have called on.
        made: Global ranks of each group that rank 0 is in.
        rooted: Number of collectives with a root, by the global ranks of their group.
        peers: Global ranks that they have sent to or received from.
        ran: Their operations, by rank and stream.
        peak_bytes: The most memory of each of them.
        end_ps: When they had ended.
        rank_s: CPU time of each of them from the first collective on, in seconds: ranks share what
            precedes it, such as imports.
        node_size: Devices of a node of the cluster.
        findings: What their Context found, without the numbers of ranks.
        error: What ended them early, or None.
    """

    def __init__(
        self, folding: Folding, comparisons: Comparisons | None = None, *, is_to_end: bool = False
    ) -> None:
        self.folding = folding
        self._comparisons, self._is_to_end = comparisons, is_to_end
        self.is_whole = True
        self.findings: tuple[str, ...] = ()
        self.context: Context | None = None
        self._worlds: list[World] = []
        self.groups: dict[Sequence[int], str] = {}
        self.made: set[Sequence[int]] = set()
        self.rooted: Counter[Sequence[int]] = Counter()
        self.peers: set[int] = set()
        self.ran: dict[int, dict[int, list[_Ran]]] = {rank: {} for rank in folding.running}
        self.peak_bytes: dict[int, int] = {}
        self.end_ps = 0
        self.rank_s = self._begin_s = 0.0
        self.node_size = 0
        self.error: Exception | None = None
        self._stepped: dict[int, WeakSet[object]] = {}  # Optimizers, in a step that still runs.
        self._num_steps: Counter[int] = Counter()
        self._ended: set[int] = set()

    def watch(self, context: Context) -> Context:
        """Watch a Context with this probe's folding, and return it."""
        self.context = context
        if self._comparisons is not None:
            context.comparisons = self._comparisons
        context.probe = context.comm_library.follower = self
        context.observe(self)
        return context

    # ---- What the rank's program reports ----

    def stepped(self, optimizer: object) -> None:
        """Note that an optimizer has stepped; if it had before, the next training step has begun.

        Raises:
            SystemExit: The rank has made its steps.
        """
        rank = require_rank("an optimizer's step").rank or 0
        optimizers = self._stepped.setdefault(rank, WeakSet())
        if optimizer in optimizers:
            self.begins_step()
        optimizers.add(optimizer)
        self._ended.add(rank)

    def begins_step(self) -> None:
        """Count a training step, if an optimizer has stepped; end the rank after some of them.

        Raises:
            SystemExit: The rank has made its steps; those that follow are like them.
        """
        rank = require_rank("an optimizer's step").rank or 0
        optimizers = self._stepped.get(rank)
        if not optimizers:
            return
        optimizers.clear()
        self._num_steps[rank] += 1
        if self._num_steps[rank] >= _NUM_STEPS and not self._is_to_end:
            self.is_whole = False
            raise SystemExit(0)

    @property
    def is_out_of_memory(self) -> bool:
        """Whether a device's memory was full, as it is if other ranks run too."""
        return self.error is not None and type(_first(self.error)).__name__ == _OUT_OF_MEMORY

    def finish(self, error: Exception | None) -> None:
        """Note an error, unless all ranks have stepped: some may wait for those that have ended.

        After an error, the groups count that were made, also if nothing was called on them yet.
        """
        made = [group for world in self._worlds for group in world.groups_of(0)]
        self.made = {tuple(group.ranks) for group in made}
        if error is not None and (self.is_whole or self._ended != set(self.folding.running)):
            self.error = error
            for group in made:
                self.groups.setdefault(tuple(group.ranks), group.name)
        if self.context is not None:
            self.end_ps, self.node_size = self.context.now_ps, self.context.cluster.devices_per_node
            self.findings = tuple(_NUMBERS.sub("rank", line) for line in self.context.findings)
            memories = {device.index: device.memory for device in self.context.devices}
            self.peak_bytes = {
                rank: memories[rank].peak_bytes for rank in self.folding.running if rank in memories
            }
        self.context, self._worlds = None, []

    # ---- A follower of calls ----

    def collective(self, group: ProcessGroup, rank: int, request: Request) -> None:
        """Note the group of a collective, and whether it has a root."""
        ranks = tuple(group.ranks)
        self._begin_s = self._begin_s or process_time()
        self.groups.setdefault(ranks, group.name)
        if rank == 0 and request.signature.root is not None:
            self.rooted[ranks] += 1

    def messages(self, group: ProcessGroup, ends: Sequence[Any]) -> None:
        """Note the peers of messages, and their group."""
        self.groups.setdefault(tuple(group.ranks), group.name)
        self.peers.update(int(group.ranks[end.peer]) for end in ends if end.peer is not None)

    # ---- An observer of the engine ----

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Keep the groups of the ranks, which may be asked for at the end."""
        del task, time_ps
        if not self._worlds and self.context is not None:
            self._worlds.extend(self.context.comm_library.worlds.values())

    def on_host(self, task: Task, name: str, start_ps: int, end_ps: int) -> None:
        """Note nothing."""

    def on_transfer(
        self, size_bytes: int, links: tuple[str, ...], start_ps: int, end_ps: int
    ) -> None:
        """Note nothing."""

    def on_operation(self, operation: Operation) -> None:
        """Note an operation of the rank, and the time."""
        if self._begin_s:
            self.rank_s = (process_time() - self._begin_s) / len(self.folding.running)
        streams = self.ran.get(-1 if operation.rank is None else operation.rank)
        if streams is None or operation.kind == "event":
            return
        call: Any = getattr(operation, "call", None)
        facts: object = getattr(operation, "duration_ps", None)
        if call is not None:
            facts = (call.signature, call.group.size())
        elif operation.kind in ("copy", "collective"):
            facts = (operation.details or {}).get("bytes")
        name = operation.name.partition(" #")[0].partition(" on group")[0]
        if operation.kind == "collective" and call is None:
            name = re.sub(r"rank \d+", "a rank", name)
        entry = _Ran(name, facts, operation.issued_at)
        streams.setdefault(operation.stream.cuda_stream, []).append(entry)


def _difference(one: Probe, other: Probe) -> str | None:
    """Return the first difference between the ranks of two probes, or None.

    Ranks whose memory is full do the same if they did the same before.
    """
    for probe in (one, other):
        if probe.error is not None and not probe.is_out_of_memory:
            ran = probe.folding.running
            verb = "fails" if len(ran) == 1 else "fail"
            return f"{who_text(ran)} {verb} alone: {_reason(probe.error)}"
    for (rank, streams), (peer, others) in zip(one.ran.items(), other.ran.items(), strict=True):
        for stream in sorted(streams.keys() | others.keys()):
            ours, theirs = streams.get(stream, []), others.get(stream, [])
            for number, (mine, its) in enumerate(zip(ours, theirs, strict=False)):
                if mine != its:
                    return (
                        f"operation {number + 1} of stream {stream} is {mine} on rank {rank} and "
                        f"{its} on rank {peer}"
                    )
            if len(ours) != len(theirs):
                more, rest = (rank, ours) if len(ours) > len(theirs) else (peer, theirs)
                return f"rank {more} runs {rest[min(len(ours), len(theirs))]} too"
    if one.is_whole and other.is_whole and one.findings != other.findings:
        found = next(iter(set(one.findings) ^ set(other.findings)), "findings in another order")
        sides = (ranks_text(probe.folding.running) for probe in (one, other))
        return f"ranks {' and '.join(sides)}: {found}"
    return _unlike_totals(one, other)


def _unlike_totals(one: Probe, other: Probe) -> str | None:
    """Return the difference in memory or time between the ranks of two probes, or None."""
    for rank, peer in zip(one.folding.running, other.folding.running, strict=True):
        ours, theirs = one.peak_bytes.get(rank, 0), other.peak_bytes.get(peer, 0)
        if abs(ours - theirs) > _SAME_MEMORY * max(ours, theirs):
            return (
                f"rank {rank} holds at most {format_size(ours)}, rank {peer} {format_size(theirs)}"
            )
    took_ps = one.end_ps, other.end_ps
    if max(took_ps) - min(took_ps) > _SAME_TIME * max(took_ps):
        first, second = (
            f"{who_text(probe.folding.running)} at {probe.end_ps / PS_PER_US:.3f} us"
            for probe in (one, other)
        )
        return f"alone, {first} and {second} have ended"
    return None


def _first(error: BaseException) -> BaseException:
    return next(iter(error.errors.values())) if isinstance(error, SpawnException) else error


def _reason(error: BaseException) -> str:
    error = _first(error)
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


@dataclass(frozen=True)
class Found:
    """The ranks of a program that can represent others.

    Attributes:
        folding: Which run; None: all.
        lines: What was compared, and what keeps axes unfolded.
        search: The probes; None: there were none.
        is_compared: Whether ranks were compared, as they are again after the run.
    """

    folding: Folding | None
    lines: tuple[str, ...]
    search: _Search | None = None
    is_compared: bool = True

    @property
    def rank_s(self) -> float:
        """CPU time of one rank, in seconds, for two training steps; 0 if it is not known."""
        return 0.0 if self.search is None else self.search.rank_s

    def beside(self, ranks: Sequence[int]) -> Found:
        """Return the result with some ranks running for themselves, beside representatives."""
        if self.folding is None or self.search is None:
            return self
        return replace(self, folding=self.search.beside(self.folding, ranks))

    def after_run(self, comparisons: Comparisons) -> Found:
        """Return the folding that suits a program, once it has run; its lines say what is new.

        Args:
            comparisons: Those of the ranks that ran.
        """
        if self.folding is None or self.search is None or not self.is_compared:
            return self
        return self.search.after_run(self.folding, comparisons)


class _Search:
    """Probes of one program, each run once.

    Args:
        run: Runs the program with a probe.
        world_size: Number of ranks.
        on_progress: Called with the ranks that are about to be run alone.
        seed: Draws some of the ranks that are compared.

    Attributes:
        alone: Ranks that comparisons tell apart and that differ: they run for themselves.
        lines: Why they do, and which ranks are not compared.
        rank_s: The least CPU time of a rank in a probe, in seconds; 0: it is not known.
    """

    def __init__(
        self,
        run: Callable[[Probe], None],
        world_size: int,
        on_progress: Callable[[Sequence[int]], None],
        seed: int,
    ) -> None:
        self._run = run
        self._world_size = world_size
        self._on_progress = on_progress
        self._axes: list[LayoutAxis] = []
        self._slices: dict[tuple[tuple[FoldedAxis, ...], bool], Probe] = {}
        self._comparisons = Comparisons(world_size)
        self.alone: dict[int, None] = {}
        self.lines: dict[str, None] = {}
        self.rank_s = 0.0
        self.first = self._run_probe(Alone(world_size, 0))
        drawn = np.random.default_rng(seed).integers(world_size, size=_NUM_DRAWN).tolist()
        self._drawn = dict.fromkeys(r for r in (self.first.node_size, *drawn) if 0 < r < world_size)

    def _run_probe(self, folding: Folding, *, is_to_end: bool = False) -> Probe:
        """Run ranks alone, and return their operations."""
        self._on_progress(folding.running)
        probe = Probe(folding, self._comparisons, is_to_end=is_to_end)
        failed: Exception | None = None
        try:
            self._run(probe)
        except ConfigError:
            raise
        except SimrankError as error:
            failed = error
        probe.finish(failed)
        if probe.error is None and probe.rank_s:
            self.rank_s = min(self.rank_s or inf, probe.rank_s)
        return probe

    def run_again(self) -> None:
        """Run rank 0 once more: what the first probe has imported and timed costs no more."""
        self._run_probe(Alone(self._world_size, 0))

    # ---- ranks that the program's comparisons tell apart ----

    def _classes(self) -> list[Class]:
        """Return the classes of ranks of which none has run in a probe."""
        ran = self._ran()
        found = [each for rank in ran for each in self._comparisons.classes(rank)]
        return [each for each in found if ran.keys().isdisjoint(each.ranks)]

    def _ran(self) -> dict[int, None]:
        """Return the ranks that have run in a probe."""
        ran = [rank for probe in self._slices.values() for rank in probe.folding.running]
        return dict.fromkeys(sorted({0, *ran}))

    def _compared(self) -> Iterator[int]:
        """Yield the ranks to compare: drawn ones, and one of each class, as probes find it."""
        yield from self._drawn
        for _ in range(_MOST_CLASSES):
            left = self._classes()
            if not left:
                return
            yield left[0].ranks[0]
        for each in self._classes():
            self._not_compared(each)

    def _not_compared(self, each: Class) -> None:
        text = f"{who_text(each.ranks)}, which {each.line} tells apart, are not compared: there"
        self.lines[f"{text} are more than {_MOST_CLASSES} classes of ranks"] = None

    def _runs_alone(self, rank: int, taken_as: int, difference: str) -> bool:
        """Make a differing rank run for itself, if comparisons tell few ranks apart with it.

        Those told apart may be the ranks of its representative, too.
        """
        told = [each for runner in self._ran() for each in self._comparisons.classes(runner)]
        for member in (rank, taken_as):
            found = [each for each in told if member in each.ranks]
            each = min(found, key=lambda each: len(each.ranks), default=None)
            if each is not None and len({*self.alone, *each.ranks}) <= _MOST_ALONE:
                self.alone |= dict.fromkeys(each.ranks)
                which = who_text(each.ranks)
                verb = "runs" if len(each.ranks) == 1 else "run"
                line = f"{which} {verb} beside a representative, for {each.line}: {difference}"
                self.lines[line] = None
                return True
        return False

    def beside(self, folding: Folding, ranks: Sequence[int]) -> Folding:
        """Return a folding in which some ranks run for themselves, beside representatives.

        Its axes are as short as the groups of rank 0: each group needs a representative.
        """
        if not ranks:
            return folding
        groups: list[tuple[str, Sequence[int]]] = []
        for made in self.first.made:
            if len(made) > 1 and (stride := made[1] - made[0]) > 0:
                around = range(0, self._world_size, stride * len(made))
                groups += [("inner", made), ("outer", around)]
        found, alone = [], list(ranks)
        for axis in folding.axes:
            parts = [
                part
                for part in layout_of(self._world_size, groups)
                if part.name and part.stride % axis.stride == 0
                if axis.stride * axis.size % (part.stride * part.size) == 0
            ]
            if prod(part.size for part in parts) != axis.size:
                found.append(axis)
                continue
            found += [FoldedAxis(axis.name, part.size, part.stride) for part in parts]
            alone += [at * axis.stride for at in axis.alone]
        return Folding(self._world_size, found).beside(alone)

    def after_run(self, folding: Folding, comparisons: Comparisons) -> Found:
        """Compare, to the end, ranks that the program has told apart as it ran; see `Found`."""
        ran, num_compared = set(folding.running), 0
        self.lines, difference = {}, None
        todo = [(comparisons, rank) for rank in folding.running]
        while todo and difference is None:
            recorded, runner = todo.pop(0)
            for each in recorded.classes(runner):
                rank = each.ranks[0]
                if not ran.isdisjoint(each.ranks):
                    continue
                if num_compared == _MOST_CLASSES:
                    self._not_compared(each)
                    continue
                num_compared += 1
                ran.add(rank)
                todo.append((self._comparisons, rank))
                taken_as = folding.representative(rank)
                probes = [self._slice_of(member) for member in (taken_as, rank)]
                found = _difference(*probes)
                if found is not None and not self._runs_alone(rank, taken_as, found):
                    difference = found
                    break
        for line in comparisons.many(folding.running):
            text = (
                f"{line} compares ranks with many values: those that did not run are not compared"
            )
            self.lines[text] = None
        if difference is not None:
            return Found(None, (f"not folded: {difference}",), self)
        return Found(self.beside(folding, list(self.alone)), tuple(self.lines))

    def _slice_of(self, rank: int) -> Probe:
        """Return the probe of a rank's slice to the end of the program."""
        return self._slice(_coordinates(self._axes, rank), is_to_end=True)

    # ---- axes ----

    def layout(self) -> list[LayoutAxis]:
        """Return the axes along which ranks may do the same: no messages go along them.

        A rank that fails alone may lack what others along one axis tell it: of a pipeline, say.
        """
        axes = self._of_groups()
        if self.first.error is None or self.first.is_out_of_memory:
            return axes
        for without in (None, *axes):
            tried = [axis for axis in axes if axis != without]
            self._axes = [axis for axis in tried if axis.size >= _MIN_FOLDED]
            if self._axes and self._slice().error is None:
                return tried
        return []

    def _of_groups(self) -> list[LayoutAxis]:
        """Return the axes that groups of rank 0 tell of, but for those with messages."""
        axes = layout_of(self._world_size, self._groups())
        self._axes = [axis for axis in axes if axis.name and axis.size >= _MIN_FOLDED]
        return [axis for axis in axes if axis.name]

    def _groups(self) -> list[tuple[str, Sequence[int]]]:
        return [
            (_name_of(name), ranks)
            for ranks, name in self.first.groups.items()
            if len(ranks) > 1 and not _have_messages(ranks, self.first.peers)
        ]

    def split(self, axis: LayoutAxis) -> list[LayoutAxis]:
        """Return an axis as two, of which the inner one is a smaller group; none: there is none."""
        inner = [
            part
            for group in self._groups()
            for part in layout_of(self._world_size, [group])
            if part.name and part.stride == axis.stride
            if part.size < axis.size and axis.size % part.size == 0
        ]
        if not inner:
            return []
        part = max(inner, key=lambda each: each.size)
        outer = LayoutAxis(axis.name, axis.size // part.size, axis.stride * part.size)
        found = [each for each in (outer, part) if each.size >= _MIN_FOLDED]
        at = self._axes.index(axis)
        self._axes[at : at + 1] = found
        return found

    def _slice(self, at: Mapping[int, int] = _AT_ZERO, *, is_to_end: bool = False) -> Probe:
        """Return the probe at some coordinates, by the stride of an axis; 0 along the others."""
        axes = tuple(FoldedAxis(*axis, at.get(axis.stride, 0)) for axis in self._axes)
        found = self._slices.get((axes, is_to_end)) or self._slices.get((axes, False))
        if found is None or (is_to_end and not found.is_whole):
            folding = Folding(self._world_size, axes)
            is_known = folding.running == (0,) and not is_to_end
            is_known &= self.first.error is None or self.first.is_out_of_memory
            found = self.first if is_known else self._run_probe(folding, is_to_end=is_to_end)
            self._slices[axes, is_to_end] = found
        return found

    def folded(self, axis: LayoutAxis) -> FoldedAxis:
        """Return an axis whose ranks do the same, folded.

        The root of a collective ends before the others, so that it runs beside them.
        """
        rooted = [ranks for ranks, calls in self.first.rooted.items() if calls >= _MANY_ROOTED]
        is_rooted = any(len({r // axis.stride % axis.size for r in ranks}) > 1 for ranks in rooted)
        made = FoldedAxis(*axis, 1, (0,))
        return made if is_rooted and self._suits_groups(made) else FoldedAxis(*axis)

    def are_alike(self, axes: Sequence[LayoutAxis]) -> bool:
        """Return whether the second and the last ranks along all axes at once do as the first."""
        first = self._slice()
        for at in (1, -1):
            there = {axis.stride: at % axis.size for axis in axes}
            if _difference(first, self._slice(there)) is not None:
                return False
        for rank in self._compared():
            found = _difference(first, self._slice(_coordinates(axes, rank)))
            if found is not None and not self._runs_alone(rank, 0, found):
                return False
        return True

    def fold(self, axis: LayoutAxis) -> tuple[FoldedAxis | None, str]:
        """Return an axis as it can be folded, or None, with what was found."""
        compared = {rank // axis.stride % axis.size for rank in self._compared()}
        places = [0, 1, axis.size - 1, *sorted(compared - {0, 1, axis.size - 1})]
        first, *others = (self._slice({axis.stride: at}) for at in places)
        differences = [_difference(first, other) for other in others]
        different = next((each for each in differences if each is not None), None)
        if different is None:
            return self.folded(axis), ""
        if axis.size > _MIN_FOLDED:  # Perhaps only the first one differs: it prints, say.
            second, made = self._slice({axis.stride: 2}), FoldedAxis(*axis, 1, (0,))
            are_alike = all(_difference(second, other) is None for other in others)
            if are_alike and self._suits_groups(made):
                return made, different
        return None, different

    def _suits_groups(self, axis: FoldedAxis) -> bool:
        """Return whether the groups of rank 0 have the representatives of their members."""
        try:
            for ranks in self.first.made:
                Folding(self._world_size, [axis]).represented(ranks)
        except FoldingError:
            return False
        return True

    def corner(self, axes: Sequence[FoldedAxis]) -> str | None:
        """Return a difference of ranks off all axes from their representatives, or None.

        The last ranks along all axes are compared, and those that were drawn.
        """
        if len(axes) < 2:
            return None
        last = {axis.stride: axis.size - 1 for axis in axes}
        for at in (last, *(_coordinates(axes, rank) for rank in self._compared())):
            there = {axis.stride: axis.runs_as(at[axis.stride]) for axis in axes}
            found = _difference(self._slice(there), self._slice(at))
            if found is not None:
                return found
        return None


def _coordinates(axes: Sequence[LayoutAxis | FoldedAxis], rank: int) -> dict[int, int]:
    """Return the coordinates of a rank, by the stride of an axis."""
    return {axis.stride: rank // axis.stride % axis.size for axis in axes}


def _have_messages(ranks: Sequence[int], peers: set[int]) -> bool:
    """Return whether messages of rank 0 go along the axis of a group."""
    stride = ranks[1] - ranks[0]
    return stride < 1 or any(peer // stride % len(ranks) for peer in peers)


def find_folding(
    run: Callable[[Probe], None],
    world_size: int,
    *,
    wanted: str = AUTO,
    on_progress: Callable[[Sequence[int]], None] = lambda _: None,
    seed: int = 0,
) -> Found:
    """Return the ranks of a program that can represent others.

    Args:
        run: Runs the program in a Context of its own that a probe watches:
            `probe.watch(Context(..., data=False, folding=probe.folding))`.
        world_size: Number of ranks.
        wanted: "auto": axes along which ranks that were compared do the same. "all", or names of
            axes with commas: these, without a comparison. "none": rank 0 alone is timed.
        on_progress: Called with the ranks that are about to be run alone.
        seed: Draws some of the ranks that are compared.

    Raises:
        ConfigError: The layout has no such axis, or the program cannot be read.
    """
    search = _Search(run, world_size, on_progress, seed)
    if wanted == NONE:
        search.run_again()
        return Found(None, (), search)
    axes = search.layout()
    if not axes and search.first.error is not None:
        return Found(None, (f"not folded: rank 0 fails alone: {_reason(search.first.error)}",))
    if wanted != AUTO:
        return Found(Folding(world_size, [*_chosen(axes, wanted)]), (), search, is_compared=False)
    left = [each for each in axes if each.size >= _MIN_FOLDED]
    if left and search.are_alike(left):
        folding = Folding(world_size, [*map(search.folded, left)])
        return Found(search.beside(folding, list(search.alone)), tuple(search.lines), search)
    folded, lines = [], []
    while left:
        axis = left.pop(0)
        made, difference = search.fold(axis)
        if made is None and (parts := search.split(axis)):
            left += parts
            continue
        if made is None:
            lines.append(f"{axis.name} is not folded: {difference}")
            continue
        folded.append(made)
        if difference:
            lines.append(f"the first rank along {axis.name} runs for itself: {difference}")
    difference_there = search.corner(folded)
    if not folded or difference_there is not None:
        last = () if difference_there is None else (f"not folded: {difference_there}",)
        return Found(None, (*lines, *last), search)
    return Found(Folding(world_size, folded), tuple(lines), search)


def _chosen(axes: Sequence[LayoutAxis], wanted: str) -> Iterator[FoldedAxis]:
    """Yield the axes of some names.

    Raises:
        ConfigError: There is no such axis, or messages go along it.
    """
    by_name = {axis.name: axis for axis in axes}
    names = list(by_name) if wanted == ALL else [name.strip() for name in wanted.split(",")]
    for name in names:
        axis = by_name.get(name)
        if axis is None:
            known = ", ".join(f"{each} ({a.size} ranks)" for each, a in by_name.items())
            problem = f"auto, none, all, or axes of this program: {known or 'it has none'}"
            raise ConfigError(ConfigProblem("command line", None, "--fold", problem, name))
        yield FoldedAxis(axis.name, axis.size, axis.stride)


def _name_of(group: str) -> str:
    """Return the name of an axis for that of its group, such as a mesh's dimension."""
    return _DESCRIPTIONS.sub("", group.lower()) or "world"
