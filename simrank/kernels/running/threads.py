"""Kernels that read thread ids: a scalar has one row per thread of the program.

What all threads share stays a bare scalar, and is done once. Where threads go different ways the
rest is masked off: `if`, `for` and `while` are rewritten so, see `ThreadRewriter`. A block belongs
to all threads together, so it must not depend on the thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.values.block import (
    Block,
    Diverged,
    addresses,
    as_block,
    as_truth,
    cast_to,
    constant,
)
from simrank.kernels.values.operators import aligned
from simrank.kernels.values.types import int1, int32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.kernels.machine.protocols import Array, Value
    from simrank.kernels.values.block import Operand

_MISSING = object()


def num_threads() -> int:
    """Return the threads per program of a kernel that reads thread ids; 0 in other kernels."""
    return machine.now().options.num_threads


def warp_size() -> int:
    """Return the threads of a warp on the current device."""
    return machine.now().options.warp_size


def num_of_program() -> int:
    """Return the threads of a program of any kernel."""
    options = machine.now().options
    return options.warp_size * options.num_warps


def index_along(axis: int) -> Callable[[], Block]:
    """Return a function of thread indices: all threads lie along the first axis."""

    def index() -> Block:
        if axis:
            return constant(0)
        return Block(np.arange(_known_threads(), dtype=np.int32), int32)

    return index


def lane() -> Block:
    """Return the number of each thread in its warp."""
    return Block(np.arange(_known_threads(), dtype=np.int32) % np.int32(warp_size()), int32)


def _known_threads() -> int:
    """Return the number of threads of a kernel whose source reads thread ids.

    Raises:
        UnsupportedError: It does not, so that the program runs as one.
    """
    total = num_threads()
    if not total:
        raise UnsupportedError(
            f"kernel '{machine.now().kernel}' asks which thread it is in a way that its source "
            "does not show: that is not supported"
        )
    return total


def sync_threads() -> None:
    """Do nothing: threads synchronize after every line."""


def varies(value: Any) -> bool:
    """Return whether threads have different values, or may have."""
    return type(value) is Block and type(value.values) is np.ndarray and len(value.values) > 1


def _rows(values: Operand) -> Any:
    """Return a condition as a mask with one row per thread."""
    truth = as_truth(values).values
    if type(truth) is np.ndarray and truth.ndim != 1:
        raise ValueError(
            "the truth of a block is ambiguous: only scalars steer a thread\n"
            "  to fix: reduce it first, for example with tl.max"
        )
    return truth


def of_active(*values: Any, scope: str = "thread") -> list[Array]:
    """Return values of the active threads; one row if all are equal.

    Args:
        values: Scalars, pointers or plain numbers; pointers give addresses.
        scope: The unit that does it: each "thread", each "warp", or the "block" once.

    Raises:
        UnsupportedError: Something is done by a whole block, but differs between threads; or one
            of the values is no scalar.
    """
    rows = [np.atleast_1d(_number(value)) for value in values]
    if any(row.ndim > 1 for row in rows):
        raise UnsupportedError(
            "a library's function of a block, which is called for each element, is not supported"
        )
    total = max([len(row) for row in rows] + [1])
    if total == 1:
        return rows
    if scope == "block":
        raise UnsupportedError(
            "a function that a whole block calls together, with arguments that differ between "
            "its threads, is not supported"
        )
    active = machine.now().active
    chosen = np.arange(total) if active is None else np.flatnonzero(active)
    if scope == "warp":
        chosen = chosen[np.unique(chosen // warp_size(), return_index=True)[1]]
    return [np.broadcast_to(row, total)[chosen] for row in rows]


def _number(value: Any) -> Any:
    if type(value) is not Block:
        return np.int64(value)
    return np.asarray(addresses(value) if value.element.kind == "p" else value.values)


def num_calls(scope: str) -> int:
    """Return the number of calls of threads in a scope; see `of_active`.

    Once in kernels that do not ask for them.
    """
    total, active = num_threads(), machine.now().active
    if not total or scope == "block":
        return 1
    runs = np.ones(total, bool) if active is None else active
    rows = runs.reshape(-1, warp_size()).any(axis=1) if scope == "warp" else runs
    return int(np.count_nonzero(rows))


def as_one(rows: Value) -> Any:
    """Return a plain scalar if all active threads have the same value.

    What is left out is not looked at until threads meet again, and then keeps what it had.
    """
    active = machine.now().active
    chosen = rows if active is None else rows[active]
    return chosen[0] if _are_alike(chosen) else rows


def _are_alike(rows: Array) -> bool:
    """Return whether all rows equal the first, signs of zeros included."""
    if not (rows == rows[0]).all():
        return False
    return rows.dtype.kind != "f" or bool((np.signbit(rows) == np.signbit(rows[0])).all())


def spread(result: Array) -> Any:
    """Return results of the active threads as rows of all; see `of_active`."""
    total = num_threads()
    if (result == result[0]).all():
        return result[0]
    active = machine.now().active
    chosen = slice(None) if active is None else np.flatnonzero(active)
    rows = np.zeros(total, result.dtype)
    rows[chosen] = result
    return rows


# ---- where threads go different ways ----


class DivergentStatement:
    """Assignments of one divergent statement: each thread keeps its own values.

    Attributes:
        varies: Whether some threads are left out now.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.varies = False
        self._names = names
        self._outer: Any = None
        self._before: dict[str, Any] | None = None

    def _enter(self, mask: Array) -> None:
        is_all = bool(mask.all())
        machine.now().active = None if is_all else mask
        self.varies = not is_all

    def start(self, scope: dict[str, Any]) -> None:
        """Save the names' values before a divergent body."""
        self._before = {name: scope.get(name, _MISSING) for name in self._names}

    def left(self, scope: dict[str, Any]) -> Any:
        """Return the names' values after a divergent body; inactive threads keep the old."""
        assert self._before is not None, "started"
        before, self._before = self._before, None
        mask = machine.now().active
        assert mask is not None, "some are left out"
        return tuple(_merged(mask, scope.get(n, _MISSING), before[n]) for n in self._names)

    def check(self) -> None:
        """Raise if a divergent body was left by `continue` or `break`.

        Raises:
            UnsupportedError: It was.
        """
        if self._before is not None:
            raise UnsupportedError(
                "`break` and `continue` where threads go different ways are not supported"
            )


