"""A trace in whichever form it comes."""

from pathlib import Path

import pytest

from simrank.errors import ConfigError
from simrank.hardware import load_cluster
from simrank.replay.formats import read_trace
from simrank.replay.run import replay

HERE = Path(__file__).parent
META = '{"version": "0.0.4"}\n'
COLL = '{"id": 1, "type": "COMM_COLL_NODE", "attr": [{"name": "comm_size", "int64Val": "8"}, %s]}'
IN_TP = COLL % '{"name": "pg_name", "stringVal": "tp"}'


def test_the_content_says_which_form_it_is():
    """GOAL, Chakra's JSON, Chakra's binary form; ranks are in the names of files."""
    assert read_trace([str(HERE / "goal" / "binary_tree_16.goal")]).num_nodes == 30
    for suffix in ("et", "json"):
        files = [str(HERE / "chakra" / f"pipeline.{rank}.{suffix}") for rank in (1, 0)]
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
    stem = HERE / "chakra" / "generated" / f"one_comm_coll_node_{name}"
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
    trace = read_trace([str(HERE / "chakra" / "generated" / f"{name}.0.et")])
    (only,) = replay(trace, load_cluster("hgx_h100"))
    assert only.num_nodes == num_nodes
    assert only.time_ps == pytest.approx(time_ps, rel=1e-6)


def test_a_file_that_is_cut_short_is_refused_by_its_name(tmp_path):
    """With the byte at which a message lacks its end."""
    data = (HERE / "chakra" / "generated" / "two_comp_nodes_dependent.0.et").read_bytes()
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
