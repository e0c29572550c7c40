"""Proof of a cause: the calls that have not ended are issued again in the simulator.

As recorded they must hang there, and with the cause repaired they must end. Calls that peers wait
for, and that a rank has not come to, are added at its end, as a peer has made them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.distributed.flight_recorder import DTYPE_NAMES
from simrank.errors import SimrankError, who_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from simrank.context import Context
    from simrank.device import Tensor
    from simrank.diagnose.causes import Cause
    from simrank.diagnose.records import CallArguments, Records
    from simrank.diagnose.waits import Waits

_MAX_CALLS = 200_000  # Assumed: more calls than this take minutes.
_DTYPES = {recorded: name for name, recorded in DTYPE_NAMES.items()}


class ReplayedCall(NamedTuple):
    """A call that is issued again.

    Attributes:
        rank, at: Where one like it stands in the records.
        group: Its group.
        ends: Of a message, its source and target, and which of the two this is; else ().
    """

    rank: int
    at: int
    group: int
    ends: tuple[int, ...] = ()


class Replay(NamedTuple):
    """The result of issuing calls again.

    Attributes:
        hangs: Whether the calls hang as recorded; None if they were not issued.
        ends: Whether they end with the cause repaired; None if there is no repair.
        text: In one line.
    """

    hangs: bool | None
    ends: bool | None
    text: str

    @property
    def is_proof(self) -> bool:
        """Return whether the cause is proved."""
        return bool(self.hangs and self.ends)


class Replayer:
    """Issues calls of records again.

    Args:
        records: Of the job.
        waits: What they wait for.
    """

    def __init__(self, records: Records, waits: Waits) -> None:
        self.records = records
        self.waits = waits

    def prove(self, cause: Cause) -> Replay:
        """Issue the unfinished calls, as recorded and repaired."""
        unknown = self._unknown()
        if unknown:
            return Replay(None, None, f"replay: not tried: {unknown}")
        edit = _edit_of(cause)
        calls = self._unfinished(cause)
        if sum(map(len, calls.values())) > _MAX_CALLS:
            return Replay(None, None, f"replay: not tried: more than {_MAX_CALLS:,} calls")
        # Records do not tell whether a call was asynchronous, or its stream waits for it.
        is_async = next((mode for mode in (True, False) if self._hangs(calls, is_async=mode)), None)
        if is_async is None:
            return Replay(False, None, "replay: the calls end, in the simulator, as they are")
        if edit is None:
            return Replay(True, None, "replay: hangs as recorded")
        first = cause.ranks if not cause.repairs and cause.kind in ("order", "ring") else ()
        fixed = self._with_lacking(self._edited(calls, cause), first)
        said = f"with {edit}"
        if self._hangs(fixed, is_async=is_async):
            return Replay(True, False, f"replay: hangs as recorded, and {said} as well")
        return Replay(True, True, f"replay: hangs as recorded; {said} it ends")

    def _unknown(self) -> str:
        for asked in self.records.asked:
            if _function_of(asked.op) is None:
                return f"{asked.op} is not known"
        return ""

    # ---- which calls ----

    def _unfinished(self, cause: Cause) -> dict[int, list[ReplayedCall]]:
        """Return each rank's calls after the last ones that all members of a group have ended."""
        base = self._base()
        for repair in cause.repairs:
            lane, at = self.records.lanes[repair.rank], repair.at
            for group in set(lane.groups[at:]):
                numbers = [
                    number
                    for of, number in zip(lane.groups[at:], lane.numbers[at:], strict=True)
                    if of == group and number >= 0
                ]
                if numbers:
                    base[group] = min(base[group], min(numbers) - 1)
        calls: dict[int, list[ReplayedCall]] = {}
        for rank, lane in self.records.lanes.items():
            mine = calls[rank] = []
            for at, group in enumerate(lane.groups):
                if lane.numbers[at] >= 0:
                    if lane.numbers[at] > base[group]:
                        mine.append(ReplayedCall(rank, at, group))
                elif not lane.is_over[at] and lane.sources[at] >= 0:
                    is_send = self._op(rank, at).startswith("send")
                    ends = lane.sources[at], lane.targets[at], int(not is_send)
                    mine.append(ReplayedCall(rank, at, group, ends))
        return calls

    def _base(self) -> dict[int, int]:
        """Return, by group, the number of the last collective that has ended on all members."""
        base = {}
        for group, known in enumerate(self.records.groups):
            ended = []
            for rank in known.ranks:
                lane = self.records.lanes.get(rank)
                if lane is None:
                    continue
                made = lane.collectives(group)
                open_ = next((number for number, at in made.items() if not lane.is_over[at]), None)
                ended.append(lane.last_numbers.get(group, 0) if open_ is None else open_ - 1)
            base[group] = min(ended, default=0)
        return base

    def _op(self, rank: int, at: int) -> str:
        return self.records.asked[self.records.lanes[rank].asked[at]].op

    def _edited(
        self, calls: Mapping[int, list[ReplayedCall]], cause: Cause
    ) -> dict[int, list[ReplayedCall]]:
        """Return the calls with the cause repaired."""
        fixed = {rank: list(mine) for rank, mine in calls.items()}
        for repair in cause.repairs:
            mine = fixed[repair.rank]
            place = next((n for n, call in enumerate(mine) if call.at >= repair.at), len(mine))
            if repair.removes:
                del mine[place : place + 1]
            if repair.puts is not None:
                peer, at = repair.puts
                group = self._own_group(repair.rank, self.records.lanes[peer].groups[at])
                put = ReplayedCall(peer, at, group)
                if repair.is_moved:
                    alike = (n for n in range(place, len(mine)) if self._is_like(mine[n], put))
                    later = next(alike, len(mine))
                    del mine[later : later + 1]
                mine.insert(place, put)
        return fixed

    def _is_like(self, call: ReplayedCall, other: ReplayedCall) -> bool:
        asked = [self.records.lanes[each.rank].asked[each.at] for each in (call, other)]
        return call.group == other.group and asked[0] == asked[1]

    def _own_group(self, rank: int, group: int) -> int:
        """Return a rank's own group of the kind of another's."""
        groups = self.records.groups
        if rank in groups[group].ranks:
            return group
        alike = (
            number
            for number, each in enumerate(groups)
            if each.desc == groups[group].desc
            and len(each.ranks) == len(groups[group].ranks)
            and rank in each.ranks
        )
        return next(alike, group)

    def _with_lacking(
        self, calls: Mapping[int, list[ReplayedCall]], first: Collection[int]
    ) -> dict[int, list[ReplayedCall]]:
        """Add the calls that members of groups lack, as the member with the most has made them.

        Args:
            calls: Of each rank.
            first: The ranks that make them before their own, instead of after them.
        """
        fixed = {rank: list(calls.get(rank, ())) for rank in self.records.world}
        added: defaultdict[int, list[ReplayedCall]] = defaultdict(list)
        self._add_collectives(fixed, added)
        self._add_messages(fixed, added)
        for rank, more in added.items():
            lacking = sorted(more, key=self._created_ns)
            fixed[rank] = lacking + fixed[rank] if rank in first else fixed[rank] + lacking
        return fixed

    def _created_ns(self, call: ReplayedCall) -> int:
        return self.records.lanes[call.rank].created_ns[call.at]

    def _add_collectives(
        self, calls: Mapping[int, list[ReplayedCall]], added: defaultdict[int, list[ReplayedCall]]
    ) -> None:
        for group, known in enumerate(self.records.groups):
            made = {
                rank: [call for call in calls[rank] if call.group == group and not call.ends]
                for rank in known.ranks
            }
            most = max(known.ranks, key=lambda rank: len(made[rank]), default=None)
            if most is not None:
                for rank in known.ranks:
                    added[rank] += made[most][len(made[rank]) :]

    @staticmethod
    def _add_messages(
        calls: Mapping[int, list[ReplayedCall]], added: defaultdict[int, list[ReplayedCall]]
    ) -> None:
        ends = [call for mine in calls.values() for call in mine if call.ends]
        num = Counter((call.group, *call.ends) for call in ends)
        for call in ends:
            source, target, end = call.ends
            other = call.group, source, target, 1 - end
            if num[other] < num[call.group, source, target, end]:
                num[other] += 1
                added[source if end else target].append(call._replace(ends=other[1:]))

    # ---- in the simulator ----

    def _hangs(self, calls: Mapping[int, list[ReplayedCall]], *, is_async: bool) -> bool:
        """Issue calls on simulated ranks; return whether they hang, or do not fit."""
        from simrank.context import Context  # noqa: PLC0415 - records alone need no simulator

        groups = sorted({call.group for mine in calls.values() for call in mine})
        of_groups = {rank for group in groups for rank in self.records.groups[group].ranks}
        ranks = sorted(of_groups | {rank for rank, mine in calls.items() if mine})
        numbers = {rank: number for number, rank in enumerate(ranks)}
        members = {g: [numbers[rank] for rank in self.records.groups[g].ranks] for g in groups}
        program = _Program(self.records, [calls.get(rank, []) for rank in ranks], members, numbers)
        try:
            with Context.for_ranks(len(ranks), data=False, checks="off") as ctx:
                ctx.multiprocessing.spawn(program.issue, args=(ctx, is_async), nprocs=len(ranks))
        except SimrankError:
            return True
        return False


