"""Traces of other tools in whichever form they come, replayed on a cluster.

`read_trace` recognises the form; `replay` tells when each rank was done.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import simrank.distributed as dist
from simrank.config.files import read_user_file
from simrank.config.json_parts import read_parts
from simrank.context import Context
from simrank.device.stream import KernelOperation
from simrank.engine import Handle
from simrank.errors import CollectiveMismatchError, ConfigError, ConfigProblem, SimrankError
from simrank.errors.base import add_note
from simrank.formats.chakra import chakra_trace, is_chakra_json, read_text_form, read_wire
from simrank.formats.goal import is_goal, parse_goal
from simrank.formats.operations import ANY, CALC, COLLECTIVE, SEND, Progress
from simrank.hardware.roofline import kernel_ps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simrank.device import Stream, Tensor
    from simrank.distributed import ProcessGroup
    from simrank.engine import Observer
    from simrank.formats.chakra import RawNode
    from simrank.formats.operations import Trace, TraceNode
    from simrank.hardware import Cluster


@dataclass(frozen=True, slots=True)
class ReplayTimes:
    """The times of one rank in a replay.

    Attributes:
        rank: Its number.
        num_nodes: Nodes that it did.
        time_ps: When its last one was over.
        calc_ps: How long its calcs take together.
        sent_bytes: What it sent.
    """

    rank: int
    num_nodes: int
    time_ps: int
    calc_ps: int
    sent_bytes: int


def replay(
    trace: Trace, cluster: Cluster, *, observers: Sequence[Observer] = (), seed: int = 0
) -> list[ReplayTimes]:
    """Replay a trace; rank r is on device r.

    Args:
        trace: What each rank does.
        cluster: The hardware.
        observers: Observers of the run.
        seed: Decides what happens first of what happens at one time.

    Raises:
        SimrankError: The cluster has fewer devices than the trace has ranks.
        DeadlockError: The trace hangs; the report names the nodes that each rank waits for.
    """
    num_ranks = len(trace.ranks)
    if num_ranks > cluster.num_devices:
        raise SimrankError(
            f"{trace.file} has {num_ranks} ranks, {cluster.name} {cluster.num_devices} devices\n"
            "  to fix: give it more --nodes, or another cluster"
        )
    context = Context(cluster, data=False, seed=seed)
    for observer in observers:
        context.observe(observer)
    players = [Player(rank, nodes, trace.groups, context) for rank, nodes in enumerate(trace.ranks)]
    with context:
        context.multiprocessing.spawn(
            lambda rank: players[rank].play(), nprocs=num_ranks, share_args=True
        )
    return [_times(rank, player, trace) for rank, player in enumerate(players)]


def _times(rank: int, player: Player, trace: Trace) -> ReplayTimes:
    nodes = trace.ranks[rank]
    return ReplayTimes(
        rank,
        len(nodes),
        player.end_ps,
        player.calc_ps,
        sum(node.size_bytes for node in nodes if node.kind == SEND),
    )


# ---- Player of one rank: each node begins as soon as its dependencies have ended ----

_MAX_SHOWN = 4
_DTYPE = "bfloat16"  # Assumed, of arithmetic in traces that do not say which.


class _Outstanding(Handle):
    """The end of whichever node of a rank ends next; reports show which ones are awaited."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        super().__init__()
        self.nodes = nodes

    def describe(self) -> str:
        """Return the nodes that are under way, messages first: a calc ends by itself."""
        awaited = [node.describe() for node in self.nodes if node.kind != CALC]
        awaited = awaited or [node.describe() for node in self.nodes]
        more = f", and {len(awaited) - _MAX_SHOWN} more" if len(awaited) > _MAX_SHOWN else ""
        return f"{', '.join(awaited[:_MAX_SHOWN])}{more}"


