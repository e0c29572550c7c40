"""Algorithms from MSCCL's XML, registered under `msccl:` and the file's name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from simrank.collectives.algorithms import Algorithm, algorithms_for, register_algorithm
from simrank.collectives.algorithms.layout import gathered_tables
from simrank.collectives.problem import Problem
from simrank.collectives.proof import prove
from simrank.collectives.schedule import ChunkTable, Schedule, Tables
from simrank.errors import ConfigError, ConfigProblem, ScheduleError
from simrank.formats.msccl.lower import lower
from simrank.formats.msccl.order import describe, order_of
from simrank.formats.msccl.program import BUFFERS
from simrank.formats.msccl.read import read_msccl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike

    from simrank.collectives.proof import Proof
    from simrank.collectives.schedule import IntArray
    from simrank.formats.msccl.lower import Rounds
    from simrank.formats.msccl.order import ExecutionOrder, PlacedStep
    from simrank.formats.msccl.program import MscclProgram

SUFFIX = ".xml"
PREFIX = "msccl:"
_programs: dict[tuple[str, str], MscclProgram] = {}  # By collective and name.


class Registered(NamedTuple):
    """An algorithm of the table that came from a file.

    Attributes:
        collective: What it computes.
        name: Its name in the table.
        world_size: The number of ranks that it is for.
    """

    collective: str
    name: str
    world_size: int


def schedule_of(program: MscclProgram, problem: Problem, rounds: Rounds | None = None) -> Schedule:
    """Return the schedule with which a program solves a problem.

    Args:
        program: The program.
        problem: The collective and its sizes.
        rounds: What `lower` returned for it, if that is known.

    Raises:
        ScheduleError: It would wait forever, or depends on an order that nothing decides.
        ValueError: It is for another collective or number of ranks, or sizes are uneven.
    """
    facts = (program.collective, program.world_size)
    if facts != (problem.collective, problem.world_size) or problem.splits is not None:
        raise ValueError(
            f"{program.file} is an {program.collective} of equal blocks on {program.world_size} "
            "ranks"
        )
    made = rounds or rounds_of(program)
    tables = _tables(program, problem, made.num_scratch)
    return Schedule(
        collective=problem.collective,
        algorithm=program.name,
        world_size=program.world_size,
        rounds=lambda: iter(made.rounds),
        num_rounds=sum(bool((steps.src != steps.dst).any()) for steps in made.rounds),
        input=tables.input,
        output=tables.output,
        scratch=tables.scratch,
        num_channels=program.num_channels,
        num_lanes=made.num_lanes,
        in_place_safe=False,
    )


def rounds_of(program: MscclProgram) -> Rounds:
    """Return the rounds of a program after checks of deadlocks and races.

    Raises:
        ScheduleError: It would wait forever, or depends on an order that nothing decides.
    """
    order = order_of(program)
    check_races(order)
    return lower(order)


def prove_program(program: MscclProgram, problem: Problem | None = None) -> Proof:
    """Prove a program, as `prove` does a schedule.

    Args:
        program: The program.
        problem: The collective and its sizes; by default one of an element per chunk.

    Raises:
        ScheduleError: It would wait forever, or depends on an order that nothing decides.
    """
    asked = problem or program_problem(program)
    return prove(schedule_of(program, asked), asked)


def program_problem(program: MscclProgram, size_bytes: int = 0) -> Problem:
    """Return the problem of some size that a program solves.

    Args:
        program: The program.
        size_bytes: As nccl-tests counts it, of float32; 0: as many elements as there are chunks.
    """
    elements = size_bytes // 4 or program.num_chunks
    if program.collective != "all_reduce":
        elements //= program.world_size
    return Problem(program.collective, program.world_size, elements)


def register_msccl(path: str | PathLike[str]) -> Registered:
    """Prove the algorithm in a file, and add it to the table of algorithms.

    Its name is `msccl:` and the file's name without its suffix; another file of that name gets a
    number behind it. `auto` never chooses it. The same content is added once.

    Raises:
        ConfigError: The file cannot be read, or is no algorithm that simrank knows how to run.
        ScheduleError: It would wait forever, or does not compute its collective.
    """
    program = read_msccl(Path(path))
    rounds = rounds_of(program)
    problem = program_problem(program)
    flaw = prove(schedule_of(program, problem, rounds), problem).flaw
    if flaw is not None:
        raise ScheduleError(f"{program.file}: is no {program.collective}: {flaw}")
    name = _name(program, Path(path).stem)
    registered = Registered(program.collective, name, program.world_size)
    if name not in algorithms_for(program.collective, program.world_size):
        _register(program, rounds, registered)
    return registered


def forced_algorithms(given: Mapping[str, Any]) -> dict[str, tuple[str, Mapping[str, int]]]:
    """Return the name and options of each forced algorithm; files are read and added.

    Args:
        given: Per collective a name, the path of a file (it ends in .xml), or a pair of either and
            options.

    Raises:
        ConfigError: As `register_msccl`, or a file computes something else.
        ScheduleError: As `register_msccl`.
    """
    forced = {}
    for collective, named in given.items():
        name, options = (named, {}) if isinstance(named, str) else (named[0], named[1])
        if name.endswith(SUFFIX):
            found = register_msccl(name)
            if found.collective != collective:
                got = f"coll of {found.collective}"
                raise ConfigError(ConfigProblem(name, None, "", f"one of {collective}", got))
            name = found.name
        forced[collective] = name, options
    return forced


def _name(program: MscclProgram, stem: str) -> str:
    """Return a name that no other content has."""
    content = replace(program, file="")
    name, number = f"{PREFIX}{stem}", 1
    while _programs.setdefault((program.collective, name), content) != content:
        number += 1
        name = f"{PREFIX}{stem}#{number}"
    return name


def _register(program: MscclProgram, rounds: Rounds, registered: Registered) -> None:
    def build(problem: Problem, options: Mapping[str, int]) -> Schedule:
        del options
        return schedule_of(program, problem, rounds)

    line = Algorithm(
        registered.collective,
        registered.name,
        build,
        options={},
        admits=lambda world_size: world_size == registered.world_size,
        admits_text=f"{registered.world_size} ranks",
        max_auto_ranks=0,
    )
    register_algorithm(line)


def _tables(program: MscclProgram, problem: Problem, num_scratch: int) -> Tables:
    """Return the chunks of a program's buffers."""
    if problem.collective == "all_reduce":
        whole = own = ChunkTable.split(problem.count, program.num_chunks)
    else:
        whole, own = gathered_tables(problem, program.per_rank)
    longest = max(whole.max_size, own.max_size)
    scratch = ChunkTable.from_sizes([longest] * num_scratch)
    if problem.collective == "all_gather":
        return Tables(own, whole, scratch)
    return Tables(whole, own if problem.collective == "reduce_scatter" else whole, scratch)


