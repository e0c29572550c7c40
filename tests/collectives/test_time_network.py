"""Costs of single steps: latency, shared links, rounding."""

import numpy as np
import pytest

from simrank.collectives import Problem, build
from simrank.collectives import time_network as module
from simrank.collectives.cost import ScheduleCost
from simrank.collectives.time_network import (
    NOT_ARRIVED,
    NOT_KNOWN,
    Lane,
    known_or_marked,
    window_gates,
)
from simrank.collectives.time_rounds import TimePlayer
from simrank.errors import TimeOverflowError
from simrank.hardware import load_cluster

CLUSTER = load_cluster("hgx_h100")


def costs(src, dst, step_bytes, *, cluster=CLUSTER, fan=None, loaded=None):
    """Return sender's and receiver's costs of a round on eight ranks of one node."""
    mask = None if loaded is None else np.array(loaded)
    fans = None if fan is None else np.array(fan)
    lane = Lane(cluster, (np.array(src), np.array(dst)), fan=fans, loaded=mask)
    return lane.costs(np.array(step_bytes))


def flight(*args, **kwargs):
    """Return after how long the receivers have their messages."""
    return costs(*args, **kwargs).flight_ps.tolist()


def test_cost_is_latency_and_bytes_rounded_up_once():
    """376 bytes at 376 GB/s are exactly 1,000 ps; one more is 2.66 ps more."""
    assert flight([0], [1], 376) == [601_000]
    assert flight([0], [1], 377) == [601_003]
    assert flight([0], [1], 0) == [600_000]


def test_steps_that_share_a_link_share_its_bandwidth():
    """Three senders to one rank; a fourth step elsewhere keeps its rate."""
    found = flight([0, 1, 2, 4], [3, 3, 3, 5], 376_000)
    assert found == [3_600_000, 3_600_000, 3_600_000, 1_600_000]


def test_empty_steps_load_nothing():
    """A step without bytes costs its latency, and no other step's time."""
    found = flight([0, 1], [3, 3], [376_000, 0], loaded=[True, False])
    assert found == [1_600_000, 600_000]


def test_a_sender_is_busy_for_the_overhead_of_a_long_route():
    """Between nodes the message takes 2.7 us; its sender goes on after 0.6 us and the bytes."""
    cluster = load_cluster("h100_ib")
    found = costs([0, 1], [8, 2], [47_000, 376_000], cluster=cluster)
    assert found.flight_ps.tolist() == [2_700_000 + 1_000_000, 600_000 + 1_000_000]
    assert found.busy_ps.tolist() == [600_000 + 1_000_000, 600_000 + 1_000_000]


def test_a_repeated_step_loads_its_links_as_often():
    """As if it had been listed twice."""
    ends = (np.array([0, 1]), np.array([3, 3]))
    found = Lane(CLUSTER, ends, repeats=np.array([2, 1])).costs(376_000)
    assert found.flight_ps.tolist() == [3_600_000, 3_600_000]


def test_steps_of_one_fan_load_a_shared_link_once():
    """A multicast leaves its source once; without a switch that copies it would leave thrice."""
    ends = ([0, 0, 0], [1, 2, 3], 376_000)
    assert flight(*ends) == [3_600_000] * 3
    assert flight(*ends, fan=[5, 5, 5]) == [1_600_000] * 3
    assert flight(*ends, fan=[5, 5, -1]) == [2_600_000] * 3


def test_unknown_times_are_marked():
    """Anything that adds costs to an absent rank's arrival is not known."""
    times = np.array([5, NOT_ARRIVED + 12345])
    assert known_or_marked(times).tolist() == [5, NOT_KNOWN]


def test_a_step_longer_than_simulated_time_is_refused():
    """It would not fit an int64, and be any number."""
    with pytest.raises(TimeOverflowError, match=r"26\.7 days"):
        flight([0], [1], 2**62)


# ---- buffers between lanes: many small messages fill them as one large one does ----

CLUSTER_of_time_windows = load_cluster("hgx_h100")
COST = ScheduleCost(CLUSTER_of_time_windows)  # It keeps what it has worked out of a schedule.
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
    """Sums come from rank 7, which no rank sends to, down to the root."""
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
    player = TimePlayer(schedule, network=CLUSTER_of_time_windows, devices=np.arange(8), itemsize=4)
    arrivals = np.array(late_by(3))
    first = player.completions(arrivals)
    assert np.array_equal(player.completions(arrivals + 9), first + 9)
