"""NCCL's choice: its own figures, and who takes part in which collective."""

from dataclasses import replace

import numpy as np
import pytest

from simrank.collectives.nccl import Communicator, GroupShape, laws
from simrank.collectives.nccl.tuner import candidates

ONE, TWO, FOUR = (GroupShape.packed(8 * nodes, 8) for nodes in (1, 2, 4))


def names(collective, shape, spec):
    found = candidates(collective, [8], Communicator(shape, spec))
    return {(each.algorithm, each.protocol) for each in found}


def best(size, shape, spec):
    found = candidates("all_reduce", [size], Communicator(shape, spec))
    chosen = min(found, key=lambda each: each.estimate_us[0])
    return chosen.algorithm, chosen.protocol


@pytest.mark.parametrize(
    ("shape", "algorithm", "expected"),
    [(ONE, "ring", 15.0), (TWO, "tree", 25.2), (FOUR, "tree", 35.2)],
)
def test_the_estimates_are_nccls(hopper, shape, algorithm, expected):
    """Measured: 12.9 us on 8 GPUs, 24.9 on 16, 34.8 on 32."""
    found = candidates("all_reduce", [8], Communicator(shape, hopper))
    (estimate,) = [e for e in found if (e.algorithm, e.protocol) == (algorithm, "LL")]
    assert estimate.estimate_us[0] == pytest.approx(expected, abs=0.01)


def test_a_node_goes_from_rings_of_ll_to_nvls(hopper):
    """As seen on 8 H200: LL for the smallest, NVLS from 2 MiB on."""
    assert best(8, ONE, hopper) == ("ring", "LL")
    assert best(2 << 20, ONE, hopper) == ("nvls", "Simple")
    assert best(1 << 30, ONE, hopper) == ("nvls", "Simple")


def test_nodes_go_from_trees_to_trees_of_nvls(hopper):
    """LL, then LL128, then NVLSTree."""
    assert best(8, TWO, hopper) == ("tree", "LL")
    assert best(1 << 20, TWO, hopper) == ("tree", "LL128")
    assert best(1 << 30, TWO, hopper) == ("nvls_tree", "Simple")


def test_nvls_takes_three_ranks_and_one_node(hopper):
    """Two ranks have nothing to gain, and between nodes it would take CollNet."""
    nvls, nvls_tree = ("nvls", "Simple"), ("nvls_tree", "Simple")
    assert nvls not in names("all_reduce", GroupShape(2, 2, 1), hopper)
    assert nvls in names("all_reduce", GroupShape(3, 3, 1), hopper)
    assert nvls not in names("all_reduce", TWO, hopper)
    assert nvls_tree in names("all_reduce", TWO, hopper)
    assert nvls_tree not in names("all_reduce", ONE, hopper)


def test_switches_of_the_network_that_reduce_let_nvls_cross_nodes(hopper):
    """And CollNet, of all_reduce on several nodes; two passes over the network become one each."""
    sharp = replace(hopper, has_collnet=True)
    crossing = {("nvls", "Simple"), ("collnet_direct", "Simple"), ("collnet_chain", "Simple")}
    plain = names("all_reduce", TWO, hopper)
    assert names("all_reduce", TWO, sharp) == plain | crossing
    assert names("all_reduce", ONE, sharp) == names("all_reduce", ONE, hopper)
    assert names("all_gather", TWO, sharp) == names("all_gather", TWO, hopper)
    assert best(8 << 20, GroupShape.packed(96, 8), sharp) == ("nvls", "Simple")


def test_a_rank_without_a_card_of_its_own_halves_collnet_direct(hopper):
    """NCCL's ratio of devices and cards, averaged with one; a chain does not mind."""
    shape = GroupShape.packed(96, 8)
    every = Communicator(shape, replace(hopper, has_collnet=True))
    third = Communicator(shape, replace(hopper, has_collnet=True, nics=4))
    factors = [laws.collnet_factor("collnet_direct", comm) for comm in (every, third)]
    assert factors == pytest.approx([0.85, 0.85 * 2 / 3])
    assert laws.collnet_factor("collnet_chain", third) == 1


def test_pcie_has_neither_ll128_nor_nvls(pcie):
    """LL128 relies on NVLink's order of 128-byte stores."""
    found = names("all_reduce", GroupShape(4, 2, 2), pcie)
    assert found == {(a, p) for a in ("ring", "tree") for p in ("LL", "Simple")}


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_other_collectives_run_rings(hopper, collective):
    """NVLS of those needs registered buffers."""
    assert {algorithm for algorithm, _ in names(collective, TWO, hopper)} == {"ring"}


@pytest.mark.parametrize(
    "collective", ["all_to_all", "all_to_all_v", "gather", "scatter", "sendrecv"]
)
def test_the_rest_are_messages(hopper, collective):
    """NCCL makes them of sends and receives."""
    assert names(collective, TWO, hopper) == {("p2p", "Simple")}


def test_estimates_are_finite_at_every_size(hopper):
    """From one byte to 16 GiB, past the ends of the table of corrections."""
    sizes = 2.0 ** np.arange(0, 35)
    for each in candidates("all_reduce", sizes, Communicator(FOUR, hopper)):
        assert np.isfinite(each.estimate_us).all()
        assert (each.estimate_us > 0).all()