class _Program(NamedTuple):
    """The program of simulated ranks that issue calls of records.

    Attributes:
        records: The records.
        calls: Of each simulated rank.
        members: The simulated ranks of each group.
        numbers: The simulated rank of each rank.
    """

    records: Records
    calls: list[list[ReplayedCall]]
    members: Mapping[int, list[int]]
    numbers: Mapping[int, int]

    def issue(self, number: int, ctx: Context, is_async: bool) -> None:
        """Issue the calls of one of them.

        Args:
            number: Which.
            ctx: Of the simulation.
            is_async: Whether its streams do not wait for collectives.
        """
        import simrank.distributed as dist  # noqa: PLC0415 - records alone need no simulator

        ctx.cuda.set_device(number)
        dist.init_process_group("nccl")
        made = {group: dist.new_group(of) for group, of in self.members.items()}
        works: list[Any] = []  # They live until the end.
        for call in self.calls[number]:
            asked = self.records.asked[self.records.lanes[call.rank].asked[call.at]]
            group = made[call.group]
            if call.ends:
                source, target, end = call.ends
                peer = self.numbers[source if end else target]
                tensor = _tensor(ctx, asked.inputs or asked.outputs, asked.dtypes)
                works.append((dist.irecv if end else dist.isend)(tensor, peer, group=group))
            else:
                works.append(_issue(ctx, dist, asked, group, self.members[call.group]))
                if not is_async:
                    works[-1].wait()
        ctx.cuda.synchronize()


