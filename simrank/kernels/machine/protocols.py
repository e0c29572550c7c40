"""Shared types of all rooms: arrays, effects, memory orders, device functions, protocols.

The protocols are what this room and memory need of rooms above: access logs, lane checks, the order
of programs, waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import ref

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FunctionType

    from simrank.device.memory import Storage
    from simrank.kernels.machine.running import Programs

Array = np.ndarray[Any, Any]
# The values of a block: an array whose first axis is that of the programs, or a numpy scalar where
# all programs share one. Scalars have the methods and operators of arrays, so they share a name.
Value = np.ndarray[Any, Any]


class Unmet(NamedTuple):
    """A value that a program read, and the value that it waits for."""

    value: Any
    wanted: Any


class AtomicEffect(NamedTuple):
    """The effect of an atomic on the order of programs.

    Attributes:
        order: How it orders; None is a relaxed look of any scope.
        hands: Whether it writes.
        takes: Whether the program looks at the result: else it has come behind others by luck.
    """

    order: Order | None
    hands: bool
    takes: bool = True


class Pointer(Protocol):
    """A block of pointers."""

    @property
    def storage(self) -> Storage | None:
        """The storage of the elements; None for addresses."""


class AccessLog(Protocol):
    """Log of the accesses of programs in lockstep; see `kernels/races/launch_log.py`."""

    def watches(self, storage: Storage) -> bool:
        """Return whether loads of a storage are logged."""

    def loads(self, storage: Storage, index: Array, itemsize: int, owners: Array) -> None:
        """Log a load of elements."""

    def stores(self, storage: Storage, index: Array, values: Array, owners: Array) -> None:
        """Log a store of elements."""

    def atomics(
        self,
        storage: Storage,
        index: Array,
        itemsize: int,
        owners: Array,
        asked: tuple[Order, bool, bool],
    ) -> None:
        """Log atomics."""

    def fence(self, owners: Array) -> None:
        """Log a fence of programs."""

    def waited(self, owners: Array) -> None:
        """Log a wait for the end of the previous launch."""

    has_dependents: bool


class Lanes(Protocol):
    """Check of lanes of one program that access the same memory.

    See `kernels/races/lanes.py`.
    """

    def stored(self, values: Value, addresses: Value, active: Value | None) -> None:
        """Check a store."""

    def loaded(self, addresses: Value, active: Value | None) -> None:
        """Check a load."""

    def updated(self, addresses: Value, active: Value | None) -> None:
        """Check an atomic."""

    def barrier(self) -> None:
        """Record a barrier of each program's threads."""


class ProgramOrder(Protocol):
    """Happens-before order of a program, and its accesses.

    See `kernels/races/happens_before.py`.
    """

    def stores(self, storage: Storage, index: Array, values: Array) -> None:
        """Log a store of elements."""

    def atomic(self, storage: Storage, index: Array, itemsize: int, asked: AtomicEffect) -> None:
        """Acquire and release through the flags of an atomic."""

    def rewrites(self, storage: Storage, index: Array, itemsize: int) -> None:
        """Record that flags were set, perhaps to equal values."""

    def set_flag(self, storage: Storage, first: int, before: int, after: int) -> None:
        """Record the value that an atomic left in a flag."""

    def tested(self, comparison: str, bound: int) -> None:
        """Record the comparison of a waiting loop."""

    def meet(self, clock: dict[int, int]) -> None:
        """Acquire and release through a barrier."""


class Sync(Protocol):
    """Waits and visible effects of one program; see `kernels/running/programs.py`.

    Attributes:
        is_free: Whether accesses are part of one that is paid for.
        unmet: What it has found instead of what it waits for.
    """

    is_free: bool
    unmet: Unmet | None

    @property
    def programs(self) -> Programs | None:
        """The program as the emulation sees it."""

    @property
    def races(self) -> ProgramOrder | None:
        """The program's order; None without race checks."""

    @property
    def num_effects(self) -> int:
        """The number of changes of memory."""

    @property
    def has_polls(self) -> bool:
        """Whether the program has read memory since its last change."""

    @property
    def clock_ps(self) -> int:
        """The program's own clock."""

    def charge(self, cost_ps: int) -> None:
        """Advance the program's clock."""

    @property
    def work(self) -> Any:  # noqa: ANN401 - `cost.BusyTimes`, of a room above
        """Return the work since the last synchronization."""

    def charge_work(self) -> None:
        """Advance the clock by the time of the work since the last synchronization."""

    def charge_access(
        self, storage: Storage, size_bytes: int, new_bytes: int, *, writes: bool
    ) -> None:
        """Charge a load or store."""

    def before_load(self, pointer: Pointer, *, volatile: bool) -> None:
        """Synchronize with simulated time before a load that may see other programs' writes."""

    def after_look(self) -> None:
        """Record the end of a volatile load."""

    def loaded(
        self, storage: Storage, low: int, high: int, index: Value | int, itemsize: int
    ) -> None:
        """Record the bytes that a program has read."""

    def writes(self, storage: Storage) -> bool:
        """Synchronize with simulated time before a store; return whether it goes over a link."""

    def wrote(self, storage: Storage, low: int, high: int) -> None:
        """Notify waiting programs of written bytes."""

    def put(
        self,
        storage: Storage,
        view: Array,
        index: Value | int,
        values: Value,
        extent: tuple[int, int],
    ) -> None:
        """Send a store to another device."""

    def fence(self) -> None:
        """Order later accesses after all earlier ones."""

    def drain(self) -> None:
        """Wait until all stores are visible."""

    def before_atomic(self, storages: Sequence[Storage], order: Order) -> None:
        """Charge the way to an atomic's memory."""

    def applied(self, storage: Storage, low: int, high: int, *, changed: bool) -> None:
        """Notify waiting programs of an atomic's change."""

    def after_atomic(self, storages: Sequence[Storage]) -> None:
        """Charge the way back from an atomic's memory."""

    def before_signal(self, order: Order) -> None:
        """Begin a store that other programs wait for."""

    def after_signal(self) -> None:
        """End a store that other programs wait for."""

    def enter_spin(self) -> None:
        """Record the begin of a loop that may wait."""

    def leave_spin(self, *, for_value: bool = False) -> None:
        """Record the end of a loop that may wait."""

    def next_round(self, effects_before: int, *, is_pure: bool) -> None:
        """Wait after a round that has changed nothing."""

    def tests(self, comparison: str, bound: int, dtype: np.dtype[Any], *, changes: bool) -> None:
        """Record the comparison of a loop with an integer that it has read."""

    def end_wait(self, *, for_value: bool) -> None:
        """Record the end of a wait."""

    def poll_again(self) -> None:
        """Continue a loop that counts or reads the clock, some time later."""

    def park(self) -> None:
        """Wait for a change of the bytes that were read."""

    def wait_until(
        self, holds: Callable[[], Array], budget_ps: int | None, *, for_value: bool
    ) -> Array:
        """Wait until all conditions hold, or for the time limit."""