class Player:
    """One rank.

    Args:
        rank: Its number.
        nodes: What it does.
        groups: The groups of all collectives of all ranks.
        context: The Context that it runs in.

    Attributes:
        end_ps: When its last node so far was over.
        calc_ps: How long its calcs so far take together.
    """

    def __init__(
        self,
        rank: int,
        nodes: Sequence[TraceNode],
        groups: Sequence[tuple[int, ...]],
        context: Context,
    ) -> None:
        self._rank = rank
        self._group_ranks = groups
        self._groups: dict[tuple[int, ...], ProcessGroup | int | None] = {}
        self._nodes = nodes
        self._context = context
        self._streams: dict[int, Stream] = {}
        self._buffers: dict[tuple[str, int], Tensor] = {}
        self._under_way: dict[int, TraceNode] = {}
        self._over: list[int] = []
        self._awaited: _Outstanding | None = None
        self.end_ps = self.calc_ps = 0

    def play(self) -> None:
        """Run all nodes, and return after the last."""
        dist.init_process_group("gloo")  # The backend with tags, and receives from any rank.
        for ranks in self._group_ranks:  # Every rank makes all of them, in one order.
            self._groups[ranks] = dist.new_group(list(ranks), backend="nccl")
        progress = Progress(self._nodes)
        while True:
            for number in progress.begun():
                self._under_way[number] = self._nodes[number]
                self._begin(number).on_complete(partial(self._end, number))
            if not self._over and not self._under_way:
                return
            if not self._over:
                self._awaited = _Outstanding(tuple(self._under_way.values()))
                self._wait()
            over, self._over = self._over, []
            for number in over:
                progress.end(number)

    def _wait(self) -> None:
        """Wait for a node; errors of messages name the nodes."""
        assert self._awaited is not None
        try:
            self._context.wait(self._awaited)
        except CollectiveMismatchError as error:
            add_note(error, f"simrank: rank {self._rank} was at {self._awaited.describe()}")
            raise

    def _end(self, number: int) -> None:
        """Note that a node is over; the hub calls it."""
        del self._under_way[number]
        self._over.append(number)
        engine = self._context.engine
        self.end_ps = engine.now_ps
        if self._awaited is not None and not self._awaited.complete:
            self._awaited.finish(engine)

    def _begin(self, number: int) -> Handle:
        """Start a node; returns its end."""
        node = self._nodes[number]
        if node.kind == CALC:
            stream = self._stream(node.stream)
            cost_ps = self._cost(node)
            self.calc_ps += cost_ps
            calc = KernelOperation(stream, node.label, duration_ps=cost_ps, demands=())
            stream.submit(calc, cost_ps=0)
            return calc
        if node.kind == COLLECTIVE:
            return self._collective(node)
        data = self._buffer(node.kind, node.size_bytes)
        if node.kind == SEND:
            work = dist.isend(data, node.peer, tag=node.tag)
        else:
            work = dist.irecv(data, None if node.peer == ANY else node.peer, tag=node.tag)
        assert work is not None, "every rank is in the default group"
        handle: Handle = work.handle
        return handle

    def _cost(self, node: TraceNode) -> int:
        """Return the time of a calc node: as given, or the device's cost."""
        if node.duration_ps or not (node.num_ops or node.size_bytes):
            return node.duration_ps
        return kernel_ps(self._context.cluster.device, node.num_ops, _DTYPE, node.size_bytes)

    def _collective(self, node: TraceNode) -> Handle:
        """Start a collective; every rank has parts of one size, rounded up."""
        num_ranks, group = len(node.group), self._groups[node.group]
        options: dict[str, Any] = {"group": group, "async_op": True}
        part = self._buffer("part", -(-node.size_bytes // num_ranks))
        whole = self._buffer("whole", part.numel() * num_ranks)
        if node.collective == "all_gather":
            part = self._buffer("part", node.size_bytes)
            whole = self._buffer("whole", part.numel() * num_ranks)
            work = dist.all_gather_into_tensor(whole, part, **options)
        elif node.collective == "reduce_scatter":
            work = dist.reduce_scatter_tensor(part, whole, **options)
        elif node.collective == "all_to_all":
            work = dist.all_to_all_single(self._buffer("other", whole.numel()), whole, **options)
        elif node.collective == "broadcast":
            data = self._buffer("all", node.size_bytes)
            work = dist.broadcast(data, node.group[0], **options)
        elif node.collective == "barrier":
            work = dist.barrier(**options)
        else:
            work = dist.all_reduce(self._buffer("all", node.size_bytes), **options)
        handle: Handle = work.handle
        return handle

    def _buffer(self, use: str, size_bytes: int) -> Tensor:
        """Return a buffer for a message, whose contents are never read."""
        key = use, max(size_bytes, 1)
        if key not in self._buffers:
            self._buffers[key] = self._context.empty(key[1], dtype=self._context.uint8)
        return self._buffers[key]

    def _stream(self, number: int) -> Stream:
        if number not in self._streams:
            device = self._context.devices[self._rank]
            self._streams[number] = device.new_stream(f"cpu {number}")
        return self._streams[number]


# ---- a trace in whichever form it comes; start with `read_trace` ----

_RANK = re.compile(r"\.(\d{1,9})\.[A-Za-z]+$", re.ASCII)
_FORMS = "a GOAL schedule (`num_ranks 2`), or Chakra's traces in JSON or protobuf"


def read_trace(files: Sequence[str], groups_file: str | None = None) -> Trace:
    """Read a trace.

    Args:
        files: One GOAL schedule, or a file of Chakra for each rank: `name.0.et`, `name.1.et`, ...
        groups_file: Ranks of Chakra's process groups by their names, in JSON, as ASTRA-sim has it.

    Raises:
        ConfigError: A file is none of these, or something in it is wrong.
    """
    first = read_user_file(files[0])
    text = _text_of(first)
    if text is not None and is_goal(text):
        if len(files) > 1:
            raise ConfigError(ConfigProblem(files[1], None, "", "one GOAL schedule", "a second"))
        return parse_goal(text.replace("\r\n", "\n"), files[0])
    ranks: dict[int, list[RawNode]] = {}
    for file in files:
        nodes = _raw_nodes(
            read_user_file(file), file
        )  # First check for a trace: only then reject the file's name.
        rank = _rank_of(file, len(files))
        if rank in ranks:
            raise ConfigError(
                ConfigProblem(file, None, "", "a file per rank", f"rank {rank} again")
            )
        ranks[rank] = nodes
    groups = {} if groups_file is None else _groups(groups_file, len(files))
    return chakra_trace([ranks[rank] for rank in range(len(files))], groups, files[0])


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _raw_nodes(data: bytes, file: str) -> list[RawNode]:
    text = _text_of(data)
    if text is not None and is_chakra_json(text):
        return read_text_form(text, file)
    if not file.endswith(".et"):
        line = None if text is None else 1
        got = "bytes that are no text" if text is None else text.lstrip().partition("\n")[0]
        raise ConfigError(ConfigProblem(file, line, "", _FORMS, got or "nothing"))
    return read_wire(data, file)


def _rank_of(file: str, num_ranks: int) -> int:
    match = _RANK.search(file)
    if match is None or int(match[1]) >= num_ranks:
        expected = f"{_FORMS} with their ranks 0 to {num_ranks - 1} in their names: trace.0.et"
        raise ConfigError(ConfigProblem(file, None, "", expected, "another name"))
    return int(match[1])


def _groups(file: str, num_ranks: int) -> Mapping[str, tuple[int, ...]]:
    """Return the ranks of each process group."""
    data = read_user_file(file).decode("utf-8", "replace")
    parts = list(read_parts(data, file))
    if len(parts) != 1:
        expected = "one object: name to ranks"
        raise ConfigError(ConfigProblem(file, 1, "", expected, f"{len(parts)}"))
    part = parts[0]
    for name, members in part.data.items():
        is_valid = (
            isinstance(members, list)
            and members
            and all(type(rank) is int and 0 <= rank < num_ranks for rank in members)
        )
        if not is_valid or len(set(members)) < len(members):
            raise part.error(name, f"ranks from 0 to {num_ranks - 1}", json.dumps(members))
    return {name: tuple(sorted(members)) for name, members in part.data.items()}
