"""What this room and memory need of rooms above: how a program waits, and what orders it."""

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
    """A value that a program has found, and the one that it waits for instead."""

    value: Any
    wanted: Any


class Asked(NamedTuple):
    """What an atomic asks of the order of programs.

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
        """What it counts elements in; None of addresses."""
        ...


class AccessLog(Protocol):
    """Where accesses of programs in lockstep are noted; see `races/lockstep.py`."""

    def watches(self, storage: Storage) -> bool:
        """Return whether loads of some memory need to be noted."""
        ...

    def loads(self, storage: Storage, index: Array, itemsize: int, owners: Array) -> None:
        """Note a load of elements."""
        ...

    def stores(self, storage: Storage, index: Array, values: Array, owners: Array) -> None:
        """Note a store of elements."""
        ...

    def atomics(
        self,
        storage: Storage,
        index: Array,
        itemsize: int,
        owners: Array,
        asked: tuple[Order, bool, bool],
    ) -> None:
        """Note atomics."""
        ...

    def fence(self, owners: Array) -> None:
        """Note a fence of programs."""
        ...

    def waited(self, owners: Array) -> None:
        """Note that programs have waited for the end of the launch in front."""
        ...

    has_dependents: bool


class Lanes(Protocol):
    """Looks at what lanes of one program do to the same memory; see `races/lanes.py`."""

    def stored(self, addresses: Value, values: Value, active: Value | None) -> None:
        """Look at a store."""
        ...

    def loaded(self, addresses: Value, active: Value | None) -> None:
        """Look at a load."""
        ...

    def barrier(self) -> None:
        """Note that the threads of each program have met."""
        ...


class ProgramOrder(Protocol):
    """What a program is ordered behind, and what it touches; see `races/happens.py`."""

    def stores(self, storage: Storage, index: Array, values: Array) -> None:
        """Note a store of elements."""
        ...

    def atomic(self, storage: Storage, index: Array, itemsize: int, asked: Asked) -> None:
        """Take over what an atomic's flags carry, and hand over."""
        ...

    def rewrites(self, storage: Storage, index: Array, itemsize: int) -> None:
        """Note that flags were set, perhaps to what they were."""
        ...

    def set_flag(self, storage: Storage, first: int, before: int, after: int) -> None:
        """Note which value an atomic has left in a flag."""
        ...

    def tested(self, comparison: str, bound: int) -> None:
        """Note what a loop that waits compares what it looks at with."""
        ...

    def meet(self, clock: dict[int, int]) -> None:
        """Hand over to, and take over from, a barrier."""
        ...


class Sync(Protocol):
    """How one program that waits or publishes does so; see `running/waits.py`.

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
        """Its order, where races are looked for."""
        ...

    @property
    def num_effects(self) -> int:
        """How often it changed memory."""
        ...

    @property
    def has_polls(self) -> bool:
        """Whether it has looked at memory since it last changed any."""
        ...

    @property
    def clock_ps(self) -> int:
        """The program's own clock."""
        ...

    def charge(self, cost_ps: int) -> None:
        """Let the program's clock go on."""
        ...

    @property
    def work(self) -> Any:  # noqa: ANN401 - `cost.overlap.Work`, of a room above
        """Return what it does since it last met others."""
        ...

    def charge_work(self) -> None:
        """Let its clock go on by what that takes more by now."""
        ...

    def charge_access(
        self, storage: Storage, size_bytes: int, new_bytes: int, *, writes: bool
    ) -> None:
        """Charge a load or store."""
        ...

    def before_load(self, pointer: Pointer, *, volatile: bool) -> None:
        """Meet the simulation's time before a load that others' writes may decide."""
        ...

    def after_look(self) -> None:
        """Note that a volatile load is done."""
        ...

    def loaded(
        self, storage: Storage, low: int, high: int, index: Value | int, itemsize: int
    ) -> None:
        """Note what a program has looked at."""
        ...

    def writes(self, storage: Storage) -> bool:
        """Meet the simulation's time before a store; return whether it travels."""
        ...

    def wrote(self, storage: Storage, low: int, high: int) -> None:
        """Tell whoever watches that bytes were written."""
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
        """Order what comes behind all before it."""
        ...

    def drain(self) -> None:
        """Wait until everything it stored is visible."""
        ...

    def before_atomic(self, storages: Sequence[Storage], order: Order) -> None:
        """Travel to the memory that an atomic is about."""
        ...

    def applied(self, storage: Storage, low: int, high: int, *, changed: bool) -> None:
        """Tell what an atomic changed."""
        ...

    def after_atomic(self, storages: Sequence[Storage]) -> None:
        """Travel back."""
        ...

    def before_signal(self, order: Order) -> None:
        """Let a store that others wait for be one."""
        ...

    def after_signal(self) -> None:
        """Note that such a store is done."""
        ...

    def enter_spin(self) -> None:
        """Note that a loop begins that may wait."""
        ...

    def leave_spin(self, *, for_value: bool = False) -> None:
        """Note that it has ended."""
        ...

    def next_round(self, effects_before: int, *, is_pure: bool) -> None:
        """Wait after a round that has changed nothing."""
        ...

    def tests(self, comparison: str, bound: int, dtype: np.dtype[Any], *, changes: bool) -> None:
        """Note what a loop compares the integer with that it has looked at."""
        ...

    def end_wait(self, *, for_value: bool) -> None:
        """Note that a wait is over."""
        ...

    def poll_again(self) -> None:
        """Go on with a loop that counts or looks at the clock, some time later."""
        ...

    def park(self) -> None:
        """Wait for a change of what it looked at."""
        ...

    def wait_until(
        self, holds: Callable[[], Array], budget_ps: int | None, *, for_value: bool
    ) -> Array:
        """Look at each change until all hold, or the time is over."""
        ...
