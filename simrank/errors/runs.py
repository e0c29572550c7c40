"""Errors inside a run: hangs, mismatches, races, dead peers, divergence of ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from simrank.errors.base import (
    MAX_REPORT_LINES,
    RankState,
    SimrankError,
    SimulationError,
    at_text,
    states_text,
    text_of,
    us_text,
    who_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class DeadlockError(SimulationError):
    """No wakeup is queued, so no unfinished rank can ever run again.

    Attributes:
        time_ps: Simulated time of the deadlock, in picoseconds.
        waits: Sets of ranks in the same state, those that wait first, with source lines.
        hub_waits_for: What the main greenlet waits for, or None.
        to_fix: A sentence, only where it is certain.
        seed: The seed that replays it.
        proved: Whether nothing at all is left that could happen. Not so where a rank waits only
            because simulated torch has computed already what hardware would compute later, while
            others wait for calls that its host might have made.
        diverged_at: Divergence of the ranks, if it was followed; see `simrank.trace.divergence`.
        unlike: The first equal calls that ranks made from different lines, or None.
        odd_step: The step from call to call that is unlike all others, or None.
    """

    def __init__(  # noqa: PLR0913 - each a keyword of its own
        self,
        time_ps: int,
        waits: Sequence[RankState],
        *,
        hub_waits_for: str | None = None,
        to_fix: str | None = None,
        seed: int = 0,
        proved: bool = True,
        diverged_at: DivergencePoint | None = None,
        unlike: UnlikeCalls | None = None,
        odd_step: OddStep | None = None,
    ) -> None:
        self.proved = proved
        self.odd_step = odd_step
        self.diverged_at = diverged_at
        self.unlike = unlike
        self.time_ps = time_ps
        self.waits = tuple(waits)
        self.hub_waits_for = hub_waits_for
        self.to_fix = to_fix
        self.seed = seed
        num_waiting = len({rank for state in waits if state.waits for rank in state.ranks})
        what = f"{num_waiting} rank(s) wait forever"
        if not num_waiting:
            what = f"nothing can complete {hub_waits_for or 'what is in flight'}"
        kind = "proved" if proved else "suspected"
        lines = [f"deadlock ({kind}) at t={us_text(time_ps)}: {what}"]
        lines += _states_and_causes(self.waits, unlike, odd_step, diverged_at)
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
            "diverged_at": None if self.diverged_at is None else asdict(self.diverged_at),
            "to_fix": self.to_fix,
            **_clues(self.unlike, self.odd_step),
        }


class LivelockError(SimulationError):
    """Ranks poll or sleep, round after round, and nothing they could see changes.

    Attributes:
        time_ps: Simulated time of the verdict, in picoseconds.
        waits: Sets of ranks in the same state.
        seed: The seed that replays it.
        proved: False: a program may count its own polls and stop later.
        diverged_at: The divergence of the ranks, if it was followed.
        unlike: The first equal calls that ranks made from different lines, or None.
        odd_step: The step from call to call that is unlike all others, or None.
    """

    proved = False

    def __init__(
        self,
        time_ps: int,
        waits: Sequence[RankState],
        *,
        seed: int = 0,
        diverged_at: DivergencePoint | None = None,
        unlike: UnlikeCalls | None = None,
        odd_step: OddStep | None = None,
    ) -> None:
        self.odd_step = odd_step
        self.diverged_at = diverged_at
        self.unlike = unlike
        self.time_ps = time_ps
        self.waits = tuple(waits)
        self.seed = seed
        lines = [f"livelock (suspected) at t={us_text(time_ps)}: ranks poll, nothing changes"]
        lines += _states_and_causes(self.waits, unlike, odd_step, diverged_at)
        super().__init__("\n".join(lines))

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        waits = [asdict(state) for state in self.waits]
        diverged_at = None if self.diverged_at is None else asdict(self.diverged_at)
        reported = {"proved": False, "seed": self.seed, "waits": waits, "diverged_at": diverged_at}
        return {**super().to_json(), **reported, **_clues(self.unlike, self.odd_step)}


def _states_and_causes(
    states: Sequence[RankState], *causes: DivergencePoint | UnlikeCalls | OddStep | None
) -> list[str]:
    """Return the lines of a report, as short with likely causes as without."""
    known = [f"  {cause}" for cause in causes if cause is not None]
    return [*states_text(states, MAX_REPORT_LINES - 2 - len(known)), *known]


def _clues(unlike: UnlikeCalls | None, odd_step: OddStep | None) -> dict[str, Any]:
    """Return the hints at the cause of a failure as plain data."""
    clues = {"unlike": unlike, "odd_step": odd_step}
    return {name: asdict(clue) for name, clue in clues.items() if clue is not None}


class WaitTimeoutError(SimulationError, TimeoutError, RuntimeError):
    """An explicit time limit of a wait passed; also a RuntimeError, which torch's waits raise.

    Attributes:
        time_ps: Simulated time in picoseconds.
        rank: The waiting rank; None is the main program, or a greenlet that is no rank.
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
            f"{who} waited {us_text(timeout_ps)} for {what}: "
            f"the time limit passed at t={us_text(time_ps)}"
        )