def _tensor(ctx: Context, sizes: Iterable[Iterable[int]], dtypes: Sequence[str]) -> Tensor:
    """Return a tensor of as many elements as some have together."""
    dtype = _DTYPES.get(dtypes[0] if dtypes else "Float", "float32")
    made: Tensor = ctx.empty((sum(map(prod, sizes)),), dtype=dtype)
    return made


def _function_of(op: str) -> str | None:
    """Return the function that stands for an operation of torch's recorder; None: unknown."""
    for begin, function in (
        ("all_reduce_barrier", "barrier"), ("barrier", "barrier"),
        ("all_reduce", "all_reduce"), ("allreduce", "all_reduce"),
        ("all_gather", "all_gather"), ("_all_gather", "all_gather"),
        ("ALLGATHER", "all_gather"), ("reduce_scatter", "reduce_scatter"),
        ("_reduce_scatter", "reduce_scatter"), ("REDUCE_SCATTER", "reduce_scatter"),
        ("broadcast", "broadcast"), ("_broadcast", "broadcast"), ("gather", "all_to_all"),
        ("scatter", "all_to_all"), ("reduce", "reduce"), ("_reduce_oop", "reduce"),
        ("all_to_all", "all_to_all"), ("alltoall", "all_to_all"),
        ("send", "send"), ("recv", "recv"),
    ):  # fmt: skip
        if op.startswith(begin):
            return function
    return None


def _issue(
    ctx: Context,
    dist: Any,  # noqa: ANN401 - a module
    asked: CallArguments,
    group: Any,  # noqa: ANN401 - a process group
    members: list[int],
) -> Any:  # noqa: ANN401 - a Work
    """Make a call as recorded, and return its Work."""
    num = len(members)
    ins = _tensor(ctx, asked.inputs, asked.input_dtypes)
    outs = _tensor(ctx, asked.outputs, asked.output_dtypes or asked.input_dtypes)
    options = {"group": group, "async_op": True}
    match _function_of(asked.op):
        case "barrier":
            work = dist.barrier(**options)
        case "all_reduce":
            work = dist.all_reduce(ins, **options)
        case "broadcast":
            work = dist.broadcast(ins, members[0], **options)
        case "reduce":
            work = dist.reduce(ins, members[0], **options)
        case "all_gather":
            shard = ctx.empty((outs.numel() // num,), dtype=outs.dtype)
            whole = ctx.empty((shard.numel() * num,), dtype=outs.dtype)
            work = dist.all_gather_into_tensor(whole, shard, **options)
        case "reduce_scatter":
            shard = ctx.empty((ins.numel() // num,), dtype=ins.dtype)
            whole = ctx.empty((shard.numel() * num,), dtype=ins.dtype)
            work = dist.reduce_scatter_tensor(shard, whole, **options)
        case _:  # Splits and roots are not recorded: the replay tries whether all of them come.
            both = ctx.empty((2, num), dtype=ins.dtype)
            work = dist.all_to_all_single(both[0], both[1], **options)
    return work


def _edit_of(cause: Cause) -> str | None:
    """Return the words for a cause's repair; None without one."""
    if cause.repairs:
        return cause.repairs[0].text
    lacking = f"the calls that {who_text(cause.ranks)} lack{'s' * (len(cause.ranks) == 1)}"
    if cause.kind in ("absent", "message", "no record"):
        return lacking
    if cause.kind in ("order", "ring"):
        return f"{lacking} before its own" if len(cause.ranks) == 1 else f"{lacking} before theirs"
    return None
