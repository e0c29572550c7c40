"""Chakra's traces of all ranks, as one that can be replayed."""

import pytest

from simrank.errors import ConfigError, DeadlockError
from simrank.hardware import load_cluster
from simrank.replay.chakra.nodes import RawNode
from simrank.replay.chakra.read import chakra_trace
from simrank.replay.run import replay
from simrank.replay.trace import CALC, COLLECTIVE, RECV, SEND

NODE = load_cluster("hgx_h100")


def raw(number, kind, *deps, us=0, name="", **attributes):
    return RawNode("t.0.et", None, number, name, kind, deps, us, attributes)


def coll(number, *deps, **attributes):
    return raw(number, "COMM_COLL_NODE", *deps, **{"comm_type": 0, "comm_size": 64} | attributes)


def trace_of(*ranks, **groups):
    return chakra_trace(ranks, groups, "t")


def test_each_type_of_node_becomes_what_a_rank_does():
    """Memory has a stream of its own."""
    trace = trace_of(
        [
            raw(9, "COMP_NODE", us=5, name="forward"),
            raw(4, "MEM_LOAD_NODE", 9, tensor_size=100),
            raw(5, "COMM_SEND_NODE", 9, 4, comm_dst=1, comm_size="8", comm_tag=3),
            raw(6, "METADATA_NODE"),
            coll(7),
        ],
        [raw(1, "COMM_RECV_NODE", comm_src=0, comm_size=8, comm_tag=3), coll(2)],
    )
    comp, load, send, other, all_reduce = trace.ranks[0]
    assert (comp.label, comp.kind, comp.duration_ps, comp.stream) == ("forward", CALC, 5_000_000, 0)
    assert (load.kind, load.size_bytes, load.stream, load.requires) == (CALC, 100, 1, (0,))
    assert (send.kind, send.peer, send.size_bytes, send.tag) == (SEND, 1, 8, 3)
    assert send.requires == (0, 1)
    assert (other.kind, other.duration_ps, other.place) == (CALC, 0, "t.0.et, node 6")
    assert (all_reduce.kind, all_reduce.collective, all_reduce.group) == (
        COLLECTIVE, "all_reduce", (0, 1),
    )  # fmt: skip
    assert trace.ranks[1][0].kind == RECV


def test_a_group_is_who_names_it_or_what_a_file_says():
    """A name that stands for several groups needs the file."""
    ranks = [[coll(1, pg_name="tp")], [coll(1)], [coll(1, pg_name="tp")]]
    assert trace_of(*ranks).groups == [(0, 1, 2), (0, 2)]
    assert trace_of(*ranks, tp=(0, 1, 2)).groups == [(0, 1, 2)]
    with pytest.raises(ConfigError, match="pg_name: expected a group with rank 2"):
        trace_of(*ranks, tp=(0, 1))


def test_collectives_of_a_group_are_issued_in_one_order():
    """That of the file, where dependencies do not say another."""
    a, b, c = trace_of([coll(1, 2), coll(2), coll(3)], [coll(2)], [coll(3)]).ranks[0]
    assert (b.irequires, c.irequires, a.irequires) == ((), (1,), (2,))


def test_what_a_node_does_not_say_costs_the_roofline():
    """Arithmetic at its peak, memory at its rate."""
    (ops,) = replay(trace_of([raw(1, "COMP_NODE", num_ops=10**12)]), NODE)
    assert ops.time_ps == ops.calc_ps == pytest.approx(10**12 / 989e12 * 1e12, rel=1e-6)
    (store,) = replay(trace_of([raw(1, "MEM_STORE_NODE", tensor_size=29 * 10**6)]), NODE)
    assert store.time_ps == 10_000_000
    (both,) = replay(
        trace_of([raw(1, "COMP_NODE", us=20), raw(2, "MEM_STORE_NODE", tensor_size=29 * 10**6)]),
        NODE,
    )
    assert both.time_ps == 20_000_000


@pytest.mark.parametrize("kind", [0, 2, 5, 6, 7, 9, "ALL_GATHER"])
def test_every_collective_is_played_as_a_program_would(kind):
    """Even of sizes that its ranks do not divide."""
    ranks = [[coll(1, comm_type=kind, comm_size=1001)] for _ in range(3)]
    times = replay(trace_of(*ranks), NODE)
    assert all(each.time_ps > 0 for each in times)


def test_a_collective_that_a_rank_lacks_is_a_deadlock_with_its_node():
    """By its name and place."""
    trace = trace_of([coll(1, name="grads", pg_name="dp")], [], dp=(0, 1))
    with pytest.raises(DeadlockError) as caught:
        replay(trace, NODE)
    report = str(caught.value)
    assert "grads: all_reduce of 64 B on ranks 0, 1 (t.0.et, node 1)" in report


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([coll(1), coll(1)], "node 1.id: expected a number of its own, got 1"),
        ([coll(1, 5)], "node 1.deps: expected numbers of nodes of the file, got 5"),
        ([coll(1, 2), coll(2, 1)], "node 1: expected an order in which nodes can run, got a cycle"),
        ([coll(1, comm_type=1)], "node 1.comm_type: expected one of ALL_REDUCE, ALL_GATHER"),
        ([coll(1, comm_type="SUM")], "node 1.comm_type: expected one of ALL_REDUCE"),
        ([coll(1, pg_name=3)], "node 1.pg_name: expected a text, got 3"),
        ([raw(1, "COMM_SEND_NODE", comm_dst=0, comm_size=1)], "comm_dst: expected another rank"),
        ([raw(1, "COMM_SEND_NODE", comm_dst=9, comm_size=1)], "comm_dst: expected a whole number"),
        ([raw(1, "COMM_RECV_NODE", comm_src=1)], "node 1.comm_size: expected a whole number"),
        ([raw(1, "COMP_NODE", us=10**13)], "node 1.duration_micros: expected microseconds up to"),
    ],
)
def test_what_is_wrong_is_said_with_its_node(nodes, message):
    """And its file."""
    with pytest.raises(ConfigError) as caught:
        trace_of(nodes, [])
    assert message in str(caught.value)
    assert str(caught.value).startswith("t.0.et")
