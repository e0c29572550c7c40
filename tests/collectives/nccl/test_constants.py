"""NCCL's constants are whole: every protocol and architecture has its number."""

import itertools

from simrank.collectives.nccl import constants
from simrank.config.quantity import NCCL_ALGORITHMS, NCCL_ARCHITECTURES, NCCL_HOSTS, NCCL_PROTOCOLS


def test_every_latency_has_three_protocols():
    """In the order of PROTOCOLS, none negative."""
    for row in itertools.chain(constants.BASE_US.values(), constants.STEP_US.values()):
        assert len(row) == len(constants.PROTOCOLS)
        assert min(row) >= 0


def test_ll_steps_are_the_quickest():
    """What the protocols are for: LL waits least, Simple most."""
    for (algorithm, _), (ll, ll128, simple) in constants.STEP_US.items():
        if algorithm in (constants.RING, constants.TREE):
            assert ll < ll128 < simple


def test_configurations_and_tables_name_the_same_machines():
    """What a cluster may say has its rows."""
    for table in (constants.TREE_CHANNEL_GBPS, constants.NVLS_EFFICIENCY):
        assert tuple(table) == NCCL_ARCHITECTURES
    for table in (constants.NET_OVERHEAD_US, constants.LL_MAX_NODES_GBPS):
        assert tuple(table) == NCCL_HOSTS


def test_corrections_of_trees_end_where_they_do_not_correct():
    """23 sizes from 64 B on, as NCCL looks them up."""
    assert [len(row) for row in constants.TREE_CORRECTION] == [23, 23, 23]
    assert all(0 < factor <= 1 for row in constants.TREE_CORRECTION for factor in row)


def test_a_clusters_file_names_what_nccl_has():
    """The same words."""
    assert set(NCCL_ALGORITHMS) == set(constants.ALGORITHMS)
    assert NCCL_PROTOCOLS == constants.PROTOCOLS
