"""Protocols for packages above: access logs, lane checks, program order, waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from simrank.device.memory import Storage
    from simrank.kernels.machine.arrays import Array, Value
    from simrank.kernels.machine.effects import Order
    from simrank.kernels.machine.running import Programs


class Unmet(NamedTuple):
    """A value that a program read, and the value that it waits for."""

    value: Any
    wanted: Any


class Asked(NamedTuple):
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
        ...


class AccessLog(Protocol):
    """Log of the accesses of programs in lockstep; see `races/lockstep.py`."""

    def watches(self, storage: Storage) -> bool:
        """Return whether loads of a storage are logged."""
        ...

    def loads(self, storage: Storage, index: Array, itemsize: int, owners: Array) -> None:
        """Log a load of elements."""
        ...

    def stores(self, storage: Storage, index: Array, values: Array, owners: Array) -> None:
        """Log a store of elements."""
        ...

    def atomics(
        self,
        storage: Storage,
        index: Array,
        itemsize: int,
        owners: Array,
        asked: tuple[Order, bool, bool],
    ) -> None:
        """Log atomics."""
        ...

    def fence(self, owners: Array) -> None:
        """Log a fence of programs."""
        ...

    def waited(self, owners: Array) -> None:
        """Log a wait for the end of the previous launch."""
        ...

    has_dependents: bool


class Lanes(Protocol):
    """Check of lanes of one program that access the same memory; see `races/lanes.py`."""

    def stored(self, addresses: Value, values: Value, active: Value | None) -> None:
        """Check a store."""
        ...

    def loaded(self, addresses: Value, active: Value | None) -> None:
        """Check a load."""
        ...

    def barrier(self) -> None:
        """Record a barrier of each program's threads."""
        ...


class ProgramOrder(Protocol):
    """Happens-before order of a program, and its accesses; see `races/happens.py`."""

    def stores(self, storage: Storage, index: Array, values: Array) -> None:
        """Log a store of elements."""
        ...

    def atomic(self, storage: Storage, index: Array, itemsize: int, asked: Asked) -> None:
        """Acquire and release through the flags of an atomic."""
        ...

    def rewrites(self, storage: Storage, index: Array, itemsize: int) -> None:
        """Record that flags were set, perhaps to equal values."""
        ...

    def set_flag(self, storage: Storage, first: int, before: int, after: int) -> None:
        """Record the value that an atomic left in a flag."""
        ...

    def tested(self, comparison: str, bound: int) -> None:
        """Record the comparison of a waiting loop."""
        ...

    def meet(self, clock: dict[int, int]) -> None:
        """Acquire and release through a barrier."""
        ...


class Sync(Protocol):
    """Waits and visible effects of one program; see `running/waits.py`.

    Attributes:
        is_free: Whether accesses are part of one that is paid for.
        unmet: What it has found instead of what it waits for.
    """

    is_free: bool
    unmet: Unmet | None

    @property
    def programs(self) -> Programs | None:
        """The program as the emulation sees it."""
        ...

    @property
    def races(self) -> ProgramOrder | None:
        """The program's order; None without race checks."""
        ...

    @property
    def num_effects(self) -> int:
        """The number of changes of memory."""
        ...

    @property
    def has_polls(self) -> bool:
        """Whether the program has read memory since its last change."""
        ...

    @property
    def clock_ps(self) -> int:
        """The program's own clock."""
        ...

    def charge(self, cost_ps: int) -> None:
        """Advance the program's clock."""
        ...

    @property
    def work(self) -> Any:  # noqa: ANN401 - `cost.overlap.Work`, of a room above
        """Return the work since the last synchronization."""
        ...

    def charge_work(self) -> None:
        """Advance the clock by the time of the work since the last synchronization."""
        ...

    def charge_access(
        self, storage: Storage, size_bytes: int, new_bytes: int, *, writes: bool
    ) -> None:
        """Charge a load or store."""
        ...

    def before_load(self, pointer: Pointer, *, volatile: bool) -> None:
        """Synchronize with simulated time before a load that may see other programs' writes."""
        ...

    def after_look(self) -> None:
        """Record the end of a volatile load."""
        ...

    def loaded(
        self, storage: Storage, low: int, high: int, index: Value | int, itemsize: int
    ) -> None:
        """Record the bytes that a program has read."""
        ...

    def writes(self, storage: Storage) -> bool:
        """Synchronize with simulated time before a store; return whether it goes over a link."""
        ...

    def wrote(self, storage: Storage, low: int, high: int) -> None:
        """Notify waiting programs of written bytes."""
        ...

    def put(
        self,
        storage: Storage,
        view: Array,
        index: Value | int,
        values: Value,
        extent: tuple[int, int],
    ) -> None:
        """Send a store to another device."""
        ...

    def fence(self) -> None:
        """Order later accesses after all earlier ones."""
        ...

    def drain(self) -> None:
        """Wait until all stores are visible."""
        ...

    def before_atomic(self, storages: Sequence[Storage], order: Order) -> None:
        """Charge the way to an atomic's memory."""
        ...

    def applied(self, storage: Storage, low: int, high: int, *, changed: bool) -> None:
        """Notify waiting programs of an atomic's change."""
        ...

    def after_atomic(self, storages: Sequence[Storage]) -> None:
        """Charge the way back from an atomic's memory."""
        ...

    def before_signal(self, order: Order) -> None:
        """Begin a store that other programs wait for."""
        ...

    def after_signal(self) -> None:
        """End a store that other programs wait for."""
        ...

    def enter_spin(self) -> None:
        """Record the begin of a loop that may wait."""
        ...

    def leave_spin(self, *, for_value: bool = False) -> None:
        """Record the end of a loop that may wait."""
        ...

    def next_round(self, effects_before: int, *, is_pure: bool) -> None:
        """Wait after a round that has changed nothing."""
        ...

    def tests(self, comparison: str, bound: int, dtype: np.dtype[Any], *, changes: bool) -> None:
        """Record the comparison of a loop with an integer that it has read."""
        ...

    def end_wait(self, *, for_value: bool) -> None:
        """Record the end of a wait."""
        ...

    def poll_again(self) -> None:
        """Continue a loop that counts or reads the clock, some time later."""
        ...

    def park(self) -> None:
        """Wait for a change of the bytes that were read."""
        ...

    def wait_until(
        self, holds: Callable[[], Array], budget_ps: int | None, *, for_value: bool
    ) -> Array:
        """Wait until all conditions hold, or for the time limit."""
        ...
