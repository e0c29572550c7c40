"""What a collective sends over each link, and touches in memories."""

import dataclasses

import numpy as np
import pytest

from simrank.collectives import Problem
from simrank.collectives.algorithms import build
from simrank.collectives.schedule import Buffer, ChunkTable, Op, Round, Schedule
from simrank.collectives.traffic import link_bytes, memory_bytes
from simrank.hardware.load import load_cluster


def named(schedule, cluster, num_ranks, itemsize):
    """Return the bytes of each link by its name."""
    sent = link_bytes(schedule, cluster, np.arange(num_ranks), itemsize)
    return {cluster.link_name(link): size for link, size in sent.items()}


@pytest.mark.parametrize("options", [{}, {"num_loops": 3}])
@pytest.mark.parametrize("num_ranks", [2, 3, 6, 8])
def test_a_ring_sends_what_the_theory_says(num_ranks, options):
    """Each rank 2 (n - 1) / n of the data, in and out (Patarasuk and Yuan, 2009)."""
    schedule = build(Problem("all_reduce", num_ranks, 2400), "ring", options=options)
    sent = named(schedule, load_cluster("hgx_h100"), num_ranks, 4)
    expected = 2 * (num_ranks - 1) * 2400 * 4 // num_ranks
    assert sent == {
        name: expected
        for rank in range(num_ranks)
        for name in (f"node 0: gpu{rank} -> nvswitch", f"node 0: nvswitch -> gpu{rank}")
    }


def test_a_broadcast_enters_every_rank_but_its_root_once():
    """What enters has left some rank."""
    schedule = build(Problem("broadcast", 8, 1000, root=3), "binomial")
    sent = named(schedule, load_cluster("hgx_h100"), 8, 2)
    entered = {name: size for name, size in sent.items() if "-> gpu" in name}
    assert entered == {f"node 0: nvswitch -> gpu{rank}": 2000 for rank in range(8) if rank != 3}
    assert sum(sent.values()) == 2 * sum(entered.values())


def test_steps_inside_a_switch_load_the_link_they_share_once():
    """A multicast leaves its rank once and enters the others each."""

    def rounds():
        zeros, to = np.zeros(3, dtype=np.int64), np.array([1, 2, 3])
        yield Round(
            zeros, to, zeros + Buffer.INPUT, zeros, zeros + Buffer.OUTPUT, zeros, zeros + 1,
            zeros + Op.COPY, zeros, fan=zeros,
        )  # fmt: skip

    table = ChunkTable.split(100, 1)
    schedule = Schedule("broadcast", "multicast", 4, rounds, 1, table, table)
    sent = named(schedule, load_cluster("hgx_h100"), 4, 4)
    assert sent == {
        "node 0: gpu0 -> nvswitch": 400,
        **{f"node 0: nvswitch -> gpu{rank}": 400 for rank in (1, 2, 3)},
    }


@pytest.mark.parametrize("num_ranks", [2, 3, 6, 8])
def test_rings_in_closed_form_touch_the_memory_that_their_steps_do(num_ranks):
    """Sent: 2 (n - 1) / n of the data; two accesses each, and one more where it is added."""
    schedule = build(Problem("all_reduce", num_ranks, 2400), "ring")
    steps = dataclasses.replace(schedule, phases=())
    sent = (num_ranks - 1) * 2400 * 4 // num_ranks
    assert memory_bytes(schedule, 4) == memory_bytes(steps, 4) == sent * (3 + 2)


def test_in_a_switch_data_is_read_once_and_sums_are_written_once():
    """NVLS reads each rank's data once, writes the sum of its part, and each rank's result."""
    schedule = build(Problem("all_reduce", 8, 2400), "nvls")
    # Per part: 8 reads and a write, a read and 8 writes.
    assert memory_bytes(schedule, 2) == 2400 * 2 * (9 + 9) // 8
