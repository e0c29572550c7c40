"""Times of NCCL's algorithms: figures by hand, and laws that hold for all sizes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.collectives.bounds import bandwidth_bound_ps
from simrank.collectives.nccl import Calibration, Communicator, GroupShape
from simrank.collectives.nccl.laws import (
    message_bytes_per_s,
    message_terms,
    terms,
    volumes,
)
from tests.collectives.nccl.conftest import HOPPER

ONE, TWO, FOUR = (GroupShape.packed(8 * nodes, 8) for nodes in (1, 2, 4))
CASES = [
    (algorithm, protocol, shape)
    for shape in (ONE, TWO, FOUR)
    for algorithm in ("ring", "tree", "nvls" if shape is ONE else "nvls_tree")
    for protocol in (("LL", "LL128", "Simple") if algorithm in ("ring", "tree") else ("Simple",))
]


def test_a_small_ring_is_its_launch_base_and_steps(hopper):
    """14 LL steps of 0.6 us over NVLink, after 6.6."""
    parts = terms("all_reduce", "ring", "LL", [8], Communicator(ONE, hopper))
    assert (parts.base, parts.latency, parts.launch) == (6.6, pytest.approx(8.4), 4.0)
    assert parts.ramp == 0


def test_a_tree_of_two_nodes_crosses_once_up_and_once_down(hopper):
    """NCCL's 25.2 us for 16 H100: 6.8 + 2 (7 x 0.6 + 5.0)."""
    parts = terms("all_reduce", "tree", "LL", [8], Communicator(TWO, hopper))
    assert parts.base + parts.latency == pytest.approx(25.2)


def test_a_cards_own_latency_is_paid_at_each_step_between_nodes_and_twice_by_simple(hopper):
    """NCCL's tuner adds it once more where data are flushed; messages pay it once."""
    slow = replace(hopper, nic_latency_ps=20_000_000)
    for protocol, times in (("LL", 1), ("LL128", 1), ("Simple", 2)):
        own, more = (
            terms("all_reduce", "tree", protocol, [8], Communicator(FOUR, spec)).latency
            for spec in (hopper, slow)
        )
        assert more - own == pytest.approx(4 * times * 20)
    own, more = (
        terms("all_to_all", "p2p", "Simple", [8], Communicator(FOUR, spec)).latency
        for spec in (hopper, slow)
    )
    assert more - own == pytest.approx(20)
    one_node = terms("all_reduce", "ring", "LL", [8], Communicator(ONE, slow))
    assert one_node.latency == pytest.approx(8.4)


def test_a_ring_over_nodes_pays_the_hosts_overhead(hopper):
    """28 steps of 1.0 us inside, instead of 0.6, and 2 of 2.7 between two nodes."""
    parts = terms("all_reduce", "ring", "LL", [8], Communicator(TWO, hopper))
    assert parts.latency == pytest.approx(28 * 1.0 + 2 * 2.7)


@pytest.mark.parametrize(
    ("algorithm", "shape", "port", "nic"),
    [
        ("ring", ONE, 2 * 7 / 8, 2 * 7 / 8 / 8),
        ("tree", TWO, 2, 1 / 8),
        ("tree", FOUR, 2, 2 / 8),
        ("nvls", ONE, 9 / 8, 1 / 8),
        ("nvls_tree", FOUR, 9 / 8, 2 / 8),
    ],
)
def test_what_the_busiest_links_carry(hopper, algorithm, shape, port, nic):
    """Of each byte: through a device's port, and through one of eight cards."""
    found = volumes("all_reduce", algorithm, np.array([1.0]), Communicator(shape, hopper))
    assert (found.port[0], found.nic[0]) == (pytest.approx(port), pytest.approx(nic))


def test_gathering_is_half_of_reducing(hopper):
    """A ring of all_gather or reduce_scatter passes once."""
    both = terms("all_reduce", "ring", "Simple", [1 << 30], Communicator(ONE, hopper))
    for collective in ("all_gather", "reduce_scatter"):
        once = terms(collective, "ring", "Simple", [1 << 30], Communicator(ONE, hopper))
        assert once.transfer == pytest.approx(both.transfer / 2)


def test_one_gpu_per_node_uses_no_port(hopper):
    """A tree of single GPUs is the network's affair."""
    alone = GroupShape(4, 1, 4)
    assert volumes("all_reduce", "tree", np.array([1.0]), Communicator(alone, hopper)).port == [0]


