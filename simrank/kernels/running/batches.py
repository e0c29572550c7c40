"""Lockstep execution: a whole grid in numpy at once, split or masked at divergence (K1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.kernels import machine
from simrank.kernels.machine import Programs, PublishedError, UnmaskableError
from simrank.kernels.values.block import Block, Diverged

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine import RunningLaunch
    from simrank.kernels.machine.protocols import Array
    from simrank.kernels.machine.statistics import Counts
    from simrank.kernels.races.launch_log import LaunchAccesses

# Elements that one operation has over all programs of a batch. More of them do not fit the caches
# (measured: 140 times the stock interpreter at 2**16 to 2**17, 38 times at 2**19).
_BATCH_ELEMENTS = 1 << 16
_FIRST_BATCH = 8
# Where programs diverge early, for example at the bounds of a loop, this many batches are started
# together, so that the programs that go the same way fill a batch (measured: attention 1.4 times).
_SPLIT_BATCHES = 8
# Every split throws away the steps before it. Once what was thrown away exceeds this share of what
# running one by one would have cost, the batch goes on with masks, or one by one (measured where
# every tile branches at random: 1.1 times the time of one by one; 1.7 without this rule).
_MOST_IN_VAIN = 1 / 16
# A batch that would fall into more ways than this share of its programs goes on with masks.
_MANY_WAYS = 0.5
_LEAST_MASKED = 4  # measured: fewer programs are faster one by one
MAX_SPLITS = 64  # assumed: programs that split more often have little in common


class _Batch(NamedTuple):
    """Programs that run together: ids, and whether masks are allowed."""

    ids: Array
    is_masked: bool = False


class Grid:
    """A grid of programs that neither wait nor publish.

    Args:
        setting: What they share.
        log: Where accesses are noted; None where races are not looked for.
        is_sample: Whether those of the first batch are enough.

    Attributes:
        num_splits: How often the programs of a batch went different ways.
        log: As given.
        left: Ids of the programs that have not run; set when one of them turns out to publish.
    """

    def __init__(
        self, setting: RunningLaunch, log: LaunchAccesses | None = None, *, is_sample: bool = False
    ) -> None:
        self._setting = setting
        self.log = log
        self._is_sample = is_sample
        self._statistics = setting.statistics
        self._total = math.prod(setting.grid)
        self.num_splits = 0
        self.left = np.arange(self._total)
        self._masked: Callable[[], Callable[[], Any]] | None = None
        self._bodies: dict[bool, Callable[[], Any]] = {}
        self._starts_masked = False

    def run(
        self,
        body: Callable[[], Any],
        mode: str = "auto",
        *,
        masked: Callable[[], Callable[[], Any]] | None = None,
        chosen: Array | None = None,
    ) -> None:
        """Run every program: in the order of their ids, or shuffled by a fixed seed.

        Args:
            body: Runs the kernel for the current batch.
            mode: One of the modes of `operation.MODES`, but "tasks".
            masked: Makes the form of the kernel in which programs can be masked off; None if there
                is no such form.
            chosen: The programs that run; None: all.
        """
        self._masked, self._bodies = masked, {False: body}
        self._starts_masked = mode == "masked"
        order = np.arange(self._total) if chosen is None else chosen
        total = len(order)
        if mode == "shuffled":
            order = np.random.default_rng(total).permutation(order)
            for done in range(total):
                self._run_batch(order[done : done + 1], order[done + 1 :])
            return
        one_by_one = mode == "one-by-one"
        batch = 1 if one_by_one else _FIRST_BATCH
        done = 0
        while done < total:
            done += self._run_batch(order[done : done + batch], order[done + batch :])
            if not one_by_one:
                batch = self._next_batch(batch)

    def _next_batch(self, batch: int) -> int:
        """Return the size of the next batch, from the block sizes of the first."""
        if self.num_splits > MAX_SPLITS:
            return 1
        batch = self._most(batch)
        return batch * _SPLIT_BATCHES if self.num_splits and not self._starts_masked else batch

    def _most(self, batch: int) -> int:
        """Return the number of programs whose blocks fit the CPU's caches."""
        return max(_BATCH_ELEMENTS // max(self._statistics.largest_block, 1), 1, min(batch, 4))

    def _run_batch(self, ids: Array, rest: Array) -> int:
        """Run programs; a divergence of the first ones defers it for the rest.

        Returns:
            How many programs have run.
        """
        work = _Remaining(ids, rest, is_masked=self._starts_masked and len(ids) > 1)
        while work.waiting:
            chosen, is_masked = work.waiting.pop()
            programs = self._programs(chosen)
            before, first_step = self._statistics.snapshot(), self._statistics.num_steps
            self._statistics.tell_apart(chosen if is_masked else None)
            try:
                machine.run(programs, self._body(is_masked=is_masked))
            except PublishedError:
                self._undo(programs, before)
                others = [batch.ids for batch in reversed(work.waiting)]
                self.left = np.concatenate([chosen, *others, work.rest])
                raise
            except Exception as error:
                if not is_masked and not isinstance(error, Diverged):
                    raise
                choices = getattr(error, "choices", None)
            else:
                self._starts_masked |= is_masked
                self._statistics.note_load(chosen, before)
                if self.log is not None:
                    self.log.commit()
                    self.log = None if self._is_sample else self.log
                continue
            self._undo(programs, before)
            if is_masked or choices is None:  # Without masks the error comes again, if it is real.
                self._masked, self._starts_masked = None, False
                work.waiting.append(_Batch(chosen))
            else:
                self._diverge(work, chosen, choices, self._statistics.num_steps - first_step + 1)
        return work.total

    def _undo(self, programs: Programs, before: Counts) -> None:
        """Undo the effects of programs."""
        programs.roll_back()
        self._statistics.restore(before)
        if self.log is not None:
            self.log.drop()

    def _diverge(self, work: _Remaining, chosen: Array, choices: Array, steps: int) -> None:
        """Return the batches in which programs continue after a divergence."""
        if self.num_splits == 0 and not work.has_more and len(work.rest):
            chosen, choices = work.with_more(chosen, _SPLIT_BATCHES), choices[:0]
        if self._masked is not None and choices.dtype == np.bool_:
            self.num_splits += 1
            work.waiting += self._apart([chosen])  # An `if` is likely to make them diverge again.
            return
        if not len(choices):
            work.waiting.append(_Batch(chosen))
            return
        self.num_splits += 1
        work.num_diverged += 1
        work.steps_in_vain += steps
        if work.num_diverged > 1 and work.steps_in_vain > steps * work.total * _MOST_IN_VAIN:
            left = [batch.ids for batch in work.waiting]
            work.waiting = self._apart([*left, chosen])
        else:
            work.waiting += reversed(self._groups(chosen, choices))

    def _programs(self, ids: Array) -> Programs:
        return Programs(self._setting, ids, keeps_undo=True, log=self.log)

    def _body(self, *, is_masked: bool) -> Callable[[], Any]:
        if is_masked not in self._bodies:
            assert self._masked is not None, "asked for only where there is one"
            self._bodies[is_masked] = self._masked()
        return self._bodies[is_masked]

    def _groups(self, ids: Array, choices: Array) -> list[_Batch]:
        """Return a batch per branch; after too many splits, see `_apart`."""
        ways = np.unique(choices)
        if self.num_splits > MAX_SPLITS or len(ways) > len(ids) * _MANY_WAYS:
            return self._apart([ids])[::-1]
        most = self._most(len(ids))
        result = []
        for choice in ways:
            alike = ids[choices == choice]
            result += [_Batch(alike[start : start + most]) for start in range(0, len(alike), most)]
        return result

    def _apart(self, batches: list[Array]) -> list[_Batch]:
        """Return batches for programs that diverge often: masked, or else one by one.

        The last programs come first, since batches are taken from the end.
        """
        most = self._most(0)
        if self._masked is None or most < _LEAST_MASKED:
            return _singles(batches)
        ids = np.sort(np.concatenate(batches))
        return [
            _Batch(ids[start : start + most], is_masked=True) for start in range(0, len(ids), most)
        ][::-1]


class _Remaining:
    """The remaining programs of a batch.

    Attributes:
        waiting: Which programs run next, the first ones last.
        rest: Programs behind the batch.
        total: Programs that were taken.
        has_more: Whether some of the rest were taken too.
        num_diverged: How often programs have diverged.
        steps_in_vain: What they had done then.
    """

    def __init__(self, ids: Array, rest: Array, *, is_masked: bool) -> None:
        self.waiting: list[_Batch] = [_Batch(ids, is_masked)]
        self.rest = rest
        self.total = len(ids)
        self.has_more = False
        self.num_diverged = 0
        self.steps_in_vain = 0

    def with_more(self, chosen: Array, times: int) -> Array:
        """Return programs and their successors, up to `times` as many in all."""
        num_more = min(len(chosen) * (times - 1), len(self.rest))
        more, self.rest = self.rest[:num_more], self.rest[num_more:]
        self.has_more = True
        self.total += num_more
        return np.concatenate([chosen, more])


def _singles(batches: list[Array]) -> list[_Batch]:
    """Return a batch per program in reverse order: batches are taken from the end."""
    ids = np.sort(np.concatenate(batches))[::-1]
    return [_Batch(ids[index : index + 1]) for index in range(len(ids))]


# ---- divergent programs in lockstep: programs on other branches are masked off ----
# A kernel is rewritten for it as `ThreadRewriter` says: an `if`, `for` or `while` goes on with the
# programs that take it, and what it assigns stays as it was for the others. What touches memory is
# done for the programs that are there, as if they were the whole batch. What cannot be done so is
# left to batches that are split: nothing depends on which of the two runs a kernel.

_WITH_MEMORY = (
    "load", "store", "dot", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or",
    "atomic_xor", "atomic_xchg", "atomic_cas", "atomic_load", "atomic_store",
)  # fmt: skip
_WHOLE = ("device_print", "device_assert", "assume", "atomic_poll", "map_elementwise")


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of the language for calls with masked-off programs."""
    if name in _WITH_MEMORY:
        return _for_active(function)
    return _for_all(function) if name in _WHOLE else function


def _for_all(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if machine.now().active is not None:
            raise UnmaskableError
        return function(*args, **kwargs)

    return call


def _for_active(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        programs = machine.now()
        active, ids = programs.active, programs.ids
        if active is None:
            return function(*args, **kwargs)
        there = np.flatnonzero(active)
        args = tuple(_rows(value, there) for value in args)
        kwargs = {name: _rows(value, there) for name, value in kwargs.items()}
        programs.active, programs.ids = None, ids[there]
        try:
            result = function(*args, **kwargs)
        finally:
            programs.active, programs.ids = active, ids
        return _spread(result, there, len(ids))

    return call


def _rows(value: object, there: Array) -> Any:
    """Return a block's rows of some programs; shared and other values unchanged.

    Raises:
        UnmaskableError: It may hold blocks that are not seen from here, as descriptors do.
    """
    if type(value) is Block:
        values = value.values
        if type(values) is not np.ndarray or len(values) == 1:
            return value
        return Block(values[there], value.element, value.base)
    if value is None or isinstance(value, int | float | str | bool) or hasattr(value, "scalar"):
        return value
    if isinstance(value, tuple) and not any(type(part) is Block for part in value):
        return value
    raise UnmaskableError


def _spread(result: object, there: Array, total: int) -> Any:
    """Return a result in the rows of its programs; the other rows are never read."""
    if type(result) is not Block or type(result.values) is not np.ndarray or len(there) == total:
        return result
    values = result.values
    if len(values) == 1:
        return result
    rows = np.zeros((total, *values.shape[1:]), values.dtype)
    rows[there] = values
    return Block(rows, result.element, result.base)
