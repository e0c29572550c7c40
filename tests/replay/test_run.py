"""A trace on a cluster: its times, and what is said of one that hangs."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank
from simrank.engine import Observer
from simrank.errors import ConfigError, DeadlockError, SimrankError, SpawnException
from simrank.formats.goal import parse_goal
from simrank.formats.operations import CALC, RECV, SEND, TraceNode
from simrank.hardware import load_cluster
from simrank.replay.run import Player, read_trace, replay

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
    once, twice = ring(hops), ring(2 * hops)
    assert twice == pytest.approx(2 * once, rel=0.5)
    assert twice > once


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


# ---- a trace in whichever form it comes ----

DATA = Path(__file__).parents[1] / "formats" / "chakra"
META = '{"version": "0.0.4"}\n'
COLL = '{"id": 1, "type": "COMM_COLL_NODE", "attr": [{"name": "comm_size", "int64Val": "8"}, %s]}'
IN_TP = COLL % '{"name": "pg_name", "stringVal": "tp"}'


def test_the_content_says_which_form_it_is():
    """GOAL, Chakra's JSON, Chakra's binary form; ranks are in the names of files."""
    assert read_trace([str(DATA.parent / "goal" / "binary_tree_16.goal")]).num_nodes == 30
    for suffix in ("et", "json"):
        files = [str(DATA / f"pipeline.{rank}.{suffix}") for rank in (1, 0)]
        trace = read_trace(files)
        assert [nodes[0].label for nodes in trace.ranks] == ["forward", "from stage 0"]
        assert trace.groups == [(0, 1)]


@pytest.mark.parametrize(
    ("name", "collective", "moved"),
    [
        ("allreduce", "all_reduce", 1.5),
        ("allgather", "all_gather", 3),
        ("reducescatter", "reduce_scatter", 0.75),
        ("alltoall", "all_to_all", 0.75),
    ],
)
def test_collectives_of_chakras_generator_are_replayed(name, collective, moved):
    """One of 1 MiB on four ranks: each takes what it moves, and less than ten times that."""
    stem = DATA / "generated" / f"one_comm_coll_node_{name}"
    trace = read_trace([f"{stem}.{rank}.et" for rank in range(4)])
    assert [[node.collective for node in nodes] for nodes in trace.ranks] == [[collective]] * 4
    assert {node.size_bytes for nodes in trace.ranks for node in nodes} == {1 << 20}
    assert trace.groups == [(0, 1, 2, 3)]
    times = replay(trace, load_cluster("hgx_h100"))
    least_ps = moved * (1 << 20) / 376e9 * 1e12
    assert all(least_ps < each.time_ps < 10 * least_ps for each in times)


@pytest.mark.parametrize(
    ("name", "num_nodes", "time_ps"),
    [
        ("two_comp_nodes_dependent", 2, 10_000_000),
        ("one_remote_mem_store_node", 1, 4_990_000),
        ("one_metadata_node_all_types", 1, 0),
    ],
)
def test_nodes_of_one_rank_of_chakras_generator_are_replayed(name, num_nodes, time_ps):
    """Two computations of 5 us, one behind the other; a store at the floor; and nothing at all."""
    trace = read_trace([str(DATA / "generated" / f"{name}.0.et")])
    (only,) = replay(trace, load_cluster("hgx_h100"))
    assert only.num_nodes == num_nodes
    assert only.time_ps == pytest.approx(time_ps, rel=1e-6)


def test_a_file_that_is_cut_short_is_refused_by_its_name(tmp_path):
    """With the byte at which a message lacks its end."""
    data = (DATA / "generated" / "two_comp_nodes_dependent.0.et").read_bytes()
    path = tmp_path / "short.0.et"
    path.write_bytes(data[:-1])
    with pytest.raises(ConfigError, match=r"short\.0\.et: byte 43: expected a message of 36 bytes"):
        read_trace([str(path)])


def test_groups_may_stand_in_a_file(tmp_path):
    """As ASTRA-sim's comm_group.json."""
    for rank in range(4):
        (tmp_path / f"t.{rank}.json").write_text(META + IN_TP)
    files = [str(tmp_path / f"t.{rank}.json") for rank in range(4)]
    groups = tmp_path / "groups.json"
    groups.write_text('{"tp": [3, 0, 1, 2]}')
    assert read_trace(files, str(groups)).groups == [(0, 1, 2, 3)]
    for text, message in (
        ('{"tp": [0, 9]}', r"groups.json:1: tp: expected ranks from 0 to 3, got \[0, 9\]"),
        ('{"tp": [0, 0]}', "tp: expected ranks"),
        ('{"tp": 3}', "tp: expected ranks"),
        ("", "expected one object: name to ranks, got 0"),
        ("{} {}", "expected one object: name to ranks, got 2"),
        ("{", "groups.json:1: expected JSON"),
    ):
        groups.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_trace(files, str(groups))


