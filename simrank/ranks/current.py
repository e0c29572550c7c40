"""The running program, on a greenlet or a thread."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from simrank.errors import NoRankError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType

    from simrank.engine import Engine, EngineInterface, Task
    from simrank.hardware.cluster import Cluster
    from simrank.ranks.folding import Folding


class InjectsFaults(Protocol):
    """The part of a Context's faults that this layer uses."""

    def has_port(self, rank: int, port: int) -> bool:
        """Return whether a process outside of the simulation holds a port."""


class SeesSteps(Protocol):
    """Sees the training steps of the one rank that runs; see `simrank.probing`."""

    def stepped(self, optimizer: object) -> None:
        """Note that an optimizer has stepped."""

    def begins_step(self) -> None:
        """Note that the next training step begins."""


class RecordsComparisons(Protocol):
    """Records how a program compares numbers of ranks; see `simrank.ranks.comparisons`.

    Attributes:
        world_size: Number of ranks of the run.
    """

    world_size: int

    def within_group(self, value: int, ranks: Sequence[int]) -> int:
        """Return a group rank that records its comparisons, of a group with these members."""

    def as_bytes(self, number: int, size: int, stride: int = 1) -> bytes:
        """Return `rank // stride % size` as text that records its comparisons."""

    def recording(self, code: CodeType) -> CodeType:
        """Return the code of a module whose `int(...)` keeps such numbers."""


class ContextOfProgram(Protocol):
    """The part of a Context that this layer uses; the Context itself is defined above."""

    @property
    def cluster(self) -> Cluster:
        """Return the hardware."""

    @property
    def faults(self) -> InjectsFaults | None:
        """Return the injected faults, or None."""

    @property
    def folding(self) -> Folding | None:
        """Return the ranks that run and represent others, or None."""

    @property
    def comparisons(self) -> RecordsComparisons | None:
        """Return the record of comparisons with numbers of ranks, or None."""

    @property
    def probe(self) -> SeesSteps | None:
        """Return the observer of training steps, or None."""


class RaceOrder(Protocol):
    """Clocks that hosts exchange for race checks.

    Attributes:
        conditions: What all that wait for a condition, or read what ranks share, are behind.
    """

    conditions: dict[int, int]

    def meet(self, clock: dict[int, int]) -> None:
        """Add the running program's clock to a shared one."""

    def met(self, clock: dict[int, int]) -> None:
        """Add a shared clock to the running program's."""


HOST_CLOCK = "race clock"  # In `Program.local`: what the host is behind, for race checks.


class Program:
    """One running program of a Context: a rank, or the main program on the hub.

    Attributes:
        context: The Context it belongs to.
        engine: That Context's engine.
        rank: Its rank in the spawn that made it; None on the hub. Another number once it has joined
            a group with those that others have started.
        started_rank: Its rank in the spawn that made it, which says what its host and devices are;
            of a process that of its rank.
        world_size: How many ranks that spawn has; 1 on the hub.
        device_index: The device it uses by default.
        task: What the engine resumes; None on the hub.
        local: Rank-local state of the layers above, made at first use.
        parent: The program that spawned it, or None.
        outer: Of a main program: the one that entered its Context, or None.
        process_of: Of a process that a rank has started: that rank; None of ranks.
        num_made: Shared objects that it has made, in a search of every timing.
        num_started: Processes that it has started.
        number: Of a process: among those of its rank, from 1; 0 of ranks.
    """

    __slots__ = (
        "__weakref__", "context", "device_index", "engine", "local", "num_made", "num_started",
        "number", "outer", "parent", "process_of", "rank", "started_rank", "task", "world_size",
    )  # fmt: skip

    def __init__(
        self,
        context: ContextOfProgram,
        engine: Engine,
        *,
        rank: int | None = None,
        world_size: int = 1,
        device_index: int = 0,
        parent: Program | None = None,
    ) -> None:
        self.context = context
        self.engine = engine
        self.rank = self.started_rank = rank
        self.world_size = world_size
        self.device_index = device_index
        self.parent = parent
        self.outer: Program | None = None
        self.process_of: Program | None = None
        self.num_made = self.num_started = self.number = 0
        self.task: Task | None = None
        self.local: dict[str, Any] = {}


_of_process: dict[str, Callable[[Any], Any] | None] = {}


def of_process(key: str, forked: Callable[[Any], Any] | None = None) -> str:
    """Register a key of `Program.local` as state of a process, and return it.

    Args:
        key: Its name.
        forked: Makes of a rank's what a process has that the rank forks; None: that has none.
    """
    _of_process[key] = forked
    return key