class Branch(DivergentStatement):
    """A divergent `if`: yields the sides that run, with their threads."""

    def __init__(self, test: Any, names: Sequence[str]) -> None:
        super().__init__(names)
        self._test = test

    def __iter__(self) -> Iterator[bool]:
        """Yield True for the first side and False for the second, if any thread takes it."""
        truth = _rows(self._test) if varies(self._test) else None
        if truth is None:
            yield bool(self._test)
            return
        programs = machine.now()
        self._outer = programs.active
        for side in (True, False):
            mask = truth if side else ~truth
            mask = mask if self._outer is None else mask & self._outer
            if mask.any():
                self._enter(mask)
                yield side
        programs.active = self._outer


class DivergentLoop(DivergentStatement):
    """A divergent `for`: threads may run different numbers of rounds."""

    def __init__(self, items: Any, names: Sequence[str]) -> None:
        super().__init__(names)
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        """Yield the item of each round, with the threads that still run."""
        bounds = getattr(self._items, "bounds", None)
        if bounds is None or not any(varies(bound) for bound in bounds()):
            yield from self._items
            return
        programs = machine.now()
        outer = self._outer = programs.active
        start, stop, step = (np.asarray(bound.values, np.int64) for bound in bounds())
        num_rounds = np.maximum(-((start - stop) // step), 0)
        most = num_rounds if outer is None else num_rounds[outer]
        try:
            for number in range(int(most.max(initial=0))):
                self.check()
                mask = number < num_rounds
                self._enter(mask if outer is None else mask & outer)
                yield self._items.item(start + number * step)
        finally:
            programs.active = outer


class Looping(DivergentStatement):
    """A divergent `while`: threads loop until their own condition fails."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._programs = machine.now()
        self._outer = self._programs.active

    def goes(self, test: Any) -> bool:
        """Return whether any thread runs another round; deactivate the finished threads."""
        self.check()
        if not varies(test):
            return bool(test)
        mask = _rows(test)
        alive = self._programs.active
        mask = mask if alive is None else mask & alive
        self._enter(mask)
        return bool(mask.any())

    def over(self) -> None:
        """Reactivate all threads that entered."""
        self._programs.active = self._outer


def choose(test: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Return the value of each thread's side."""
    if not varies(test):
        return first() if test else second()
    programs, result = machine.now(), []
    outer, truth = programs.active, np.asarray(_rows(test))
    for mask, side in ((truth, first), (~truth, second)):
        active = mask if outer is None else mask & outer
        if active.any():  # A side without threads does not run.
            programs.active = active
            result.append(side())
    programs.active = outer
    return _merged(truth, *result) if len(result) == 2 else result[0]


def _merged(mask: Array, new: Any, old: Any) -> Any:
    """Return a value that is new for some threads and old for the remaining ones."""
    if new is old or old is _MISSING or new is None:
        return new
    if isinstance(new, tuple) and isinstance(old, tuple) and len(new) == len(old):
        return tuple(_merged(mask, *both) for both in zip(new, old, strict=True))
    if type(new) is not Block and type(old) is not Block and new == old:
        return new
    ours, theirs = as_block(new), as_block(old)
    if ours.shape != theirs.shape or ours.element is not theirs.element:
        machine.require_all(machine.now())  # Batches that are split can do that.
    if ours.shape != theirs.shape:
        return new
    theirs = cast_to(theirs, ours.element)
    if ours.base is not theirs.base:
        ours = Block(addresses(ours), ours.element)
        theirs = Block(addresses(theirs), ours.element)
    first, second = aligned(ours.values, theirs.values)
    rows = mask.reshape(mask.shape + (1,) * max(np.ndim(first) - 1, np.ndim(second) - 1, 0))
    values: Value = np.where(rows, first, second)
    if values.ndim == 1 and _are_alike(values):
        values = values[0]
    return Block(values, ours.element, ours.base)


# ---- what threads do to memory by Triton's own functions ----


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a memory function for threads: each thread loads its own, thread 0 writes."""
    if name not in OF_MEMORY:
        return function
    if name == "load":
        return _load(function)

    def write(pointer: Any, *args: Any, **kwargs: Any) -> Any:
        active, pointer = machine.now().active, _together(pointer)
        args = tuple(_together(arg) for arg in args)
        kwargs = {name: _together(arg) for name, arg in kwargs.items()}
        if varies(pointer) or any(varies(a) and _is_block(a) for a in (*args, *kwargs.values())):
            raise UnsupportedError(
                f"tl.{name} to addresses or of blocks that differ between threads is not "
                "supported: of a scalar thread 0 alone writes"
            )
        if active is not None and (_is_block(pointer) or not active[0]):
            raise UnsupportedError(
                f"tl.{name} where only some threads are is not supported, but for scalars where "
                "thread 0 is one of them: it alone writes"
            )
        args = tuple(_of_thread_0(arg) for arg in args)
        return function(pointer, *args, **{k: _of_thread_0(v) for k, v in kwargs.items()})

    return write


def _together(value: Any) -> Any:
    """Return a value without rows if all threads have the same."""
    if not varies(value) or not _are_alike(value.values):
        return value
    values = value.values[:1] if value.shape else value.values[0]
    return Block(values, value.element, value.base)


def _is_block(value: Any) -> bool:
    return bool(getattr(value, "shape", False))


def _of_thread_0(value: Any) -> Any:
    return Block(value.values[0], value.element, value.base) if varies(value) else value


def _load(function: Callable[..., Any]) -> Callable[..., Any]:
    def load(pointer: Any, mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        active, pointer, mask = machine.now().active, _together(pointer), _together(mask)
        if not varies(pointer) and not varies(mask):
            return function(pointer, mask, *args, **kwargs)
        if _is_block(pointer) or _is_block(mask):
            raise UnsupportedError("tl.load of blocks that differ between threads")
        if active is not None:
            own = Block(active, int1)
            mask = own if mask is None else as_truth(mask) & own
        return function(pointer, mask, *args, **kwargs)

    return load


OF_MEMORY = (
    "load", "store", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or",
    "atomic_xor", "atomic_xchg", "atomic_cas", "atomic_load", "atomic_store", "atomic_poll",
)  # fmt: skip


def running(body: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap the body of a kernel whose threads may diverge."""

    def run() -> Any:
        try:
            return body()
        except Diverged as split:
            raise UnsupportedError(
                "threads of a program go different ways at a statement that is no plain `if`, "
                "`for` or `while`: a `return`, `break` or `continue`, a number or a conditional "
                "expression"
            ) from split

    return run


def arrived() -> Any:
    """Return the threads that begin a function."""
    return machine.now().active


def returned(value: Any, before: Any) -> Any:
    """Return a function's value; all threads that began it must return.

    Raises:
        UnsupportedError: Some of them are still in a loop, or have left it.
    """
    if machine.now().active is not before:
        raise UnsupportedError("`return` where threads go different ways is not supported")
    return value


HELPERS = {
    "__came": arrived,
    "__returned": returned,
    "__choose": choose,
    "__branch": Branch,
    "__rounds": DivergentLoop,
    "__looping": Looping,
}
