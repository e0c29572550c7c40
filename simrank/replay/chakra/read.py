"""Chakra's traces of all ranks as one trace; start with `chakra_trace`.

A COMP_NODE takes as long as it says, or else the roofline of its `num_ops` and `tensor_size`; a
MEM_LOAD_NODE or MEM_STORE_NODE what `tensor_size` takes in the device's memory. Computation,
memory and communication overlap; two computations of a rank do not, nor do two of its nodes of
memory. A collective's group are the ranks that name its `pg_name` (all ranks, without one), or what
a file of groups says; the collectives of a group are issued in one order, that of the file as far
as dependencies let it.

Source:
    `comm_size` is what astra-sim/astra-sim (`system/collective/Ring.cc`) takes it for: bytes of a
    rank's own part for ALL_GATHER, of its whole input for the others.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank import units
from simrank.replay.chakra.nodes import COLLECTIVES, RawNode
from simrank.replay.trace import CALC, COLLECTIVE, RECV, SEND, Node, Progress, Trace, in_cycle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_BYTES = 1 << 50  # Assumed: larger messages are a mistake.
_MAX_OPS = 1 << 62
_MAX_US = 10**12  # Assumed: eleven days.
_MAX_TAG = 2**31 - 1
_PLAYED = {
    "ALL_REDUCE": "all_reduce",
    "ALL_GATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALL_TO_ALL": "all_to_all",
    "BROADCAST": "broadcast",
    "BARRIER": "barrier",
}
COMPUTE, MEMORY = 0, 1  # Streams.


def chakra_trace(
    ranks: Sequence[Sequence[RawNode]], groups: Mapping[str, tuple[int, ...]], file: str
) -> Trace:
    """Return the trace that the files of all ranks are together.

    Args:
        ranks: Of each rank the nodes of its file.
        groups: Ranks of process groups, by their names.
        file: What the trace is called.

    Raises:
        ConfigError: A node is wrong, or waits for one that is not there, or for itself.
    """
    known = {**_named(ranks), **groups}
    return Trace(
        file, tuple(_rank(rank, raws, known, len(ranks)) for rank, raws in enumerate(ranks))
    )


def _named(ranks: Sequence[Sequence[RawNode]]) -> dict[str, tuple[int, ...]]:
    """Return the naming nodes of each process group."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank, raws in enumerate(ranks):
        for name in dict.fromkeys(_group_name(raw) for raw in raws if raw.type == "COMM_COLL_NODE"):
            found[name].append(rank)
    found[""] = list(range(len(ranks)))
    return {name: tuple(members) for name, members in found.items()}


def _group_name(raw: RawNode) -> str:
    name = raw.attributes.get("pg_name", "")
    if not isinstance(name, str):
        raise raw.error("pg_name", "a text", repr(name))
    return name


def _rank(
    rank: int, raws: Sequence[RawNode], groups: Mapping[str, tuple[int, ...]], num_ranks: int
) -> tuple[Node, ...]:
    places: dict[int, int] = {}
    for place, raw in enumerate(raws):
        if raw.id in places:
            raise raw.error("id", "a number of its own", str(raw.id))
        places[raw.id] = place
    nodes = []
    for raw in raws:
        missing = [dep for dep in raw.deps if dep not in places]
        if missing:
            raise raw.error("deps", "numbers of nodes of the file", str(missing[0]))
        requires = tuple(dict.fromkeys(places[dep] for dep in raw.deps))
        nodes.append(replace(_node(raw, rank, groups, num_ranks), requires=requires))
    stuck = in_cycle(nodes)
    if stuck is not None:
        raw = raws[nodes.index(stuck)]
        raise raw.error("", "an order in which nodes can run", "a cycle")
    return _issued_in_order(nodes)


def _node(raw: RawNode, rank: int, groups: Mapping[str, tuple[int, ...]], num_ranks: int) -> Node:
    """Return a node without its dependencies."""
    where = Path(raw.file).name
    place = f"{where}, node {raw.id}" if raw.line is None else f"{where}:{raw.line}"
    label = raw.name or f"node {raw.id}"
    if raw.type in ("COMM_SEND_NODE", "COMM_RECV_NODE"):
        is_send = raw.type == "COMM_SEND_NODE"
        key = "comm_dst" if is_send else "comm_src"
        peer = raw.whole(key, 0, num_ranks - 1)
        if peer == rank:
            raise raw.error(key, "another rank", f"{peer}, its own")
        return Node(
            label,
            SEND if is_send else RECV,
            place,
            size_bytes=raw.whole("comm_size", 0, _MAX_BYTES),
            peer=peer,
            tag=raw.whole("comm_tag", 0, _MAX_TAG, default=0),
        )
    if raw.type == "COMM_COLL_NODE":
        return Node(label, COLLECTIVE, place, **_collective(raw, rank, groups))
    if not 0 <= raw.duration_us <= _MAX_US:
        raise raw.error("duration_micros", f"microseconds up to {_MAX_US}", str(raw.duration_us))
    is_memory = raw.type.startswith("MEM_")
    return Node(
        label,
        CALC,
        place,
        duration_ps=raw.duration_us * units.PS_PER_US,
        stream=MEMORY if is_memory else COMPUTE,
        num_ops=raw.whole("num_ops", 0, _MAX_OPS, default=0),
        size_bytes=raw.whole("tensor_size", 0, _MAX_BYTES, default=0),
    )


def _collective(raw: RawNode, rank: int, groups: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    kind = raw.attributes.get("comm_type", 0)
    if type(kind) is int and 0 <= kind < len(COLLECTIVES):
        kind = COLLECTIVES[kind]
    if kind not in _PLAYED:
        raise raw.error("comm_type", f"one of {', '.join(_PLAYED)}", repr(kind))
    group = groups[_group_name(raw)]
    if rank not in group:
        raise raw.error("pg_name", f"a group with rank {rank}", f"one of {group}")
    size = raw.whole("comm_size", 0, _MAX_BYTES, default=0 if kind == "BARRIER" else None)
    return {"collective": _PLAYED[str(kind)], "group": group, "size_bytes": size}


def _issued_in_order(nodes: list[Node]) -> tuple[Node, ...]:
    """Make each collective of a group depend on the previous one."""
    progress, last = Progress(nodes), dict[tuple[int, ...], int]()
    while begun := list(progress.begun()):
        for number in begun:
            node = nodes[number]
            if node.kind == COLLECTIVE:
                if node.group in last:
                    nodes[number] = replace(node, irequires=(last[node.group],))
                last[node.group] = number
            progress.end(number)
    return tuple(nodes)