@pytest.mark.parametrize(
    ("names", "text", "message"),
    [
        (["a.goal", "b.goal"], "num_ranks 1", "b.goal: expected one GOAL schedule, got a second"),
        (["a.json"], META, "with their ranks 0 to 0 in their names: trace.0.et, got another name"),
        (["a.1.json"], META, "with their ranks 0 to 0 in their names"),
        (["a.0.json", "b.0.json"], META, "b.0.json: expected a file per rank, got rank 0 again"),
        (["a.0.json"], "hello", r"a.0.json:1: expected a GOAL schedule .* got hello"),
        (["a.0.et"], "hello", "a.0.et: byte 1: expected a message of 104 bytes"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, names, text, message):
    """With the name of the file."""
    for name in names:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_trace([str(tmp_path / name) for name in names])


def test_bytes_that_are_nothing_are_refused(tmp_path):
    """Unless they are named as Chakra's binary files are."""
    path = tmp_path / "a.0.bin"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"a\.0\.bin: expected .* got bytes that are no text"):
        read_trace([str(path)])


def test_a_schedule_without_its_first_line_is_told_what_it_lacks(tmp_path):
    """And not that its name is wrong."""
    path = tmp_path / "ring.goal"
    path.write_text("rank 0 {\nl1: send 8b to 1 tag 0\n}\n")
    with pytest.raises(ConfigError, match=r"ring\.goal:1: expected a GOAL schedule .* got rank 0"):
        read_trace([str(path)])


# ---- what a rank of a replay does ----


def test_messages_of_one_size_share_a_buffer():
    """Receives that are posted at once need the memory of one."""
    nodes = (
        [
            TraceNode(f"r{tag}", RECV, "t:1", size_bytes=1 << 30, peer=1, tag=tag)
            for tag in range(100)
        ],
        [
            TraceNode(f"s{tag}", SEND, "t:1", size_bytes=1 << 30, peer=0, tag=tag)
            for tag in range(100)
        ],
    )
    with simrank.Context("hgx_h100", data=False) as ctx:
        players = [Player(rank, nodes[rank], [], ctx) for rank in range(2)]
        ctx.multiprocessing.spawn(lambda rank: players[rank].play(), nprocs=2, share_args=True)
        assert ctx.devices[0].memory.peak_bytes == 1 << 30


def test_calcs_run_on_streams_of_their_rank_under_their_labels():
    """As timelines show them."""
    seen = []

    class Seen(Observer):
        def on_operation(self, operation):
            seen.append((operation.name, operation.stream.name, operation.stream.device.index))

    with simrank.Context("hgx_h100", data=False) as ctx:
        ctx.observe(Seen())
        player = Player(0, [TraceNode("l1", CALC, "t:1", duration_ps=5, stream=2)], [], ctx)
        ctx.multiprocessing.spawn(lambda rank: player.play(), nprocs=1, share_args=True)
    assert seen == [("l1", "cpu 2", 0)]
    assert player.end_ps == 5