# ---- effects of kernels on other programs, and the memory order of atomics ----


class Effects:
    """The effects of a kernel that other programs can see, called functions included.

    Attributes:
        waits: It may wait for another program.
        publishes: It may show something to another program while it runs.
        reads: It reads memory: a loop that calls it may wait.
        threads: It asks which of its program's threads it is.
        times: It reads a clock: each of its programs has a time of its own.
        atomics: It has atomics, whose order among programs a GPU decides.
    """

    __slots__ = ("atomics", "publishes", "reads", "threads", "times", "waits")

    def __init__(
        self,
        *,
        waits: bool = False,
        publishes: bool = False,
        reads: bool = False,
        threads: bool = False,
        times: bool = False,
        atomics: bool = False,
    ) -> None:
        self.atomics = atomics
        self.waits = waits
        self.publishes = publishes
        self.reads = reads
        self.threads = threads
        self.times = times

    @property
    def is_of_timing(self) -> bool:
        """Whether the times of its programs may decide its results."""
        return self.needs_tasks or self.atomics

    @property
    def needs_tasks(self) -> bool:
        """Whether each program must be a task of its own."""
        return self.waits or self.publishes or self.times

    def add(self, other: Effects) -> None:
        """Add the effects of another function."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) or getattr(other, name))


# ---- How an atomic, or a store that others wait for, orders memory ----

_SEMS = ("acquire", "release", "acq_rel", "relaxed")
_SCOPES = ("gpu", "cta", "sys")


class Order:
    """The memory order of an atomic.

    Attributes:
        acquires: What others published before is seen after it.
        releases: Earlier writes are visible to programs that acquire it.
        scope: "cta", "gpu" or "sys".
    """

    __slots__ = ("acquires", "releases", "scope")

    def __init__(self, sem: str | None, scope: str | None, *, default: str = "acq_rel") -> None:
        sem, scope = sem or default, scope or "gpu"
        if sem not in _SEMS:
            raise ValueError(f"Memory semantic {sem} not supported")
        if scope not in _SCOPES:
            raise ValueError(f"Memory semantic {scope} not supported")
        self.acquires = sem in ("acquire", "acq_rel")
        self.releases = sem in ("release", "acq_rel")
        self.scope = scope


# ---- triton's device functions: the attributes in use, and facts that are kept with them ----


class DeviceParameter(Protocol):
    """One parameter of a device function."""

    name: str
    is_constexpr: bool
    is_const: bool
    has_default: bool
    default: Any
    annotation_type: str
    do_not_specialize: bool
    do_not_specialize_on_alignment: bool


class Jit(Protocol):
    """A device function: triton's `JITFunction`."""

    fn: FunctionType
    src: str
    raw_src: Sequence[str]
    starting_line_number: int
    arg_names: Sequence[str]
    params: Sequence[DeviceParameter]
    pre_run_hooks: Sequence[Callable[..., object]]
    run: Callable[..., Any]
    __name__: str


# ---- Cached facts, kept in an attribute of the kernel ----
# A table in this module would grow with kernels that a function makes for every call, and a table
# by `id` would confuse new kernels with freed ones. A `WeakKeyDictionary` would keep all of them,
# as facts refer to their kernel, and triton's hash of a kernel reads all of its source.

_NAME = "__simrank_kept__"


class CachedFacts(dict[Any, Any]):
    """Cached facts about one object, by key; copies of the object start without any."""

    def __init__(self, owner: object) -> None:
        super().__init__()
        self._owner = ref(owner)

    def is_of(self, owner: object) -> bool:
        """Return whether the facts belong to this object, and not to the original of a copy."""
        return self._owner() is owner

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the facts out of copies and pickles of the object."""
        return dict, ()


def kept(owner: object) -> CachedFacts:
    """Return the cached facts of a kernel, a function or a class."""
    facts = vars(owner).get(_NAME)
    if not isinstance(facts, CachedFacts) or not facts.is_of(owner):
        facts = CachedFacts(owner)
        setattr(owner, _NAME, facts)
    return facts