class TimeOverflowError(SimulationError, OverflowError):
    """Simulated time would pass its end: 2**61 picoseconds, some 26 days.

    Attributes:
        time_ps: Simulated time now, in picoseconds.
        due_ps: What would have to be reached.
    """

    def __init__(self, time_ps: int, due_ps: int) -> None:
        self.time_ps = time_ps
        self.due_ps = due_ps
        super().__init__(
            f"simulated time ends at 2**61 ps (26.7 days): at t={us_text(time_ps)} something takes "
            f"until t={us_text(due_ps)}\n"
            "  to fix: look for a sleep, a size or a bandwidth in the wrong unit"
        )


@dataclass(frozen=True, slots=True)
class CallVariant:
    """One of the differing calls of a mismatch: the ranks that made it, its columns, its line."""

    ranks: tuple[int, ...]
    columns: Mapping[str, str]
    file: str | None
    line: int | None


_CURES = {
    "op": "make every rank of the group issue the same collectives in the same order",
    "ranks": "call new_group on every rank, for every group, in the same order and with the same "
    "ranks",
    "reduce_op": "pass the same reduce op on every rank",
    "root": "pass the same src or dst on every rank",
    "dtype": "cast the tensors to one dtype on every rank",
    "splits": "make the number of elements that a rank sends to a peer, or to itself, the number "
    "that the receiver expects",
    "sizes": "pass the tensors of a coalesced call in the same order on every rank",
    "count": "give every rank a tensor of the same size: pad it, or send the sizes first",
}


def _cure_of(differing: Sequence[str]) -> str:
    """Return the cure for a mismatch, by the first column that differs."""
    known = next((_CURES[name] for name in _CURES if name in differing), None)
    return known or f"make the ranks' calls agree in {' and '.join(differing)}"


class CollectiveMismatchError(SimulationError):
    """Ranks of a group made different calls under the same sequence number.

    No rank is presumed right. Raised at the second call that differs. Its text says of the ranks
    in `not_called` what they do meanwhile.

    Attributes:
        time_ps: Simulated time in picoseconds.
        group: The group's name.
        seq: The sequence number of the call in the group.
        variants: The distinct calls, with their ranks and lines.
        not_called: Ranks of the group that have not made the call yet.
        differing: Names of the columns that differ.
        unlike: The first equal calls before it that ranks made from different lines, or None.
        odd_step: The step from call to call that is unlike all others, or None.
        to_fix: What to change.
    """

    def __init__(  # noqa: PLR0913 - each a keyword of its own
        self,
        time_ps: int,
        group: str,
        seq: int,
        variants: Sequence[CallVariant],
        not_called: Sequence[int],
        *,
        unlike: UnlikeCalls | None = None,
        odd_step: OddStep | None = None,
        doing: Sequence[RankState] = (),
        to_fix: str | None = None,
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
            f"mismatch (proved) at t={us_text(time_ps)}: the ranks of group '{group}' differ "
            f"in {' and '.join(self.differing)} at call #{seq}"
        ]
        lines += [f"  {self._variant_text(variant)}" for variant in self.variants]
        told = {rank for state in doing for rank in state.ranks}
        untold = tuple(rank for rank in self.not_called if rank not in told)
        lines += [f"  {replace(each, state=f'not there yet: {each.state}')}" for each in doing]
        if untold:
            lines.append(f"  {RankState(untold, 'not there yet')}")
        self.unlike, self.odd_step = unlike, odd_step
        lines += [f"  {clue}" for clue in (unlike, odd_step) if clue is not None]
        self.to_fix = to_fix or _cure_of(self.differing)
        if (
            to_fix is None
            and "op" not in self.differing
            and len({(v.file, v.line) for v in self.variants}) > 1
        ):
            self.to_fix = (
                "the calls are of different lines: make every rank reach the same one; or, if they "
                f"belong together, {self.to_fix}"
            )
        lines.append(f"  to fix: {self.to_fix}")
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
            **_clues(self.unlike, self.odd_step),
        }


