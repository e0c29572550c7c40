"""A trace on a cluster: its times, and what is said of one that hangs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.errors import DeadlockError, SimrankError, SpawnException
from simrank.hardware import load_cluster
from simrank.replay.goal import parse_goal
from simrank.replay.run import replay

NODE = load_cluster("hgx_h100")


def times_of(text, **options):
    return replay(parse_goal(text, "t.goal"), NODE, **options)


def test_calcs_of_a_stream_follow_each_other_and_streams_overlap():
    """Nothing else costs anything."""
    (only,) = times_of(
        "num_ranks 1\nrank 0 {\ncalc 1000\ncalc 500\ncalc 700 cpu 1\n"
        "a: calc 10 cpu 2\nb: calc 1 cpu 3\nb requires a\n}\n"
    )
    assert (only.time_ps, only.calc_ps, only.num_nodes) == (1_500_000, 2_211_000, 5)


def test_a_message_takes_what_the_cluster_says():
    """As one of a program does, after the calc that it requires."""
    send = "num_ranks 2\nrank 0 {\nc: calc %d\ns: send 1048576b to 1\ns requires c\n}\n"
    recv = "rank 1 {\nrecv 1048576b from 0\n}\n"
    at_once, later = (times_of(send % ns + recv) for ns in (0, 5000))
    bytes_ps = 1048576 * 10**12 // (376 * 10**9)
    assert at_once[1].time_ps > bytes_ps
    assert later[1].time_ps - at_once[1].time_ps == 5_000_000
    assert (later[0].sent_bytes, later[1].sent_bytes) == (1048576, 0)


def test_messages_are_matched_by_tag_and_from_any_source():
    """Not in the order of their receives."""
    text = (
        "num_ranks 3\nrank 0 {\na: recv 8b from 1 tag 2\nb: recv 64b from 1 tag 1\n"
        "c: recv 8b from -1 tag 3\nd: calc 1\nd requires a\nd requires b\nd requires c\n}\n"
        "rank 1 {\na: send 64b to 0 tag 1\nb: send 8b to 0 tag 2\nb requires a\n}\n"
        "rank 2 {\nsend 8b to 0 tag 3\n}\n"
    )
    assert times_of(text)[0].num_nodes == 4


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 8), st.integers(1, 3), st.integers(1, 1 << 20))
def test_a_ring_is_as_long_as_its_hops(num_ranks, rounds, size):
    """Each hop begins when the one before it is over; twice the hops take twice the time."""

    def ring(hops):
        bodies = [[] for _ in range(num_ranks)]
        for hop in range(hops):
            src, dst = hop % num_ranks, (hop + 1) % num_ranks
            bodies[src].append(f"s{hop}: send {size}b to {dst} tag {hop}")
            if hop:
                bodies[src].append(f"s{hop} requires r{hop - 1}")
            bodies[dst].append(f"r{hop}: recv {size}b from {src} tag {hop}")
        ranks = "".join(
            f"rank {rank} {{\n" + "\n".join(body) + "\n}\n" for rank, body in enumerate(bodies)
        )
        return max(each.time_ps for each in times_of(f"num_ranks {num_ranks}\n{ranks}"))

    hops = num_ranks * rounds
    assert ring(2 * hops) == pytest.approx(2 * ring(hops), rel=0.5)
    assert ring(2 * hops) > ring(hops)


def test_a_trace_that_hangs_names_the_nodes_that_are_awaited():
    """With their labels and lines; the ranks of the cycle, too."""
    text = (
        "num_ranks 3\nrank 0 {\na: recv 8b from 1\nb: send 8b to 1\nb requires a\n}\n"
        "rank 1 {\nx: recv 8b from 0\ny: send 8b to 0\ny requires x\n}\n"
    )
    with pytest.raises(DeadlockError) as caught:
        times_of(text)
    report = str(caught.value)
    assert "rank 0: a: recv 8 B from rank 1 with tag 0 (t.goal:3)" in report
    assert "rank 1: x: recv 8 B from rank 0 with tag 0 (t.goal:8)" in report
    assert "0 -> 1 -> 0" in report


def test_only_the_first_of_many_awaited_nodes_are_named():
    """Calcs are none of them: they end by themselves."""
    many = "\n".join(f"r{tag}: recv 8b from 1 tag {tag}" for tag in range(6))
    with pytest.raises(DeadlockError, match=r"r3: [^,]*, and 2 more"):
        times_of(f"num_ranks 2\nrank 0 {{\n{many}\n}}\n")


def test_two_ends_of_different_sizes_name_their_node():
    """Beside the report of the mismatch."""
    text = "num_ranks 2\nrank 0 {\ns: send 8b to 1\n}\nrank 1 {\nr: recv 9b from 0\n}\n"
    with pytest.raises(SpawnException) as caught:
        times_of(text)
    (error,) = caught.value.errors.values()
    assert any("(t.goal:" in note for note in error.__notes__)


def test_more_ranks_than_devices_are_refused():
    """With what to do."""
    with pytest.raises(SimrankError, match=r"t.goal has 9 ranks, hgx_h100 8 devices"):
        times_of("num_ranks 9\n")


def test_it_repeats_to_the_picosecond():
    """And another seed changes nothing that the trace orders."""
    text = "num_ranks 2\nrank 0 {\nsend 9b to 1\n}\nrank 1 {\nrecv 9b from 0\n}\n"
    assert times_of(text) == times_of(text) == times_of(text, seed=3)
