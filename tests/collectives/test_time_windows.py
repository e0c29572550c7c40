"""Buffers between lanes: many small messages fill them as one large one does."""

import numpy as np
import pytest

from simrank.collectives import Problem, build
from simrank.collectives import time_windows as module
from simrank.collectives.cost import ScheduleCost
from simrank.collectives.data import NOT_ARRIVED, NOT_KNOWN
from simrank.collectives.time_rounds import TimePlayer
from simrank.collectives.time_windows import window_gates
from simrank.hardware import load_cluster

CLUSTER = load_cluster("hgx_h100")
COST = ScheduleCost(CLUSTER)  # It keeps what it has worked out of a schedule.
BANDWIDTH = 376e9  # Of a link; bytes per second.
MIB = 1 << 20
SIZE_BYTES, BUFFER_BYTES = 256 * MIB, 64 * MIB
LATE_PS = 50 * 10**9
REST_PS = int((SIZE_BYTES - BUFFER_BYTES) / BANDWIDTH * 1e12)
WHOLE_PS = int(SIZE_BYTES / BANDWIDTH * 1e12)


def ends(collective, arrivals, size_bytes=SIZE_BYTES, root=0, **options):
    """Return when the ranks of a chain end; -1 where that is not known."""
    problem = Problem(collective, len(arrivals), size_bytes // 4, root=root)
    schedule = build(problem, "chain", options=options)
    devices = np.arange(len(arrivals))
    done = COST.completions(schedule, np.array(arrivals), devices=devices, itemsize=4)
    return np.where(done == NOT_KNOWN, -1, done)


def late_by(rank, by=LATE_PS):
    """Return arrivals of eight ranks, one of them late."""
    arrivals = [0] * 8
    arrivals[rank] = by
    return arrivals


@pytest.mark.parametrize("rank", range(1, 8))
def test_a_late_rank_gets_a_broadcast_at_the_rate_of_its_link(rank):
    """One buffer is there when it comes, the rest of 256 MiB flows then; so for all behind it."""
    done = ends("broadcast", late_by(rank))
    assert (done[rank:] >= LATE_PS + REST_PS).all()
    assert (done <= LATE_PS + ends("broadcast", [0] * 8).max()).all()


@pytest.mark.parametrize("rank", range(8))
def test_a_late_rank_gets_a_reduce_at_the_rate_of_its_link(rank):
    """Sums come from rank 7, where nobody sends, down to the root."""
    done = ends("reduce", late_by(rank))
    assert done[0] >= LATE_PS + (REST_PS if rank < 7 else WHOLE_PS)
    assert done[rank] >= LATE_PS + (REST_PS if rank < 7 else WHOLE_PS)


def test_buffers_on_the_way_hold_what_ranks_ahead_have_sent():
    """Rank 6 fills one towards a late rank 7, rank 5 a second one; four hold all of 256 MiB."""
    done = ends("broadcast", late_by(7))
    assert (done[4:] > LATE_PS).all()
    assert (done[:3] < 2 * WHOLE_PS).all()
    assert (ends("broadcast", late_by(7, NOT_ARRIVED))[4:] == -1).all()


def test_who_is_late_may_be_so_by_less_than_the_buffer_holds():
    """Nobody waits for a rank that comes before its buffer is full."""
    together = ends("broadcast", [0] * 8)
    assert (ends("broadcast", late_by(7, 10**8)) == together).all()


def test_what_fits_the_buffer_is_there_when_a_rank_comes():
    """64 MiB in chunks of 512 KiB: as they were."""
    done = ends("broadcast", late_by(7), size_bytes=BUFFER_BYTES)
    assert (done[:7] < 1.1 * WHOLE_PS).all()
    assert done[7] == LATE_PS + 6_600_000


@pytest.mark.parametrize("num_chunks", [1, 2, 3, 5, 64, 512])
def test_the_size_of_chunks_does_not_decide_what_is_early(num_chunks):
    """From one message of 256 MiB to 512 of half a MiB."""
    done = ends("broadcast", late_by(1), num_chunks=num_chunks)
    assert done[1] >= LATE_PS + REST_PS


def test_messages_wait_for_as_much_as_they_need():
    """Chunks of 24 MiB: two fit; the third waits for the first, the fourth for the second."""
    schedule = build(Problem("broadcast", 2, 30 * MIB), "chain", options={"num_chunks": 5})
    gates = window_gates(schedule, 4, room_bytes=BUFFER_BYTES)
    assert gates.tolist() == [0, 0, 2, 3, 4]
    assert window_gates(schedule, 4, room_bytes=120 * MIB) is None


def test_rings_wait_for_who_has_not_begun():
    """All but 64 MiB of what a ring sends to a late rank; in a hierarchy, phase by phase."""
    schedule = build(Problem("all_gather", 4, 30 * MIB // 4), "ring")
    gates = window_gates(schedule, 4, room_bytes=BUFFER_BYTES)
    assert gates.reshape(3, 4).tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3, 0]]
    phases = build(Problem("all_reduce", 4, 320 * MIB // 4, node_size=2), "hierarchical")
    gates = window_gates(phases, 4, room_bytes=100 * MIB)
    assert gates.reshape(4, 4).tolist() == [
        [1, 0, 3, 2], [0, 2, 1, 3], [7, 5, 6, 4], [15, 13, 14, 12]
    ]  # fmt: skip


def test_larger_schedules_compare_messages_one_by_one(monkeypatch):
    """Beyond so many steps no sums are kept."""
    monkeypatch.setattr(module, "MAX_WINDOW_STEPS", 600)
    assert ends("broadcast", late_by(7), num_chunks=60)[7] > LATE_PS + REST_PS
    assert ends("broadcast", late_by(7), num_chunks=120)[7] < LATE_PS + REST_PS


def test_players_keep_their_gates():
    """The second play has the times of the first."""
    schedule = build(Problem("broadcast", 8, SIZE_BYTES // 4), "chain")
    player = TimePlayer(schedule, network=CLUSTER, devices=np.arange(8), itemsize=4)
    arrivals = np.array(late_by(3))
    first = player.completions(arrivals)
    assert np.array_equal(player.completions(arrivals + 9), first + 9)