# ---- Whether steps of an MSCCL program touch one chunk in an order that nothing decides ----
# One order of a program's steps is enough to know what it computes only if every order gives
# the same. It does where each two steps that touch a chunk, one of them writing, are ordered by
# thread blocks, dependences and messages. That is found with a vector clock per thread block.

_Chunk: TypeAlias = tuple[int, str, int]


def check_races(order: ExecutionOrder) -> None:
    """Raise for a program whose result depends on the order of two unordered steps.

    Raises:
        ScheduleError: Two steps touch a chunk, one of them writes it, and nothing orders them.
    """
    num_lanes = 1 + max((node.lane for node in order.nodes), default=0)
    clocks = np.zeros((num_lanes, num_lanes), np.int32)
    reported = _StepClocks(order)
    readers: dict[_Chunk, dict[int, int]] = {}
    writers: dict[_Chunk, int] = {}
    for number in order.sequence:
        node = order.nodes[number]
        clock = clocks[node.lane]
        reported.hear(number, clock)
        for chunk, is_write in _accesses(order, node):
            others = [writers[chunk]] if chunk in writers else []
            if is_write:
                others += readers.get(chunk, {}).values()
            for other in others:
                earlier = order.nodes[other]
                if earlier.lane != node.lane and clock[earlier.lane] <= earlier.step.number:
                    raise _race(order, chunk, earlier, node)
            if is_write:
                writers[chunk] = number
                readers.pop(chunk, None)
            else:
                readers.setdefault(chunk, {})[node.lane] = number
        clock[node.lane] = node.step.number + 1
        reported.tell(number, clock)


class _StepClocks:
    """Vector clocks of steps, kept until the last dependent step has read them."""

    def __init__(self, order: ExecutionOrder) -> None:
        self._sources: dict[int, list[int]] = {}
        for later, earlier in order.signals.items():
            self._sources.setdefault(later, []).append(earlier)
        for earlier, later in order.messages.items():
            self._sources.setdefault(later, []).append(earlier)
        self._listeners: dict[int, int] = {}
        for sources in self._sources.values():
            for source in sources:
                self._listeners[source] = self._listeners.get(source, 0) + 1
        self._kept: dict[int, IntArray] = {}

    def hear(self, number: int, clock: IntArray) -> None:
        """Merge the clocks of a step's dependencies."""
        for source in self._sources.get(number, ()):
            np.maximum(clock, self._kept[source], out=clock)
            self._listeners[source] -= 1
            if not self._listeners[source]:
                del self._kept[source]

    def tell(self, number: int, clock: IntArray) -> None:
        """Keep the clock of a step that other steps wait for."""
        if number in self._listeners:
            self._kept[number] = clock.copy()


def _accesses(order: ExecutionOrder, node: PlacedStep) -> Iterator[tuple[_Chunk, bool]]:
    """Yield the chunks that a step touches, and whether it writes them: reads come first."""
    kind = node.step.kind
    ends = []
    if kind.reads:
        ends.append((node.step.src, False))
    if kind.writes:
        ends.append((node.step.dst, True))
    for (buffer, first), is_write in ends:
        for number in range(first, first + node.step.count):
            place = order.program.place(node.rank, (buffer, number))
            yield (node.rank, *place), is_write


def _race(
    order: ExecutionOrder, chunk: _Chunk, one: PlacedStep, other: PlacedStep
) -> ScheduleError:
    rank, buffer, number = chunk
    program = order.program
    what = (
        f"{program.file}: nothing orders two steps that touch {BUFFERS[buffer]} chunk {number} "
        f"of gpu {rank}"
    )
    return ScheduleError(what, describe(program, one), describe(program, other))
