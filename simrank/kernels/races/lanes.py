"""Races between lanes of one program, whose threads are not in lockstep.

Two lanes that store different values to one element race. So do two accesses of one element by
different lanes, one of them a write, without a barrier between them: the compiler inserts none
between global accesses. Accesses of the same lanes to the same elements, as in an update in place,
are of the same threads. Lanes are a guess of threads, and barriers of reductions and changes of
layout are the compiler's, so a suspicion is a finding only if the compiled kernel has no barrier
between the two lines. Only the first accesses of a kernel's first launches are checked.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from simrank.engine import user_site
from simrank.kernels import machine

if TYPE_CHECKING:
    from simrank.device.memory import AddressSpace
    from simrank.engine import CallSite
    from simrank.kernels.machine.protocols import Array, Jit, Value

_MOST_CHECKED = 256  # assumed: writes per launch; a faulty line shows in its first accesses
_MOST_LOADS = 4096  # assumed: recorded loads per launch
_MOST_LAUNCHES = 4  # per kernel
_MOST_RECORDED = 16  # assumed: loads and writes of a program each, since its last barrier
_WARP = 32
LOADS, WRITES, ATOMICS = "loads", "writes", "atomics"


class ChecksBarriers(Protocol):
    """Finds barriers in the compiled kernel; see `Launch.are_apart`."""

    def __call__(
        self, first: tuple[CallSite, str], second: tuple[CallSite, str], *, in_a_warp: bool
    ) -> bool:
        """Return whether nothing orders the threads of a program between accesses of two lines."""


class _Access(NamedTuple):
    """An access of one program.

    Attributes:
        addresses: Address of each active lane.
        lanes: Numbers of these lanes in the tile.
        size: Lanes of the tile, masked-off ones included; 1 for a scalar.
        num_dims: Dims of the tile.
        kind: `LOADS`, `WRITES` or `ATOMICS`.
        site: Its line.
        values: Stored values per lane; None for loads and atomics.
    """

    addresses: Array
    lanes: Array
    size: int
    num_dims: int
    kind: str
    site: CallSite | None
    values: Array | None = None


class LaneChecks:
    """Checks lanes of the programs of one launch.

    Args:
        kernel: The kernel's name.
        findings: Receives the findings as keys.
        are_apart: Asks the compiled kernel.
        num_warps: Warps of a program.
    """

    def __init__(
        self, kernel: str, findings: dict[str, None], are_apart: ChecksBarriers, num_warps: int
    ) -> None:
        self._kernel = kernel
        self._findings = findings
        self._are_apart = are_apart
        self._num_warps = num_warps
        self._num_left, self._num_loads = _MOST_CHECKED, _MOST_LOADS
        self._seen: set[tuple[CallSite | None, CallSite | None, str, str]] = set()
        # By program, since its last barrier: loads, and writes.
        self._known: dict[int, tuple[deque[_Access], deque[_Access]]] = {}

    def stored(self, values: Value, addresses: Value, active: Value | None) -> None:
        """Check a store of the running programs.

        Args:
            values: The stored values.
            addresses: Byte addresses of the elements, [1 or P, *shape], or one address for all
                programs.
            active: Lanes that are not masked off; None for all.
        """
        if self._num_left <= 0:
            return
        access = _access(addresses, active, WRITES)
        given = np.atleast_1d(values)[0]  # Of the first program.
        given = np.broadcast_to(given, np.shape(addresses)[1:]).reshape(-1)
        access = access._replace(values=given[access.lanes])
        if not _are_rising(access.addresses):
            self._look_for_two_values(access)
        self._write(access)

    def updated(self, addresses: Value, active: Value | None) -> None:
        """Check an atomic of the running programs; arguments as in `stored`."""
        if self._num_left > 0:
            self._write(_access(addresses, active, ATOMICS))

    def _write(self, access: _Access) -> None:
        self._num_left -= 1
        loads, writes = self._of_program()
        for earlier in (*writes, *loads):
            self._compare(earlier, access)
        writes.append(access)

    def loaded(self, addresses: Value, active: Value | None) -> None:
        """Check a load of the running programs; arguments as in `stored`."""
        if self._num_loads <= 0 or self._num_left <= 0:
            return
        self._num_loads -= 1
        access = _access(addresses, active, LOADS)
        loads, writes = self._of_program()
        for earlier in writes:
            self._compare(earlier, access)
        loads.append(access)

    def barrier(self) -> None:
        """Clear the accesses of the running programs: their threads have synchronized."""
        self._known.pop(int(machine.now().ids[0]), None)

    def _of_program(self) -> tuple[deque[_Access], deque[_Access]]:
        """Return the known loads and writes of the first of the running programs."""
        programs = machine.now()
        number = int(programs.ids[0])
        known = self._known.get(number)
        if known is None:
            if programs.sync is None:  # In lockstep: the programs before have ended.
                self._known.clear()
            known = deque(maxlen=_MOST_RECORDED), deque(maxlen=_MOST_RECORDED)
            self._known[number] = known
        return known

    def _compare(self, first: _Access, second: _Access) -> None:
        """Note a finding if different lanes access one element without a barrier."""
        key = first.site, second.site, first.kind, second.kind
        if first.kind == second.kind == ATOMICS or key in self._seen:
            return
        if first.size == second.size == 1 or not _are_by_other_lanes(first, second):
            return
        self._seen.add(key)
        if first.site is None or second.site is None:
            return
        in_a_warp = self._num_warps == 1 or max(first.size, second.size) <= _WARP
        in_a_warp = in_a_warp or (first.kind == LOADS and second.num_dims > 1)
        places = (first.site, first.kind), (second.site, second.kind)
        if self._are_apart(*places, in_a_warp=in_a_warp):
            self._find(_text(first, second), "call tl.debug_barrier() between the two")

    def _look_for_two_values(self, access: _Access) -> None:
        assert access.values is not None, "a store"
        order = np.argsort(access.addresses, kind="stable")
        ordered, values = access.addresses[order], access.values[order]
        is_same = ordered[1:] == ordered[:-1]
        differs = is_same & _differ(values[1:], values[:-1])
        if not differs.any():
            return
        at = int(differs.argmax())
        lanes = sorted(access.lanes[order[at : at + 2]].tolist())
        self._find(
            f"lanes {lanes[0]} and {lanes[1]} store different values to one element"
            f"{_at(access.site)}: which of them stays is luck",
            "give each element one lane, or use an atomic",
        )

    def _find(self, what: str, cure: str) -> None:
        program = int(machine.now().ids[0])
        text = f"kernel '{self._kernel}', program {program}: {what}\n    to fix: {cure}"
        if not any(known.partition(": ")[2] == text.partition(": ")[2] for known in self._findings):
            self._findings[text] = None


def _access(addresses: Value, active: Value | None, kind: str) -> _Access:
    """Return the access of the first program."""
    site = user_site()
    if np.ndim(addresses) == 0:
        return _Access(np.atleast_1d(addresses), np.zeros(1, np.int64), 1, 0, kind, site)
    row = addresses[0].reshape(-1)
    if active is None:
        lanes = np.arange(len(row))
    else:
        mask = np.broadcast_to(active, np.broadcast_shapes(np.shape(active), addresses.shape))
        lanes = np.flatnonzero(mask[0].reshape(-1))
    return _Access(row[lanes], lanes, len(row), addresses.ndim - 1, kind, site)


def _are_rising(addresses: Array) -> bool:
    """Return whether each lane has an element of its own, in order."""
    return bool((addresses[1:] > addresses[:-1]).all())


def _are_by_other_lanes(first: _Access, second: _Access) -> bool:
    """Return whether an element is accessed by different lanes, and not stored alike."""
    ours, theirs = first.addresses, second.addresses
    if not (len(ours) and len(theirs)):
        return False
    if ours.max() < theirs.min() or theirs.max() < ours.min():
        return False
    is_same_tile = first.size == second.size
    is_alike = np.array_equal(ours, theirs) and np.array_equal(first.lanes, second.lanes)
    if is_same_tile and is_alike and _are_rising(ours):
        return False
    order = np.argsort(ours, kind="stable")
    ordered, lanes = ours[order], first.lanes[order]
    low = np.searchsorted(ordered, theirs)
    high = np.searchsorted(ordered, theirs, side="right") - 1
    is_shared = high >= low
    low, high = np.minimum(low, len(ordered) - 1), np.maximum(high, 0)
    is_other = (lanes[low] != second.lanes) | (lanes[high] != second.lanes)
    if not is_same_tile:  # Lanes of one number may be different threads.
        is_other |= (1 not in (first.size, second.size)) | _reads_by_all_threads(first, second)
    result = is_shared & is_other
    if first.values is not None and second.values is not None:
        result &= _differ(first.values[order][low], second.values)
    return bool(result.any())


def _reads_by_all_threads(first: _Access, second: _Access) -> bool:
    """Return whether one is the load of a scalar, which all threads make."""
    return any(access.size == 1 and access.kind == LOADS for access in (first, second))


def _differ(first: Array, second: Array) -> Array:
    """Return a mask of the values that differ; NaNs are equal."""
    result: Array = first != second
    if first.dtype.kind == "f":
        result &= ~(np.isnan(first) & np.isnan(second))
    return result


def _text(first: _Access, second: _Access) -> str:
    one, other = _at(first.site), _at(second.site)
    if first.kind == LOADS:
        return (
            f"what is loaded{one} is stored in another pattern{other}: threads overwrite what "
            "other threads have yet to load"
        )
    verb = "stored" if first.kind == WRITES else "updated"
    if second.kind == LOADS:
        doing = "store" if first.kind == WRITES else "update"
        return (
            f"what is {verb}{one} is loaded in another pattern{other}: threads read what other "
            f"threads {doing}"
        )
    if first.values is not None and second.values is not None:
        return (
            f"what is stored{one} is stored in another pattern{other}: which of the values stays "
            "is luck"
        )
    again = "stored" if second.kind == WRITES else "updated"
    return (
        f"what is {verb}{one} is {again} in another pattern{other}: threads are in no order "
        "between the two"
    )


def _at(site: CallSite | None) -> str:
    return "" if site is None else f" at {site.line()}"


def lanes_of(
    jit: Jit, space: AddressSpace, are_apart: ChecksBarriers, num_warps: int
) -> LaneChecks | None:
    """Return the lane checker of a launch; None once enough launches of the kernel were checked.

    Args:
        jit: The kernel.
        space: Keeps the findings.
        are_apart: Asks the compiled kernel.
        num_warps: Warps of a program.
    """
    _, number = space.sampled_lanes.get(id(jit), (None, 0))
    if number == _MOST_LAUNCHES:
        return None
    space.sampled_lanes[id(jit)] = jit, number + 1  # Holding `jit` keeps its id unique.
    return LaneChecks(jit.__name__, space.hints, are_apart, num_warps)