@pytest.mark.parametrize(("algorithm", "protocol", "shape"), CASES)
@settings(max_examples=15)
@given(sizes=st.lists(st.integers(1, 1 << 34), min_size=2, max_size=8))
def test_more_bytes_never_take_less_time(algorithm, protocol, shape, sizes):
    """For every algorithm, protocol and number of nodes."""
    times = terms(
        "all_reduce", algorithm, protocol, sorted(sizes), Communicator(shape, HOPPER)
    ).total
    assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@given(size=st.integers(1, 1 << 34), num_ranks=st.integers(2, 8))
def test_no_ring_beats_the_bandwidth_bound(protocol, size, num_ranks):
    """Of its own port; NVLS does, for the switch adds."""
    shape = GroupShape.packed(num_ranks, 8)
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        bound_ps = bandwidth_bound_ps(
            collective, num_ranks, size_bytes=size, bandwidth_bytes_per_s=HOPPER.ring_bytes_per_s
        )
        (time_us,) = terms(collective, "ring", protocol, [size], Communicator(shape, HOPPER)).total
        assert time_us >= bound_ps / 1e6


@pytest.mark.parametrize(
    ("constant", "factor"),
    [("hop_intra", 1), ("latency_simple", 1), ("ramp", 1), ("bandwidth_intra", -1)],
)
def test_a_calibrations_constant_moves_the_time_its_way(hopper, constant, factor):
    """Latencies and the ramp up, rates down."""
    before = terms("all_reduce", "ring", "Simple", [4 << 20], Communicator(ONE, hopper)).total
    changed = Calibration(**{constant: 2.0})
    after = terms(
        "all_reduce", "ring", "Simple", [4 << 20], Communicator(ONE, hopper, changed)
    ).total
    assert factor * (after - before) > 0


def test_messages_within_a_node_do_not_need_a_network(pcie):
    """all_to_all and sendrecv of two cards."""
    shape = GroupShape.packed(2, 2)
    for collective in ("all_to_all", "sendrecv", "gather", "scatter"):
        assert terms(collective, "p2p", "Simple", [1 << 20], Communicator(shape, pcie)).total > 0


def test_two_cards_of_a_rank_halve_the_time_of_its_exchange(hopper):
    """As they do that of a ring."""
    one, two = (
        terms("all_to_all", "p2p", "Simple", [1 << 30], Communicator(TWO, replace(hopper, nics=n)))
        for n in (8, 16)
    )
    assert one.transfer == pytest.approx(2 * two.transfer)


def test_messages_between_racks_reach_a_quarter_of_a_card(hopper):
    """As all-to-all of 128 GB300 in two racks did."""
    racks, nodes = GroupShape.packed(128, 64), GroupShape.packed(32, 16)
    slow, fast = (
        terms("all_to_all", "p2p", "Simple", [1 << 30], Communicator(each, spec)).transfer[0]
        for each in (racks, nodes)
        for spec in (replace(hopper, nics=each.num_local),)
    )
    assert slow == pytest.approx(4 * fast)


def test_all_to_all_between_nodes_is_the_networks(hopper):
    """Half of each rank's bytes cross its own card; a lone message reaches a part of it."""
    (time_us,) = terms("all_to_all", "p2p", "Simple", [1 << 30], Communicator(TWO, hopper)).transfer
    assert time_us == pytest.approx((1 << 30) / 2 / 47_500)
    reached = message_bytes_per_s(Communicator(TWO, hopper))
    assert reached == pytest.approx(0.58 * 47.5e9, rel=0.01)
    slow = replace(hopper, nic_bytes_per_s=7_640_000_000)
    assert message_bytes_per_s(Communicator(TWO, slow)) > 0.89 * 7.64e9


def test_a_message_between_two_has_more_channels_than_one_among_many(hopper):
    """NCCL divides 32 channels among the peers of a communicator; large ones take them all."""
    comm = Communicator(GroupShape.packed(2, 2), hopper)
    size = [8 << 20, 1 << 32]
    few, many = (message_terms(size, comm, members).transfer for members in (2, 8))
    assert many[0] == pytest.approx(4 * few[0])
    assert many[1] == few[1] == pytest.approx((1 << 32) / message_bytes_per_s(comm) * 1e6)


def test_a_node_sends_one_message_to_the_next_however_many_ranks_share_its_card(hopper):
    """Each rank sends to the next one: of a node one crosses, as alone."""
    shared = replace(hopper, nics=1)
    eight, one = (
        message_terms([1 << 30], Communicator(shape, shared), 16).transfer
        for shape in (TWO, GroupShape.packed(2, 1))
    )
    assert eight[0] == one[0]