def process_of(starter: Program, *, is_forked: bool) -> Program:
    """Return the program of a process that a rank starts.

    Args:
        starter: The rank.
        is_forked: Whether it goes on with what the rank has, as far as that is no process's.
    """
    made = Program(
        starter.context, starter.engine, rank=starter.rank, world_size=starter.world_size,
        device_index=starter.device_index, parent=starter,
    )  # fmt: skip
    made.process_of, made.started_rank = starter, starter.started_rank
    starter.num_started += 1
    made.number = starter.num_started
    for key, value in starter.local.items() if is_forked else ():
        forked = _of_process.get(key, _itself)
        if forked is not None:
            made.local[key] = forked(value)
    return made


def started_as(program: Program) -> str:
    """Return the number of a process of a rank as text; nothing for the rank itself."""
    parts = []
    rank: Program | None = program
    while rank is not None:
        above = rank.parent
        while above is not None and above.rank is None:
            above = above.outer
        if above is not None:
            is_process = rank.process_of is not None
            parts.append(f"process {rank.number}" if is_process else f"rank {rank.rank}")
        rank = above
    return "".join(f" of {part}" for part in parts)


def numbered() -> str | None:
    """Return a name for what the running rank makes, the same in each run of a search."""
    program = rank_program()
    if program is None or program.engine.choices is None:
        return None
    program.num_made += 1
    return f"{program.num_made}, made by {program.started_rank}{started_as(program)}"


def _itself(value: Any) -> Any:  # noqa: ANN401 - anything
    return value


_current: ContextVar[Program | None] = ContextVar("simrank_program", default=None)


# The program that runs now, or None outside every Context. A method of C: each operation asks.
current_program: Callable[[], Program | None] = _current.get


def rank_program() -> Program | None:
    """Return the program that runs now if it is a rank."""
    program = _current.get()
    return None if program is None or program.rank is None else program


engines: list[EngineInterface] = []  # Of the Contexts that are entered, innermost last.


def current_engine() -> EngineInterface | None:
    """Return the engine of the program that runs now, or of the Context entered last."""
    program = _current.get()
    if program is not None:
        return program.engine
    # A greenlet of the program starts without contextvars.
    return engines[-1] if engines else None


_num_real = 0


@contextmanager
def for_real() -> Iterator[None]:
    """Make clocks, sleeps and locks real within the block."""
    global _num_real  # noqa: PLW0603 - one process, one standard library
    _num_real += 1
    try:
        yield
    finally:
        _num_real -= 1


def is_for_real() -> bool:
    """Return whether clocks, sleeps and locks are real now."""
    return bool(_num_real)


def running_task() -> Task | None:
    """Return the task that runs now; None on the hub, in other threads and without a Context."""
    if _num_real:
        return None
    engine = current_engine()
    return None if engine is None else engine.current_task()


def in_ranks(simulated: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `simulated` in ranks and `original` elsewhere."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        return (original if rank_program() is None else simulated)(*args, **kwargs)

    return call


def comparisons_of(program: Program) -> RecordsComparisons | None:
    """Return the record of comparisons of a rank's Context; None where all ranks run."""
    recorder = program.context.comparisons
    if recorder is None or program.rank is None or recorder.world_size != program.world_size:
        return None
    return recorder


def require_program(call: str) -> Program:
    """Return the program that runs now.

    Raises:
        NoRankError: It is missing; the text names `call`.
    """
    program = _current.get()
    if program is None:
        text = f"{call} was called outside a Context and outside a rank"
        raise NoRankError(
            f"{text}\n  to fix: call it in a function given to spawn, or in `with Context()`"
        )
    return program


def require_rank(call: str) -> Program:
    """Return the rank that runs now.

    Raises:
        NoRankError: The caller is no rank; the text names `call`.
    """
    program = _current.get()
    if program is None or program.rank is None:
        text = f"{call} was called outside a rank"
        raise NoRankError(f"{text}\n  to fix: call it in the function given to spawn")
    return program


def race_order() -> RaceOrder | None:
    """Return the race checker of the running program; None if races are not looked for."""
    program = _current.get()
    return None if program is None else getattr(program.context, "race_checker", None)


def set_program(program: Program | None) -> None:
    """Set the running program of the current contextvars context (each task has its own)."""
    _current.set(program)


@contextmanager
def running_as(program: Program | None) -> Iterator[None]:
    """Make a program the running one within a block, for work of the hub on its behalf."""
    before = _current.get()
    _current.set(program)
    try:
        yield
    finally:
        _current.set(before)


_make_context: Callable[[int], Any] | None = None


def register_default_context(make: Callable[[int], Any]) -> None:
    """Register the function that makes a Context for a spawn without one."""
    global _make_context  # noqa: PLW0603 - set once, on import
    _make_context = make


def default_context(num_ranks: int) -> Any:  # noqa: ANN401 - the Context lives above
    """Return a new Context with a device for each of `num_ranks`."""
    assert _make_context is not None, "importing simrank registers it"
    return _make_context(num_ranks)
