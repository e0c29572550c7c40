"""Every exception that simrank raises; start here to see what can go wrong.

```text
SimrankError(Exception)
  ConfigError               a YAML file or option is wrong: file:line: key.path: expected X, got Y
  UnsupportedError          a feature that simrank refuses, by name
  HubError                  a task drove the engine; only the hub (the main greenlet) may
  NoRankError               called outside a rank, or outside a Context
  UninitializedValueError   a value was read that a shape-only run does not have
  OutOfMemoryError          a device's memory is full
  SimulationError           something happened inside a run, at a simulated time
    DeadlockError           nothing can ever complete what the ranks wait for (proved)
    LivelockError           ranks poll for ever and nothing changes (suspected)
    CollectiveMismatchError ranks of a group made different calls
    RaceError               two accesses to the same bytes that nothing orders
    TimeLimitError          too much wall-clock time (in engine/watchdog.py, by simrank.engine)
    WaitTimeoutError        an explicit time limit passed (also a TimeoutError)
    ProcessException        torch's base of what `spawn` raises
      ProcessRaisedException
        SpawnException      a rank raised; `.errors` has every root cause
      ProcessExitedException  a rank called `sys.exit` with a non-zero code
RankAborted(SystemExit)     thrown into the siblings of a rank that failed
```
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_REPORT_LINES = 16


def _us(time_ps: int) -> str:
    """Return a time as reports show it; `units` is on this floor and may not be imported."""
    return f"{time_ps / 1_000_000:.3f} us"


class SimrankError(Exception):
    """Base of every error that simrank raises."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong in a configuration.

    Attributes:
        file: The file as the user named it, or "command line".
        line: 1-based line, or None where there is no line.
        key_path: The key as the user would write it, for example `links[0].bandwidth`.
        expected: What would have been accepted.
        got: What was found.
        to_fix: A sentence that says what to write, or None where that is not certain.
    """

    file: str
    line: int | None
    key_path: str
    expected: str
    got: str
    to_fix: str | None = None

    def __str__(self) -> str:
        """Return `file:line: key.path: expected X, got Y`."""
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        key = f" {self.key_path}:" if self.key_path else ""
        text = f"{where}:{key} expected {self.expected}, got {self.got}"
        return text if self.to_fix is None else f"{text}\n  to fix: {self.to_fix}"


class ConfigError(SimrankError):
    """A configuration is wrong; the command line exits with status 2.

    Attributes:
        problems: Every problem that was found, in file order.
    """

    def __init__(self, *problems: ConfigProblem) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class UnsupportedError(SimrankError):
    """A feature that simrank refuses rather than getting it quietly wrong."""


class HubError(SimrankError):
    """A task tried to drive the engine; only the hub, the main greenlet, may."""

    def __init__(self) -> None:
        super().__init__(
            "only the hub (the main greenlet) may drive the engine; this was called from a task\n"
            "  to fix: inside a rank call ctx.wait(handle), which goes back to the hub"
        )


class NoRankError(SimrankError):
    """A call that belongs to a rank was made outside one, or outside a Context."""


class UninitializedValueError(SimrankError):
    """A value was read that the run does not have.

    Attributes:
        created_at: `file.py:line` where the tensor was made, or None.
    """

    def __init__(self, what: str, created_at: str | None) -> None:
        self.created_at = created_at
        made = "" if created_at is None else f" (made at {created_at})"
        super().__init__(
            f"{what}{made} has no values: the Context is shape-only (data=False)\n"
            "  to fix: run with data=True, or read only tensors of up to 64 KiB"
        )


class OutOfMemoryError(SimrankError):
    """An allocation does not fit in a device's memory.

    Attributes:
        requested_bytes: Size of the allocation that failed.
        free_bytes: What is free on the device.
        total_bytes: The device's memory.
        largest: The five largest live allocations as (bytes, `file.py:line`).
    """

    def __init__(
        self, device: int, sizes_bytes: tuple[int, int, int], largest: Sequence[tuple[int, str]]
    ) -> None:
        self.requested_bytes, self.free_bytes, self.total_bytes = sizes_bytes
        self.largest = tuple(largest)
        lines = [
            f"out of memory on device {device}: requested {self.requested_bytes} bytes, "
            f"{self.free_bytes} free of {self.total_bytes}"
        ]
        lines += [f"  {size} bytes allocated at {where}" for size, where in self.largest]
        super().__init__("\n".join(lines))


class SimulationError(SimrankError):
    """Something went wrong at a simulated time.

    Attributes:
        time_ps: Simulated time in picoseconds.
    """

    time_ps: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        return {"kind": type(self).__name__, "time_ps": self.time_ps, "text": str(self)}


@dataclass(frozen=True, slots=True)
class RankState:
    """A set of ranks in the same state.

    Attributes:
        ranks: Global ranks, ascending; -1 stands for a greenlet that is no rank. None at all:
            work in flight.
        state: What they do, for example `all_reduce #7 on group 'tp0'`.
        file: The user's file, or None.
        line: The line in it, or None.
        waits: False if they have ended.
    """

    ranks: tuple[int, ...]
    state: str
    file: str | None = None
    line: int | None = None
    waits: bool = True

    def __str__(self) -> str:
        """Return `ranks 0-2, 5: state at file.py:41`."""
        if not self.ranks:
            who = "in flight"
        elif self.ranks == (-1,):
            who = "a greenlet"
        else:
            who = f"{'rank' if len(self.ranks) == 1 else 'ranks'} {ranks_text(self.ranks)}"
        return f"{who}: {self.state}{_at(self.file, self.line)}"


def _at(file: str | None, line: int | None) -> str:
    return "" if file is None else f" at {file.rpartition('/')[2]}:{line}"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as ranges, for example `0-2, 5`."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    start = 0
    for index, rank in enumerate(ordered):
        if index + 1 == len(ordered) or ordered[index + 1] != rank + 1:
            first = ordered[start]
            parts.append(str(first) if first == rank else f"{first}-{rank}")
            start = index + 1
    if len(parts) > _MAX_RANGES:
        parts[_MAX_RANGES:] = [f"... ({len(ordered)} ranks)"]
    return ", ".join(parts)


_MAX_RANGES = 12


def states_text(states: Sequence[RankState], max_lines: int = MAX_REPORT_LINES - 2) -> list[str]:
    """Return one indented line per state, at most `max_lines`, the rest counted."""
    lines = [f"  {state}" for state in states]
    if len(lines) > max_lines:
        rest = len(lines) - max_lines + 1
        lines[max_lines - 1 :] = [f"  and {rest} more sets of ranks"]
    return lines


class DeadlockError(SimulationError):
    """No wakeup is queued, so no unfinished rank can ever run again.

    Attributes:
        time_ps: Simulated time of the deadlock, in picoseconds.
        waits: Sets of ranks in the same state, those that wait first, with source lines.
        hub_waits_for: What the main greenlet waits for, or None.
        to_fix: A sentence, only where it is certain.
        seed: The seed that replays it.
        proved: True: nothing at all is left that could happen.
    """

    proved = True

    def __init__(
        self,
        time_ps: int,
        waits: Sequence[RankState],
        *,
        hub_waits_for: str | None = None,
        to_fix: str | None = None,
        seed: int = 0,
    ) -> None:
        self.time_ps = time_ps
        self.waits = tuple(waits)
        self.hub_waits_for = hub_waits_for
        self.to_fix = to_fix
        self.seed = seed
        num_waiting = len({rank for state in waits if state.waits for rank in state.ranks})
        what = f"{num_waiting} rank(s) wait forever"
        if not num_waiting:
            what = f"nothing can complete {hub_waits_for or 'what is in flight'}"
        lines = [f"deadlock (proved) at t={_us(time_ps)}: {what}", *states_text(self.waits)]
        if to_fix is not None:
            lines.append(f"  to fix: {to_fix}")
        super().__init__("\n".join(lines))

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        return {
            **super().to_json(),
            "proved": self.proved,
            "seed": self.seed,
            "waits": [asdict(state) for state in self.waits],
            "to_fix": self.to_fix,
        }


class LivelockError(SimulationError):
    """Ranks poll or sleep, round after round, and nothing they could see changes.

    Attributes:
        time_ps: Simulated time of the verdict, in picoseconds.
        waits: Sets of ranks in the same state.
        seed: The seed that replays it.
        proved: False: a program may count its own polls and stop later.
    """

    proved = False

    def __init__(self, time_ps: int, waits: Sequence[RankState], *, seed: int = 0) -> None:
        self.time_ps = time_ps
        self.waits = tuple(waits)
        self.seed = seed
        lines = [f"livelock (suspected) at t={_us(time_ps)}: ranks poll, nothing changes"]
        super().__init__("\n".join(lines + states_text(self.waits)))

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        waits = [asdict(state) for state in self.waits]
        return {**super().to_json(), "proved": False, "seed": self.seed, "waits": waits}


class WaitTimeoutError(SimulationError, TimeoutError):
    """An explicit time limit of a wait passed.

    Attributes:
        time_ps: Simulated time in picoseconds.
        rank: Who waited; None is the main program, or a greenlet that is no rank.
        what: What for.
        timeout_ps: The limit, in picoseconds.
    """

    def __init__(self, time_ps: int, rank: int | None, what: str, timeout_ps: int) -> None:
        self.time_ps = time_ps
        self.rank = rank
        self.what = what
        self.timeout_ps = timeout_ps
        who = "the main program" if rank is None else f"rank {rank}"
        super().__init__(
            f"{who} waited {_us(timeout_ps)} for {what}: the time limit passed at t={_us(time_ps)}"
        )


@dataclass(frozen=True, slots=True)
class CallVariant:
    """One of the differing calls of a mismatch: the ranks that made it, its columns, its line."""

    ranks: tuple[int, ...]
    columns: Mapping[str, str]
    file: str | None
    line: int | None


class CollectiveMismatchError(SimulationError):
    """Ranks of a group made different calls under the same sequence number.

    No rank is presumed right. Raised at the second call that differs.

    Attributes:
        time_ps: Simulated time in picoseconds.
        group: The group's name.
        seq: The sequence number of the call in the group.
        variants: The distinct calls, with their ranks and lines.
        not_called: Ranks of the group that have not made the call yet.
        differing: Names of the columns that differ.
    """

    def __init__(
        self,
        time_ps: int,
        group: str,
        seq: int,
        variants: Sequence[CallVariant],
        not_called: Sequence[int],
    ) -> None:
        self.time_ps = time_ps
        self.group = group
        self.seq = seq
        self.variants = tuple(variants)
        self.not_called = tuple(not_called)
        names = dict.fromkeys(name for variant in variants for name in variant.columns)
        self.differing = tuple(
            name for name in names if len({v.columns.get(name) for v in variants}) > 1
        )
        lines = [
            f"mismatch (proved) at t={_us(time_ps)}: the ranks of group '{group}' differ "
            f"in {' and '.join(self.differing)} at call #{seq}"
        ]
        lines += [f"  {self._variant_text(variant)}" for variant in self.variants]
        if self.not_called:
            lines.append(f"  {RankState(self.not_called, 'not called yet')}")
        super().__init__("\n".join(lines))

    def _variant_text(self, variant: CallVariant) -> str:
        columns = [variant.columns["op"]] if "op" not in self.differing else []
        columns += [f"{name}={variant.columns.get(name, '-')}" for name in self.differing]
        return str(RankState(variant.ranks, " ".join(columns), variant.file, variant.line))

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        variants = [{**asdict(v), "columns": dict(v.columns)} for v in self.variants]
        return {
            **super().to_json(),
            "group": self.group,
            "seq": self.seq,
            "differing": self.differing,
            "variants": variants,
            "not_called": self.not_called,
        }


@dataclass(frozen=True, slots=True)
class RaceAccess:
    """One access of a race: the operation (or "host read"), "reads" or "writes", stream, place."""

    name: str
    verb: str
    stream: str
    file: str | None
    line: int | None

    def __str__(self) -> str:
        """Return `add_ writes, on stream 'default' at train.py:12`."""
        return f"{self.name} {self.verb}, on stream '{self.stream}'{_at(self.file, self.line)}"


class RaceError(SimulationError):
    """Two accesses to the same bytes, one of them a write, that nothing orders.

    Simulated numbers may look right; on hardware they depend on timing.

    Attributes:
        time_ps: Simulated time at which the second access was issued.
        rank: The rank; None in the main program.
        first, second: The accesses, in the order in which they were issued.
        created_at: Where the memory was allocated, as `file.py:line`, or None.
    """

    def __init__(
        self,
        time_ps: int,
        rank: int | None,
        first: RaceAccess,
        second: RaceAccess,
        created_at: str | None,
    ) -> None:
        self.time_ps = time_ps
        self.rank = rank
        self.first = first
        self.second = second
        self.created_at = created_at
        who = "the main program" if rank is None else f"rank {rank}"
        made = "" if created_at is None else f" (tensor made at {created_at})"
        super().__init__(
            f"race (proved) at t={_us(time_ps)}: nothing orders two accesses of {who}{made}\n"
            f"  {first}\n  {second}\n"
            "  to fix: before the second, wait for the first (work.wait(), an event, synchronize)"
        )

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        first, second = asdict(self.first), asdict(self.second)
        facts = {"rank": self.rank, "first": first, "second": second, "created_at": self.created_at}
        return {**super().to_json(), **facts}


class RankAborted(SystemExit):
    """Thrown into a rank at its wait point because another rank of its group failed.

    Attributes:
        rank: The rank that is ended.
    """

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        super().__init__("another rank of the group failed")


class ProcessException(SimulationError):  # noqa: N818 - torch's name
    """What `spawn` raises for a failed rank; names and attributes as in torch.multiprocessing.

    Attributes:
        msg: The text.
        error_index: The rank.
        pid: The simulated process id (also `error_pid`).
    """

    def __init__(self, msg: str, error_index: int, pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.pid = self.error_pid = pid


class ProcessRaisedException(ProcessException):
    """A rank raised an exception."""


class SpawnException(ProcessRaisedException):
    """One or more ranks raised; the lowest is the one described first.

    Attributes:
        errors: Rank -> the exception it raised, own type kept; root causes only.
        stubborn: Ranks that swallowed every abort and were parked.
    """

    def __init__(
        self, msg: str, error_index: int, pid: int, *, errors: Mapping[int, BaseException]
    ) -> None:
        super().__init__(msg, error_index, pid)
        self.errors = dict(errors)
        self.stubborn: tuple[int, ...] = ()


class ProcessExitedException(ProcessException):
    """A rank called `sys.exit` with a non-zero code, or was terminated.

    Attributes:
        exit_code, signal_name: The code and None, or minus a signal's number and its name.
    """

    def __init__(
        self,
        msg: str,
        error_index: int,
        error_pid: int,
        exit_code: int,
        signal_name: str | None = None,
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name