@dataclass(frozen=True, slots=True)
class RaceAccess:
    """One access of a race: the operation (or "host read"), "reads" or "writes", stream, line."""

    name: str
    verb: str
    stream: str
    file: str | None
    line: int | None

    def __str__(self) -> str:
        """Return `add_ writes, on stream 'default' at train.py:12`."""
        return f"{self.name} {self.verb}, on stream '{self.stream}'{at_text(self.file, self.line)}"


class RaceError(SimulationError):
    """Two accesses to the same bytes, one of them a write, that nothing orders.

    Simulated numbers may look right; on hardware they depend on timing.

    Attributes:
        time_ps: Simulated time at which the second access was issued.
        rank: The rank; None in the main program.
        first, second: The accesses, in the order in which they were issued.
        created_at: Where the memory was allocated, as `file.py:line`, or None.
    """

    def __init__(  # noqa: PLR0913 - the facts, and how to say them
        self,
        time_ps: int,
        rank: int | None,
        first: RaceAccess,
        second: RaceAccess,
        created_at: str | None,
        *,
        what: str = "nothing orders two accesses of {whose}",
        cure: str = "before the second, wait for the first (work.wait(), an event, synchronize)",
    ) -> None:
        self.time_ps = time_ps
        self.rank = rank
        self.first = first
        self.second = second
        self.created_at = created_at
        who = "the main program" if rank is None else f"rank {rank}"
        made = "" if created_at is None else f" (tensor made at {created_at})"
        super().__init__(
            f"race (proved) at t={us_text(time_ps)}: {what.format(whose=who + made)}\n"
            f"  {first}\n  {second}\n  to fix: {cure}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        first, second = asdict(self.first), asdict(self.second)
        facts = {"rank": self.rank, "first": first, "second": second, "created_at": self.created_at}
        return {**super().to_json(), **facts}


class DistBackendError(SimulationError, RuntimeError):
    """NCCL refuses to make a communicator: two of its ranks use the same device.

    Attributes:
        time_ps: Simulated time in picoseconds.
        device: The device's index.
        uses: The calls of the two ranks, with their lines.
    """

    def __init__(self, time_ps: int, device: int, uses: Sequence[RankState]) -> None:
        self.time_ps = time_ps
        self.device = device
        self.uses = tuple(uses)
        first, second = (state.ranks[0] for state in self.uses)
        lines = [
            f"NCCL error (proved) at t={us_text(time_ps)}: invalid usage: Duplicate GPU detected : "
            f"rank {second} and rank {first} both on CUDA device {device}",
            *states_text(self.uses),
            "  to fix: call torch.cuda.set_device(local_rank) before the first tensor is made",
        ]
        super().__init__("\n".join(lines))

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        uses = [asdict(state) for state in self.uses]
        return {**super().to_json(), "device": self.device, "uses": uses}


class DistNetworkError(SimulationError, RuntimeError):
    """A port that a rendezvous needs is in use on its simulated host; torch's words.

    Attributes:
        time_ps: Simulated time in picoseconds.
        port: The port.
    """

    def __init__(self, time_ps: int, port: int) -> None:
        self.time_ps = time_ps
        self.port = port
        super().__init__(
            f"The server socket has failed to listen on any local network address. port: {port}, "
            "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        )

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        return {**super().to_json(), "port": self.port}


class IllegalTransportError(SimrankError, ValueError, RuntimeError):
    """A transport does not reach the memory of a buffer.

    Attributes:
        size_bytes: Of the buffer's storage.
        kind: Of memory: "host", "device" or "fabric".
        transport: For example "nccl".
        allocated_at: The line, as `train.py:41`; None where it is not known.
    """

    def __init__(
        self, what: str, size_bytes: int, kind: str, transport: str, allocated_at: str | None
    ) -> None:
        self.size_bytes = size_bytes
        self.kind = kind
        self.transport = transport
        self.allocated_at = allocated_at
        where = "" if allocated_at is None else f", allocated at {allocated_at}"
        cure = "move it with .cuda()"
        if transport == "peer access":
            cure = "allocate it with symmetric_memory.empty"
        super().__init__(
            f"{what}: {transport} does not reach a buffer of {size_bytes} bytes in {kind} memory"
            f"{where}\n  to fix: {cure}"
        )


class RankInactiveError(SimulationError, RuntimeError):
    """A call needs a rank that is inactive: a root, or the other end of a message.

    Attributes:
        time_ps: Simulated time in picoseconds.
        what: What cannot complete.
        peer: The rank that is inactive.
        since_ps: Since when.
    """

    def __init__(self, time_ps: int, what: str, peer: int, since_ps: int) -> None:
        self.time_ps = time_ps
        self.what = what
        self.peer = peer
        self.since_ps = since_ps
        super().__init__(
            f"{what} cannot complete: rank {peer} is inactive since t={us_text(since_ps)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        return {**super().to_json(), "what": self.what, "peer": self.peer}


class PeerDiedError(SimulationError, RuntimeError):
    """A wait cannot complete: a rank that takes part in it has died or given up.

    A rank dies alone with `Context(on_failure="continue")`; else the first failure ends all ranks.
    It gives up where the time limit of a call passes: that closes its connections to the group.

    Attributes:
        time_ps: Simulated time in picoseconds.
        what: What cannot complete, for example `all_reduce #7 on group 'tp0'`.
        peer: The rank that died or gave up.
        peer_error: What it raised.
    """

    def __init__(self, time_ps: int, what: str, peer: int, peer_error: BaseException) -> None:
        self.time_ps = time_ps
        self.what = what
        self.peer = peer
        self.peer_error = peer_error
        cause = type(peer_error).__name__
        text = text_of(peer_error).partition("\n")[0]
        end = "gave up a call" if isinstance(peer_error, WaitTimeoutError) else "died"
        if isinstance(peer_error, RankInactiveError):
            end = "was deactivated"
        super().__init__(
            f"{what} cannot complete: rank {peer} {end} before t={us_text(time_ps)} "
            f"({cause}{': ' if text else ''}{text})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return every fact as plain data."""
        return {**super().to_json(), "what": self.what, "peer": self.peer}


# ---- divergence of ranks: the line from which they went different ways to a failure ----


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that went the same way.

    Attributes:
        ranks: Their numbers, ascending.
        did: What, for example `took it`.
        values: Names of the condition, with what they stood for there.
    """

    ranks: tuple[int, ...]
    did: str
    values: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return `ranks 1-3 did not (loss = 2.9)`."""
        known = ", ".join(f"{name} = {value}" for name, value in self.values)
        return f"{who_text(self.ranks)} {self.did}" + (f" ({known})" if known else "")


_LOOPS = ("for ", "while ", "async for ")


@dataclass(frozen=True, slots=True)
class DivergencePoint:
    """The last line at which ranks were together, and what each did then.

    Attributes:
        file: The user's file.
        line: The line in it.
        text: Its source; empty where that is not known.
        sides: The ranks of each outcome.
    """

    file: str
    line: int
    text: str
    sides: tuple[Side, ...]

    def __str__(self) -> str:
        """Return `diverged at train.py:41 `if loss > 3:`: rank 0 took it, rank 1 did not`."""
        shown = f" `{self.text}`" if self.text else ""
        sides = "; ".join(map(str, self.sides))
        text = f"diverged{at_text(self.file, self.line)}{shown}: {sides}"
        if self.text.startswith(_LOOPS):
            text += (
                "\n  to fix: make all ranks go round it as often, as by a maximum of the numbers"
            )
        return text


@dataclass(frozen=True, slots=True)
class UnlikeCalls:
    """Equal calls that ranks made from different lines: legal, and often the sign of lost step.

    Attributes:
        name: The call, for example `all_reduce #1 on group 'default_pg'`.
        sides: The ranks of each line; the state of each is empty.
    """

    name: str
    sides: tuple[RankState, ...]

    def __str__(self) -> str:
        """Return the call, and the line of each set of ranks."""
        sides = ", ".join(str(side).replace(": ", "", 1) for side in self.sides)
        return f"first equal calls from different lines: {self.name}: {sides}"


@dataclass(frozen=True, slots=True)
class OddStep:
    """A step from one call to the next that few ranks take, where they usually take another.

    Attributes:
        ranks: Those that took it.
        before: The call from which they went, with its line.
        after: To which.
        usual: To which they, or the others, go elsewhere.
        is_skipped: Whether the usual call comes before `after` elsewhere.
    """

    ranks: tuple[int, ...]
    before: str
    after: str
    usual: str
    is_skipped: bool

    def __str__(self) -> str:
        """Return `odd step: rank 6 skipped all_reduce at ...: it went from ... straight to ...`."""
        who = f"odd step: {who_text(self.ranks)}"
        if self.is_skipped:
            return f"{who} skipped {self.usual}: from {self.before} straight to {self.after}"
        return f"{who} went from {self.before} to {self.after}, elsewhere to {self.usual}"
