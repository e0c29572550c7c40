"""`simrank replay`: traces on clusters."""

import json
from pathlib import Path

TREE = Path(__file__).parent.parent / "formats" / "goal" / "binary_tree_16.goal"


def test_a_schedule_is_replayed_with_the_time_of_each_rank(cli, tmp_path):
    """As JSON and as a timeline, too; the cluster has as many nodes as that needs."""
    out_file, trace = tmp_path / "out.json", tmp_path / "trace.json"
    args = ("replay", TREE, "--cluster", "h100_ib", "--json", out_file, "--trace", trace)
    status, out, _ = cli(*args)
    assert status == 0
    assert "30 nodes on 16 ranks of h100_ib: " in out
    document = json.loads(out_file.read_text())
    assert document["total_ps"] == max(rank["time_ps"] for rank in document["ranks"])
    assert document["ranks"][0]["sent_bytes"] == 4
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"]]
    assert any("send to rank 8" in name for name in names)


def test_a_trace_that_hangs_is_a_failure(cli, tmp_path):
    """With the report, and the timeline of what happened before it."""
    path, trace = tmp_path / "hang.goal", tmp_path / "trace.json"
    path.write_text("num_ranks 2\nrank 0 {\nl1: recv 8b from 1 tag 7\n}\n")
    status, _, err = cli("replay", path, "--trace", trace)
    assert status == 1
    assert "rank 0: l1: recv 8 B from rank 1 with tag 7 (hang.goal:3)" in err
    assert trace.exists()


def test_what_is_no_trace_is_refused(cli, tmp_path):
    """With status 2; too few devices with status 1."""
    path = tmp_path / "none.goal"
    path.write_text("hello\n")
    assert cli("replay", path)[0] == 2
    assert cli("replay", tmp_path / "missing.goal")[0] == 2
    status, _, err = cli("replay", TREE)
    assert status == 1
    assert "to fix: give it more --nodes" in err


def test_long_tables_are_cut(cli, tmp_path):
    """The JSON file has all ranks."""
    path = tmp_path / "wide.goal"
    path.write_text("num_ranks 24\nrank 23 { calc 1000 }\n")
    status, out, _ = cli("replay", path, "--cluster", "h100_ib")
    assert status == 0
    assert "... 8 more ranks" in out


def test_traces_of_chakra_are_replayed_in_both_forms(cli):
    """With the same times."""
    folder = TREE.parent.parent / "chakra"
    tables = []
    for suffix in ("et", "json"):
        files = [folder / f"pipeline.{rank}.{suffix}" for rank in range(2)]
        status, out, _ = cli("replay", *files)
        assert status == 0
        tables.append(out.partition("\n")[2])
    assert tables[0] == tables[1]


def test_a_timeline_of_ranks_that_the_trace_lacks_is_refused(cli, tmp_path):
    """Before the replay."""
    args = ("replay", TREE, "--trace", tmp_path / "t.json", "--trace-ranks", "0,16")
    status, _, err = cli(*args, "--cluster", "h100_ib")
    assert status == 2
    assert "--trace-ranks: expected ranks of the run, 0 to 15, got 16" in err
